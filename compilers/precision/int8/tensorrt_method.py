"""INT8 and FP8 for TensorRT: explicit symmetric Q/DQ, placed so that TensorRT's fusions survive.

The rules (TensorRT documentation, "Explicit quantization"): every weighted operator takes its data through a pair and
its weights, stored in eight bits, through a DequantizeLinear, and gives its output unquantised, so that bias and
activation fuse into it; biases stay FP32. A residual sum is fused into the convolution that ends the branch if the
other branch, the skip, comes through a pair.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plansmith.compilers.precision.calibration import observe
from plansmith.compilers.precision.graph import Graph
from plansmith.compilers.precision.int8.format import INT8, Format, Histogram, Range, choose, summarize_ranges
from plansmith.compilers.precision.int8.nodes import Weighted, find_heads, find_weighted, nodes_kept_by_spec
from plansmith.compilers.precision.int8.qdq import Pairs
from plansmith.compilers.precision.int8.smoothquant import Smoothed, again, nothing_to_lower, prepare, smooth
from plansmith.records.model import Precision
from plansmith.validation.coverage import UNTRIED_KERNELS

if TYPE_CHECKING:
    import onnx

    from plansmith.compilers.precision.candidate import Method
    from plansmith.config.engine_options import LoweringOptions
    from plansmith.data.reference import StoredCases

_LARGEST_FP8_KERNEL = 32
"""Elements of a convolution's kernel up to which TensorRT computes in FP8 (its release notes, 10.16, limitations)."""

_BESIDES = {
    "Softmax": "a softmax would use half of the codes",
    "LogSoftmax": "a softmax would use half of the codes",
    "LayerNormalization": "normalisation needs its precision",
    "InstanceNormalization": "normalisation needs its precision",
    "GroupNormalization": "normalisation needs its precision",
    "RMSNormalization": "normalisation needs its precision",
}


def methods(
    model: onnx.ModelProto,
    samples: StoredCases,
    options: LoweringOptions,
    *,
    form: Format = INT8,
    mask_input: str | None = None,
) -> list[Method]:
    """Return the method to lower a graph for TensorRT; one, as TensorRT has no dynamic quantization.

    Args:
        model: the FP32 graph, with its weights in memory; not changed.
        samples: calibration data.
        options: what a person asks for.
        form: INT8 or FP8.
        mask_input: the input that marks padding with 0; None where there is none.

    Raises:
        ExportError: nothing in the graph can be lowered, or only in a way that was not asked for.
    """
    if options.quantisation == "dynamic":
        raise nothing_to_lower(form, "TensorRT takes static scales only", "set quantisation: static")
    if options.calibration == "entropy" and form.fraction_bits:
        raise nothing_to_lower(form, "entropy calibration is for the even steps of INT8", "set calibration: auto")
    prepared = prepare(model)
    graph = Graph(prepared)
    nodes, reasons = find_weighted(graph)
    reasons |= {n.name: _BESIDES[n.op_type] for n in prepared.graph.node if n.op_type in _BESIDES}
    reasons |= {node.name: reason for node in nodes if (reason := _high(graph, node, form))}
    reasons |= dict.fromkeys(find_heads(graph), "makes an output")
    reasons |= nodes_kept_by_spec([node.name for node in nodes], options.keep)
    lowered = [node for node in nodes if node.name not in reasons]
    if not lowered:
        raise nothing_to_lower(form, "every product and convolution stays high", "set precision: fp16")
    smoothed = Smoothed(prepared, "none: FP8 rounds each value to its own magnitude")
    if not form.fraction_bits:
        smoothed = smooth(prepared, lowered, samples, form, mask_input=mask_input)
    lowered = again(smoothed.model, lowered)
    skips = residuals(Graph(smoothed.model), lowered)
    tensors = [*(node.data for node in lowered), *(residual.skip for residual in skips)]
    histograms = {name: Histogram() for name in tensors}
    observe(smoothed.model, samples, histograms, mask_input=mask_input)
    ranges = {name: choose(histogram, options.calibration, form) for name, histogram in histograms.items()}
    return [Explicit(smoothed.model, lowered, skips, ranges, form=form, reasons=reasons, smoothing=smoothed.how)]


@dataclass(frozen=True)
class Residual:
    """Residual sum fused into a lowered convolution.

    Attributes:
        add: the sum's node.
        skip: the tensor that comes through a pair.
        carrier: the convolution that makes the other one.
    """

    add: str
    skip: str
    carrier: str


