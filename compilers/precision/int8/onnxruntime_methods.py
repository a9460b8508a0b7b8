"""INT8 for ONNX Runtime on a CPU: static scales, or dynamic scales computed per request, as suits the graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from plansmith.compilers.precision.calibration import observe
from plansmith.compilers.precision.graph import Graph, attribute
from plansmith.compilers.precision.int8 import qdq
from plansmith.compilers.precision.int8.format import INT8, UINT8, Histogram, Range, choose, summarize_ranges
from plansmith.compilers.precision.int8.nodes import (
    Weighted,
    find_heads,
    find_tables,
    find_weighted,
    nodes_kept_by_spec,
    weights_share,
)
from plansmith.compilers.precision.int8.qdq import Pairs, Tables
from plansmith.compilers.precision.int8.smoothquant import Smoothed, again, nothing_to_lower, prepare, smooth
from plansmith.formatting import count
from plansmith.records.model import Precision
from plansmith.system.gpus import sums_bytes_exactly

if TYPE_CHECKING:
    import onnx

    from plansmith.compilers.precision.candidate import Method
    from plansmith.config.engine_options import Calibration, LoweringOptions
    from plansmith.data.reference import StoredCases

_ACTIVATIONS = {"Relu", "Clip"}
_MOVING = {"MaxPool", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze"}
_COMPUTING = {"Add", "Concat", "AveragePool", "GlobalAveragePool"}
_ENDING = {"AveragePool", "GlobalAveragePool"}
SMALL_HEAD = 0.02
"""A head with at most this share of the weights stays high: INT8 gains next to nothing there."""

_DRIFT = "inputs with larger activations than the calibration data: static scales saturate there"
_NEIGHBOURS = "one row in batches with others: all rows share a tensor's scale, so that its answer depends on them"
_CLIPS = (
    "inputs with larger activations than the calibration data: {} still clip their data to the calibrated range, as"
    " padding would widen a scale per request"
)


class Dynamic:
    """Dynamic quantization: DynamicQuantizeLinear and MatMulInteger, and INT8 embedding tables with a scale per row.

    Args:
        smoothed: the FP32 graph.
        nodes: products that are lowered, as they stand in it.
        tables: lookups that are lowered.
        reasons: nodes that stay high, with the reason.
        weight_bits: 8, or 7 where pairs of products would saturate.
        not_validated: what cannot be tried here.
    """

    name = "INT8, dynamic, per channel"
    precision = Precision.INT8

    def __init__(
        self,
        smoothed: Smoothed,
        nodes: Sequence[Weighted],
        tables: Tables,
        *,
        reasons: Mapping[str, str],
        weight_bits: int,
        not_validated: tuple[str, ...],
    ) -> None:
        self.high_reasons, self.not_validated = reasons, not_validated
        self.settings: Mapping[str, str] = {
            "activations": "unsigned 8 bits, a scale and zero point per tensor and request, for all rows of a batch",
            "weights": f"{weight_bits} bits, symmetric, a scale per output channel",
            "tables": "8 bits, symmetric, a scale per row",
            "smoothing": smoothed.how,
            "clipping": f"data of {len(smoothed.limits)} products, whose range padding widens",
        }
        self._model, self._bits, self._limits = smoothed.model, weight_bits, smoothed.limits
        self._nodes = {node.name: node for node in nodes}
        self._tables = tables
        self.lowerable = tuple(n.name for n in self._model.graph.node if n.name in {*self._nodes, *tables.lookups})
        self._weights: dict[str, list[onnx.TensorProto]] = {}

    def lower(self, keep: Collection[str]) -> onnx.ModelProto:
        """Return a copy with all lowerable nodes in INT8 except `keep`."""
        import onnx

        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        graph = Graph(model)
        changes: dict[str, list[onnx.NodeProto]] = {}
        quantised: dict[str, tuple[str, str, str]] = {}
        by_name = {node.name: node for node in model.graph.node}
        for name, node in self._nodes.items():
            if name in keep:
                continue
            new: list[onnx.NodeProto] = []
            if node.data not in quantised:
                quantised[node.data] = _names(graph, node.data)
                new = self._quantise(graph, node, quantised[node.data])
            changes[name] = new + self._product(graph, by_name[name], node, quantised[node.data])
        graph.rewrite(changes)
        self._tables.lower(graph, keep)
        graph.drop_unused_initializers()
        return model

    def runnable(self, lowered: onnx.ModelProto) -> onnx.ModelProto:
        """Return the graph itself, which ONNX Runtime runs."""
        return lowered

    def _quantise(self, graph: Graph, node: Weighted, results: tuple[str, str, str]) -> list[onnx.NodeProto]:
        """Quantize dynamically: scales are computed per request, without values that only padding reaches."""
        from onnx import helper

        data, new = node.data, []
        if node.name in self._limits:
            ends = [
                graph.add_initializer(f"{node.data}_{side}", np.array(value, np.float32))
                for side, value in zip(("lowest", "highest"), self._limits[node.name], strict=True)
            ]
            data = graph.fresh(f"{node.data}_clipped")
            new.append(helper.make_node("Clip", [node.data, *ends], [data], name=graph.fresh(f"{node.data}_Clip")))
        name = graph.fresh(f"{node.data}_DynamicQuantizeLinear")
        return [*new, helper.make_node("DynamicQuantizeLinear", [data], list(results), name=name)]

    def _product(
        self, graph: Graph, node: onnx.NodeProto, weighted: Weighted, data: tuple[str, str, str]
    ) -> list[onnx.NodeProto]:
        """The node sequence that ONNX Runtime fuses into one kernel, with scales and bias."""
        from onnx import TensorProto, helper

        weight, scale = self._quantised_weights(graph, weighted)
        values, data_scale, zero_point = data
        out = node.output[0]
        bias = weighted.bias
        total, real, factor = (graph.fresh(f"{out}_{suffix}") for suffix in ("int32", "float", "scale"))
        product = graph.fresh(f"{out}_product") if bias else out
        new = [
            helper.make_node("MatMulInteger", [values, weight, zero_point], [total], name=node.name),
            helper.make_node("Cast", [total], [real], to=TensorProto.FLOAT, name=graph.fresh(f"{node.name}_Cast")),
            helper.make_node("Mul", [data_scale, scale], [factor], name=graph.fresh(f"{node.name}_scale")),
            helper.make_node("Mul", [real, factor], [product], name=graph.fresh(f"{node.name}_scaled")),
        ]
        if not bias:
            return new
        if (beta := attribute(node, "beta", 1.0)) != 1.0:
            bias = graph.add_initializer(f"{bias}_beta", np.float32(beta) * graph.floats(bias))
        return [*new, helper.make_node("Add", [product, bias], [out], name=graph.fresh(f"{node.name}_bias"))]

    def _quantised_weights(self, graph: Graph, node: Weighted) -> tuple[str, str]:
        """The names of the INT8 weights, inputs first, and of their scales; computed once."""
        key = f"{node.weight}:{node.name}"
        if key not in self._weights:
            import onnx

            weight = graph.floats(node.weight)
            weight = weight if node.in_axis == 0 else np.ascontiguousarray(weight.T)
            scale = qdq.scales(weight, 1, INT8.narrowed(self._bits))
            source = next(n for n in self._model.graph.node if n.name == node.name)
            alpha = np.float32(attribute(source, "alpha", 1.0))
            quantised = qdq.quantise(weight, scale, axis=1)
            self._weights[key] = [
                onnx.numpy_helper.from_array(quantised, f"{node.weight}_int8"),
                onnx.numpy_helper.from_array((scale * alpha).astype(np.float32), f"{node.weight}_scale"),
            ]
        names = [graph.add_tensor(tensor) for tensor in self._weights[key]]
        return names[0], names[1]


def _names(graph: Graph, tensor: str) -> tuple[str, str, str]:
    return (graph.fresh(f"{tensor}_uint8"), graph.fresh(f"{tensor}_scale"), graph.fresh(f"{tensor}_zero_point"))


@dataclass
class Plan:
    """Plan of Q/DQ pairs: which tensors get a pair, and which nodes use it.

    Attributes:
        takers: by tensor, the names of the nodes that take what comes back from INT8.
        same: tensors that hold another's values, moved: they share its range.
    """

    takers: dict[str, list[str]] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)


class Static:
    """Static quantization: Q/DQ pairs for ONNX Runtime's CPU kernels.

    Args:
        smoothed: the FP32 graph.
        nodes: those that are lowered, as they stand in it.
        tables: lookups that are lowered.
        ranges: what 8 bits cover, by tensor.
        reasons: nodes that stay high, with the reason.
        weight_bits: 8, or 7 where pairs of products would saturate.
        not_validated: what cannot be tried here.
    """

    name = "INT8, static Q/DQ"
    precision = Precision.INT8

    def __init__(
        self,
        smoothed: Smoothed,
        nodes: Sequence[Weighted],
        tables: Tables,
        ranges: Mapping[str, Range],
        *,
        reasons: Mapping[str, str],
        weight_bits: int,
        not_validated: tuple[str, ...],
    ) -> None:
        self._model, self._ranges, self._bits = smoothed.model, ranges, weight_bits
        self._nodes = {node.name: node for node in nodes}
        self.high_reasons, self.not_validated = reasons, not_validated
        self._tables = tables
        self.lowerable = tuple(n.name for n in smoothed.model.graph.node if n.name in {*self._nodes, *tables.lookups})
        self.settings: Mapping[str, str] = {
            "activations": "unsigned 8 bits, a scale and zero point per tensor",
            "weights": f"{weight_bits} bits, symmetric, a scale per output channel",
            "tables": "8 bits, symmetric, a scale per row",
            "calibration": summarize_ranges(ranges),
            "smoothing": smoothed.how,
        }

    def lower(self, keep: Collection[str]) -> onnx.ModelProto:
        """Return a copy with Q/DQ pairs for all lowerable nodes except `keep`."""
        import onnx

        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        graph = Graph(model)
        lowered = [node for name, node in self._nodes.items() if name not in keep]
        plan = plan_pairs(graph, lowered)
        pairs = Pairs(graph, self._ranges, UINT8)
        for tensor, takers in plan.takers.items():
            pairs.activation(tensor, takers)
        for node in lowered:
            value_range = self._ranges[node.data]
            bias_scale = UINT8.scale(value_range.low, value_range.high)[0] if node.op != "MatMul" else None
            pairs.weights(node, INT8.narrowed(self._bits), bias_scale=bias_scale)
        pairs.write()
        self._tables.lower(graph, keep)
        graph.drop_unused_initializers()
        return model

    def runnable(self, lowered: onnx.ModelProto) -> onnx.ModelProto:
        """Return the graph itself, which ONNX Runtime runs."""
        return lowered


def measure(
    model: onnx.ModelProto,
    nodes: Sequence[Weighted],
    samples: StoredCases,
    calibration: Calibration,
    *,
    mask_input: str | None,
) -> dict[str, Range]:
    """Return the ranges of all tensors that get a pair if all these nodes are lowered."""
    plan = plan_pairs(Graph(model), nodes)
    histograms = {tensor: Histogram() for tensor in plan.takers if tensor not in plan.same}
    observe(model, samples, histograms, mask_input=mask_input)
    ranges = {tensor: choose(histogram, calibration, UINT8) for tensor, histogram in histograms.items()}
    for tensor in plan.same:
        source = tensor
        while source in plan.same:
            source = plan.same[source]
        ranges[tensor] = ranges[source]
    return ranges


def plan_pairs(graph: Graph, lowered: Sequence[Weighted]) -> Plan:
    """Plan Q/DQ pairs for the inputs of lowered nodes, and along the path from one convolution to the next."""
    plan = Plan()
    weighted = {node.name: node for node in lowered}
    stored: set[str] = set()
    for node in graph.model.graph.node:
        weighted_node = weighted.get(node.name)
        if weighted_node is not None:
            if weighted_node.data not in stored:
                plan.takers.setdefault(weighted_node.data, []).append(node.name)
            if not weighted_node.is_product:
                stored |= _stored(graph, node, plan)
        elif node.op_type in _MOVING | _COMPUTING:
            data = [name for name in node.input if name and graph.constant(name) is None]
            data = data[:1] if node.op_type in _MOVING else data
            if data and all(name in stored for name in data) and len(data) == _operands(node):
                new_tensors = _stored(graph, node, plan)
                stored |= new_tensors
                if node.op_type in _MOVING:
                    plan.same |= dict.fromkeys(new_tensors & set(node.output), data[0])
    _drop_ends(graph, plan, stored, set(weighted))
    return plan


def _drop_ends(graph: Graph, plan: Plan, stored: set[str], lowered: set[str]) -> None:
    """Remove Q/DQ pairs after data movement and pooling at the end of a chain, where the consumers take floats."""
    for node in reversed(graph.model.graph.node):
        tensor = node.output[0] if node.output else ""
        if node.op_type not in _MOVING | _ENDING or tensor not in stored:
            continue
        takers = graph.consumers(tensor)
        if not any(t.name in lowered or (t.output and stored & set(t.output)) for t in takers):
            stored.discard(tensor)
            plan.same.pop(tensor, None)
            del plan.takers[tensor]


def _stored(graph: Graph, node: onnx.NodeProto, plan: Plan) -> set[str]:
    """The tensor that holds a node's result in INT8, after a fused activation.

    Empty for graph outputs and without consumers.
    """
    tensor = node.output[0]
    takers = graph.consumers(tensor)
    if len(takers) == 1 and takers[0].op_type in _ACTIVATIONS and tensor not in graph.outputs:
        tensor = takers[0].output[0]
    takers = [taker for taker in graph.consumers(tensor) if tensor in taker.input]  # a body takes the floats
    if tensor in graph.outputs or not takers:
        return set()
    plan.takers[tensor] = [taker.name for taker in takers]
    return {tensor}


def _operands(node: onnx.NodeProto) -> int:
    """The number of inputs that carry values, not the shapes and axes of data movement operators."""
    return 1 if node.op_type in _MOVING else len(node.input)


def methods(
    model: onnx.ModelProto, samples: StoredCases, options: LoweringOptions, *, mask_input: str | None = None
) -> list[Method]:
    """Return the methods to lower a graph for ONNX Runtime on a CPU, the most promising first.

    That is static scales where convolutions prevail, which have no fast kernel with scales per request; and scales per
    request where products do: on all-MiniLM-L6-v2 both are as fast, static scales are closer on text like the
    calibration data (mean cosine 0.9986 against 0.9978), but on single words, where they saturate, the worst cosine was
    0.950 against 0.978.

    Args:
        model: the FP32 graph, with its weights in memory; not changed.
        samples: calibration data.
        options: what a person asks for.
        mask_input: the input that marks padding with 0; None where there is none.

    Raises:
        ExportError: nothing in the graph can be lowered, or only in a way that was not asked for.
    """
    source = _Source(prepare(model), samples, options, mask_input)
    nodes, reasons = find_weighted(Graph(source.model))
    makers: tuple[_Maker, ...] = (_dynamic, _static)
    if _is_convolutional(nodes):
        products = [node for node in nodes if node.is_product]
        shares = weights_share(Graph(source.model), products)
        makers = (_static, _dynamic) if sum(shares.values()) > 0.5 else (_static,)
    factories: tuple[_Maker, ...] = {"dynamic": (_dynamic,), "static": (_static,)}.get(options.quantisation, makers)
    result: list[Method] = [method for maker in factories if (method := maker(source, nodes, reasons)) is not None]
    if not result:
        is_auto = options.quantisation == "auto"
        raise nothing_to_lower(
            INT8,
            "no product or convolution is left that gains from it"
            + ("" if is_auto else f" with quantisation: {options.quantisation}"),
            "choose precision: fp16 or fp32" + ("" if is_auto else ", or set quantisation: auto"),
        )
    return result


class _Source:
    """Shared input of both methods; outliers are migrated once where both lower the same products."""

    def __init__(
        self, model: onnx.ModelProto, samples: StoredCases, options: LoweringOptions, mask_input: str | None
    ) -> None:
        self.model, self.samples, self.options, self.mask_input = model, samples, options, mask_input
        self._smoothed: dict[tuple[str, ...], Smoothed] = {}

    def tables(self, high: Collection[str]) -> Tables:
        return Tables({name: table for name, table in find_tables(Graph(self.model)) if name not in high})

    def smoothed(self, nodes: Sequence[Weighted]) -> Smoothed:
        key = tuple(node.name for node in nodes if node.is_product)
        if key not in self._smoothed:
            self._smoothed[key] = smooth(self.model, nodes, self.samples, UINT8, mask_input=self.mask_input)
        return self._smoothed[key]

    def high(self, nodes: Sequence[Weighted], reasons: Mapping[str, str]) -> dict[str, str]:
        """The nodes that stay high with either method, with the reason."""
        graph = Graph(self.model)
        shares = weights_share(graph, nodes)
        heads = {
            name: f"makes an output, and holds only {shares[name]:.1%} of the weights"
            for name in find_heads(graph)
            if shares.get(name, 1.0) <= SMALL_HEAD
        }
        names = [*shares, *(name for name, _ in find_tables(graph))]
        return {**reasons, **heads, **nodes_kept_by_spec(names, self.options.keep)}


_Maker = Callable[[_Source, Sequence[Weighted], Mapping[str, str]], "Dynamic | Static | None"]


def _dynamic(source: _Source, nodes: Sequence[Weighted], reasons: Mapping[str, str]) -> Dynamic | None:
    convolutions = {n.name: "a convolution gains nothing from scales per request" for n in nodes if not n.is_product}
    high = {**convolutions, **source.high(nodes, reasons)}
    lowered, tables = [node for node in nodes if node.name not in high], source.tables(high)
    if not lowered and not tables.lookups:
        return None
    smoothed, bits = source.smoothed(lowered), weight_bits()
    return Dynamic(
        smoothed,
        again(smoothed.model, lowered),
        tables,
        reasons=high,
        weight_bits=bits,
        not_validated=(*_untried(bits), *_unsure(smoothed)),
    )


def _static(source: _Source, nodes: Sequence[Weighted], reasons: Mapping[str, str]) -> Static | None:
    unfit = {n.name: "ONNX Runtime has no INT8 kernel for it" for n in nodes if n.op == "ConvTranspose"}
    if not _is_convolutional(nodes):
        unfit |= {n.name: "stands alone: its output would be quantised for nobody" for n in nodes if n.op == "Conv"}
    high = {**unfit, **source.high(nodes, reasons)}
    lowered = [node for node in nodes if node.name not in high]
    if not lowered:
        return None
    smoothed, bits = source.smoothed(lowered), weight_bits()
    lowered = again(smoothed.model, lowered)
    ranges = measure(smoothed.model, lowered, source.samples, source.options.calibration, mask_input=source.mask_input)
    return Static(
        smoothed,
        lowered,
        source.tables(high),
        ranges,
        reasons=high,
        weight_bits=bits,
        not_validated=(*_untried(bits), _DRIFT),
    )


def _is_convolutional(nodes: Sequence[Weighted]) -> bool:
    products = sum(node.is_product for node in nodes)
    return len(nodes) - products > products


@functools.cache
def weight_bits() -> int:
    """Return the weight bits: 8 if this machine's int8 dot products are exact, else 7, so that no pair saturates."""
    return 8 if sums_bytes_exactly() else 7


def _unsure(smoothed: Smoothed) -> tuple[str, ...]:
    """The caveats of scales per request."""
    clips = len(smoothed.limits)
    return (_NEIGHBOURS, *([_CLIPS.format(count(clips, "product"))] if clips else []))


def _untried(bits: int) -> tuple[str, ...]:
    if bits == 7:
        return ()
    return ("x86 CPUs without VNNI (before 2019): there, sums of two products of 8 bits may saturate",)