class Explicit:
    """Explicit quantization (Q/DQ) for TensorRT.

    Args:
        model: the smoothed FP32 graph.
        nodes: those that are lowered, as they stand in it.
        skips: the sums that they carry if all of them are.
        ranges: what 8 bits cover, by tensor.
        form: INT8 or FP8.
        reasons: nodes that stay high, with the reason.
        smoothing: what was migrated, in words.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        nodes: Sequence[Weighted],
        skips: Sequence[Residual],
        ranges: Mapping[str, Range],
        *,
        form: Format,
        reasons: Mapping[str, str],
        smoothing: str,
    ) -> None:
        self.precision = form.precision
        self.name = f"{form.precision.upper()}, explicit Q/DQ for TensorRT"
        self.not_validated: tuple[str, ...] = (UNTRIED_KERNELS[form.precision],)
        self._model, self._skips, self._ranges, self._form = model, skips, ranges, form
        self._nodes = {node.name: node for node in nodes}
        self.high_reasons = reasons
        self.lowerable = tuple(self._nodes)
        self.settings: Mapping[str, str] = {
            "activations": f"{form.label}, zero point 0, a scale per tensor",
            "weights": f"{form.label}, zero point 0, a scale per output channel",
            "calibration": summarize_ranges(ranges),
            "smoothing": smoothing,
        }

    def lower(self, keep: Collection[str]) -> onnx.ModelProto:
        """Return a copy with Q/DQ pairs for all lowerable nodes except `keep`."""
        import onnx

        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        graph = Graph(model)
        lowered = [node for name, node in self._nodes.items() if name not in keep]
        takers: dict[str, list[str]] = {}
        for node in lowered:
            takers.setdefault(node.data, []).append(node.name)
        for residual in self._skips:
            # Only while the same convolution carries the sum: of another skip no range was measured.
            if residual.carrier not in keep:
                takers.setdefault(residual.skip, []).append(residual.add)
        pairs = Pairs(graph, self._ranges, self._form)
        for tensor, names in takers.items():
            pairs.activation(tensor, names)
        for node in lowered:
            pairs.weights(node, self._form)
        pairs.write()
        return model

    def runnable(self, lowered: onnx.ModelProto) -> onnx.ModelProto:
        """Return the graph itself, as Q/DQ pairs are standard operators."""
        return lowered


def residuals(graph: Graph, lowered: Sequence[Weighted]) -> list[Residual]:
    """Return the sums of a skip branch with the output of a lowered convolution."""
    convolutions = {node.name for node in lowered if not node.is_product}
    order = {node.name: place for place, node in enumerate(graph.model.graph.node)}
    entries = []
    for node in graph.model.graph.node:
        if node.op_type != "Add" or any(graph.constant(name) is not None for name in node.input):
            continue
        ends = [
            (order[producer.name], name, producer.name)
            for name in node.input
            if (producer := graph.producer(name)) is not None
            and producer.name in convolutions
            and len(graph.consumers(name)) == 1
            and name not in graph.outputs
        ]
        # Of two convolutions the later one carries the sum: the other's output is there by then.
        if ends and len(set(node.input)) == 2:
            _, carried, carrier = max(ends)
            skip = next(name for name in node.input if name != carried)
            if graph.producer(skip) is not None or skip in graph.inputs:
                entries.append(Residual(node.name, skip, carrier))
    return entries


def _high(graph: Graph, node: Weighted, form: Format) -> str:
    """Why a node with weights that fit eight bits stays high for TensorRT; empty where it does not."""
    weight = graph.floats(node.weight)
    if node.op == "Conv" and node.groups > 1 and weight.shape[1] == 1:
        return "depthwise: eight bits cost more accuracy there than they save time"
    if node.op == "ConvTranspose" and node.groups > 1:
        return "a transposed convolution in groups has no axis of output channels"
    inputs = weight.size // weight.shape[node.out_axis]
    if not node.is_product and min(inputs, weight.shape[node.out_axis]) < 16:
        return "too small to gain anything"
    return _without_kernel(node, weight.shape) if form.precision is Precision.FP8 else ""


def _without_kernel(node: Weighted, shape: tuple[int, ...]) -> str:
    """Why a convolution gains nothing from FP8 in TensorRT; empty where it does.

    By the release notes of TensorRT 10.16, and by the builder of TensorRT-RTX 1.7.1, which computes transposed ones and
    those with large kernels in FP32.
    """
    if node.op == "ConvTranspose":
        return "TensorRT has no transposed convolutions in FP8"
    if node.groups > 1:
        return "TensorRT has no optimised FP8 convolutions in groups"
    if math.prod(shape[2:]) > _LARGEST_FP8_KERNEL and not node.is_product:
        return f"TensorRT has no FP8 convolutions with more than {_LARGEST_FP8_KERNEL} elements in a kernel"
    return ""
