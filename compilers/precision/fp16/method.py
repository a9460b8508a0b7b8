"""FP16 and BF16 lowering: mixed precision by value ranges measured on calibration inputs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plansmith.compilers import onnx_files
from plansmith.compilers.onnxrt import open_model
from plansmith.compilers.precision.fp16 import graph, ranges
from plansmith.compilers.precision.fp16.format import (
    BF16,
    FLOAT,
    FORMATS,
    MOVES,
    Format,
    Slots,
    cast_target,
    gains,
    number,
    opset,
    slots,
)
from plansmith.compilers.precision.fp16.graph import twin
from plansmith.compilers.precision.fp16.ranges import Masks, Ranges
from plansmith.compilers.precision.graph import Graph
from plansmith.compilers.precision.opsets import forget_defaults
from plansmith.config.engine_options import LoweringOptions
from plansmith.data.reference import StoredCases
from plansmith.errors import ExportError, first_line
from plansmith.records.model import Precision
from plansmith.validation.coverage import UNTRIED_KERNELS

if TYPE_CHECKING:
    import onnx

    from plansmith.compilers.precision.candidate import Method


_MEANS = {"ReduceSum", "ReduceMean", "GlobalAveragePool"}
_SQUARING = {"ReduceL2", "ReduceSumSquare", "ReduceSumExp", "ReduceLogSumExp", "LpNormalization", "LpPool"}
_SQUARING |= {"GlobalLpPool", "InstanceNormalization", "GroupNormalization", "MeanVarianceNormalization", "CumSum"}
_PERIODIC = {"Sin", "Cos", "Tan"}
_WHOLE = {"Floor", "Ceil", "Round", "Mod"}
_AFTER_EPSILON = {"Sqrt", "Reciprocal", "Pow", "Div"}
_SMALL_MATTERS = {"Div", "Log", "Reciprocal", "Sqrt", "Pow"}
_MAKING_SMALL = {"Add", "Sub", "ReduceMean", "ReduceSum", "Mul", "Pow", "Sqrt"}
_LEARNED = {"MatMul", "Gemm", "Conv", "ConvTranspose", "LayerNormalization", "Softmax", "Einsum"}
_ADDING = {"Add", "Sub", "Sum"}

_FACTOR_ERROR, _ADDED_ERROR = 2.0**-8, 2.0**-4
"""What rounding may change, in parts of the size of weights or a constant. It changes less than 2^-11 of FP16 and 2^-8
of BF16 unless digits are lost to zero. Factors must keep them; of what is added, the size is enough."""

_PHASE_ERROR = 2.0**-8
"""How far an angle may be off, in radians."""

_LACKS_KERNEL = "NOT_IMPLEMENTED"


@dataclass(frozen=True)
class Facts:
    """Facts for the precision rules; `sequences` are the names of values that are not tensors."""

    graph: Graph
    floats: Collection[str]
    ranges: Ranges
    masks: Masks
    form: Format
    opset: int
    sequences: Collection[str] = ()


def reasons(facts: Facts, keep: Sequence[str]) -> dict[str, str]:
    """Return the nodes that stay FP32, by name, with the reason.

    Args:
        facts: the graph and what calibration saw of it.
        keep: regular expressions of the user's; they match whole names.
    """
    reason_by_node: dict[str, str] = {}
    for node in facts.graph.model.graph.node:
        if is_float(node, facts.floats):
            reason = _spec_reason(node, keep) or _reason(node, facts)
            if reason:
                reason_by_node[node.name] = reason
    for spread in (_behind_epsilons, _before_angles, _before_small):
        for name, reason in spread(facts, reason_by_node):
            reason_by_node.setdefault(name, reason)
    return reason_by_node


def is_float(node: onnx.NodeProto, floats: Collection[str]) -> bool:
    """Whether a node has FP32 inputs or outputs."""
    return any(name in floats for name in (*node.input, *node.output))


def _spec_reason(node: onnx.NodeProto, keep: Sequence[str]) -> str:
    pattern = next((p for p in keep if re.fullmatch(p, node.name)), None)
    return "" if pattern is None else f"the spec keeps {pattern!r}"


def _reason(node: onnx.NodeProto, facts: Facts) -> str:
    places = slots(node, facts.floats, facts.form, facts.opset)
    if isinstance(places, str):
        return places
    if not {*node.input, *node.output}.isdisjoint(facts.sequences):
        return "it works on a sequence, which stays as it is"
    if node.op_type in {"Shape", "Size"}:
        return ""
    rules: tuple[Callable[[onnx.NodeProto, Slots, Facts], str], ...] = (_weights, _reach, _sum, _small, _exact)
    return next(filter(None, (rule(node, places, facts) for rule in rules)), "")


def _weights(node: onnx.NodeProto, places: Slots, facts: Facts) -> str:
    import numpy as np

    form, clipped = facts.form, facts.masks.ends.get(node.name)
    for place in sorted(places.inputs):
        stored = facts.graph.constant(node.input[place])
        if stored is None or place == clipped or not stored.size:
            continue
        subject = f"the constant {number(float(stored.ravel()[0]))}" if stored.size == 1 else "a weight"
        largest = float(np.abs(stored).max())
        if not largest <= form.largest:
            reach = "" if stored.size == 1 else f" reaches {number(largest)}, and it"
            return f"{subject}{reach} is beyond the end of {form.label} at {number(form.largest)}"
        error = form.relative_error(stored)
        if error > (_ADDED_ERROR if node.op_type in _ADDING else _FACTOR_ERROR):
            lost = "becomes 0" if error == 1 else f"changes by {error:.1%}"
            return f"{subject} {lost} in {form.label}, whose digits end at {number(form.smallest_normal)}"
        if node.op_type == "BatchNormalization" and place == 4 and float(stored.min()) < form.smallest_normal:
            return f"a variance of {number(float(stored.min()))} is below the digits of {form.label}"
    return ""


def _reach(node: onnx.NodeProto, places: Slots, facts: Facts) -> str:
    form, ranges, clipped = facts.form, facts.ranges, facts.masks.ends.get(node.name)
    sides = [("output", node.output[p]) for p in sorted(places.outputs)]
    sides += [("input", node.input[p]) for p in sorted(places.inputs) if p != clipped]
    for side, name in sides:
        masked = name in facts.masks.reaching
        reach = max(0.0, ranges.high.get(name, 0.0)) if masked else ranges.reach(name)
        if reach > form.limit:
            end = f"{form.label} ends at {number(form.largest)}"
            return f"{side} reaches {number(reach)}, " + (f"too near to where {end}" if reach <= form.largest else end)
        if side == "output" and 0 < reach < form.smallest_normal and node.op_type not in MOVES:
            return (
                f"{side} stays below {number(reach)}; the digits of {form.label} end at {number(form.smallest_normal)}"
            )
    return ""


def _sum(node: onnx.NodeProto, _: Slots, facts: Facts) -> str:
    form, ranges = facts.form, facts.ranges
    partial = ranges.sums.get(node.name, 0.0)
    if partial > form.largest:  # magnitudes were added, which is headroom enough: signs make real sums much smaller
        return f"sums inside reach {number(partial)}; {form.label} ends at {number(form.largest)}"
    terms = ranges.terms.get(node.name, 0)
    if node.op_type in _MEANS and terms > form.exact:
        return f"it adds {terms} numbers; a sum in {form.label} stops growing after {form.exact} equal ones"
    if node.op_type in _SQUARING:
        return f"it adds up inside, where {form.label} runs out of range or digits first"
    return ""


def _small(node: onnx.NodeProto, places: Slots, facts: Facts) -> str:
    if node.op_type not in _SMALL_MATTERS:
        return ""
    place = 1 if node.op_type == "Div" else 0
    smallest = facts.ranges.smallest.get(node.input[place], math.inf)
    exponent = facts.graph.constant(node.input[1]) if node.op_type == "Pow" else None
    harmless = exponent is not None and exponent.size == 1 and float(exponent.ravel()[0]) >= 1
    if place not in places.inputs or harmless or smallest >= facts.form.smallest_normal:
        return ""
    return f"it makes much of numbers as small as {number(smallest)}; {facts.form.label} has no digits there"


def _exact(node: onnx.NodeProto, _: Slots, facts: Facts) -> str:
    if not node.input:
        return ""
    form, reach = facts.form, facts.ranges.reach(node.input[0])
    if node.op_type in _PERIODIC and reach * 2.0**-form.digits > _PHASE_ERROR:
        return f"its angle reaches {number(reach)}, where {form.label} is off by {reach * 2.0**-form.digits:.2g}"
    to_whole = node.op_type == "Cast" and node.input[0] in facts.floats and cast_target(node) != FLOAT
    if (to_whole or node.op_type in _WHOLE) and reach > form.exact and math.isfinite(reach):
        return f"it counts to {number(reach)}; whole numbers in {form.label} are exact to {form.exact}"
    return ""


def _before_small(facts: Facts, names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the nodes that compute small numbers which a later node amplifies.

    A constant added, a mean, the squares in it.
    """
    for node in facts.graph.model.graph.node:
        places = slots(node, facts.floats, facts.form, facts.opset)
        if node.name not in names or isinstance(places, str) or not _small(node, places, facts):
            continue
        maker = facts.graph.producer(node.input[1 if node.op_type == "Div" else 0])
        while maker is not None and maker.op_type in _MAKING_SMALL:
            yield maker.name, f"it computes the small numbers that {node.name} makes much of"
            computed = [name for name in maker.input if facts.graph.constant(name) is None]
            going_on = maker.op_type not in {"Mul", "Pow"} and len(computed) == 1
            maker = facts.graph.producer(computed[0]) if going_on else None


def _behind_epsilons(facts: Facts, names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the nodes that divide by, or take the root of, a number kept from zero only by an epsilon."""
    for node in facts.graph.model.graph.node:
        if node.name not in names or node.op_type != "Add":
            continue
        stored = [c for c in map(facts.graph.constant, node.input) if c is not None and c.size == 1]
        if not any(facts.form.relative_error(c) > _ADDED_ERROR for c in stored):
            continue
        waiting = list(node.output)
        while waiting:
            tensor = waiting.pop()
            for user in facts.graph.consumers(tensor):
                if user.op_type in _AFTER_EPSILON and not (user.op_type == "Div" and user.input[1] != tensor):
                    yield user.name, f"only {node.name} keeps it from dividing by zero, with a constant too small"
                    waiting += [] if user.op_type == "Div" else list(user.output)


def _before_angles(facts: Facts, names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the nodes that compute an angle or an exact count, back to the previous layer with weights."""
    for node in facts.graph.model.graph.node:
        exact = node.op_type in _PERIODIC | _WHOLE | {"Cast"}
        if node.name not in names or not exact or not _exact(node, Slots(frozenset(), frozenset()), facts):
            continue
        waiting, visited = [node.input[0]], set()
        while waiting:
            maker = facts.graph.producer(waiting.pop())
            if maker is None or maker.name in visited or not is_float(maker, facts.floats):
                continue
            visited.add(maker.name)
            yield maker.name, f"it computes what {node.name} needs in full"
            if maker.op_type not in _LEARNED:
                waiting += list(maker.input)


def methods(
    model: onnx.ModelProto, samples: StoredCases, options: LoweringOptions, *, precision: Precision
) -> list[Method]:
    """Return the methods to lower a graph to FP16 or BF16: one, or none if every node must stay FP32.

    Args:
        model: in FP32, cleaned, its weights in memory; not changed.
        samples: calibration inputs; those of the largest shapes should be among them.
        options: what a person asked for.
        precision: FP16 or BF16.

    Raises:
        ExportError: the graph cannot be run, or there is nothing to run it on.
    """
    method = MeasuredMethod(model, samples, options, FORMATS[precision])
    return [method] if method.lowerable else []


class MeasuredMethod:
    """Mixed precision from measured ranges; see `Method`.

    Args:
        model: in FP32, its weights in memory; not changed.
        samples: calibration inputs.
        options: what a person asked for.
        form: the format to lower to.
    """

    def __init__(self, model: onnx.ModelProto, samples: StoredCases, options: LoweringOptions, form: Format) -> None:
        self.name = f"{form.label}, mixed by measured ranges"
        self.precision = form.precision
        self._form = form
        self._graph = Graph(_prepared(model, form))
        types = ranges.tensor_types(self._graph.model)
        floats = {name for name, kind in types.items() if kind == "tensor(float)"}
        measured = ranges.measure(self._graph, floats, lambda: (case.feed for case in samples), form.largest)
        masks = ranges.find(self._graph, floats, measured, form.limit)
        version = opset(self._graph.model)
        sequences = {name for name, kind in types.items() if not kind.startswith("tensor")}
        facts = Facts(self._graph, floats, measured, masks, form, version, sequences)
        self._reasons = reasons(facts, options.keep)
        self._plan = graph.Plan(floats, form, version, masks.ends, options.lower_io)
        low = graph.settle(self._graph, self._plan, self._reasons)
        computing = [n for n in self._graph.model.graph.node if any(o in floats for o in n.output)]
        self.lowerable = tuple(n.name for n in computing if n.name in low)
        between = "it only hands numbers from FP32 to FP32"
        self.high_reasons: Mapping[str, str] = self._reasons | {
            n.name: between for n in computing if n.name not in low and n.name not in self._reasons
        }
        self.settings: Mapping[str, str] = {
            "limit": f"magnitudes up to {number(form.limit)}, a quarter of the format's end",
            "inputs and outputs": form.label if options.lower_io else "FP32",
            "masks": f"end at {ranges.FLOOR:.0f} at {', '.join(masks.ends)}" if masks.ends else "none",
            "opset": str(version),
        }
        self.not_validated: tuple[str, ...] = (UNTRIED_KERNELS[form.precision],)

    def lower(self, keep: Collection[str]) -> onnx.ModelProto:
        """Return a lowered copy of the graph; see `Method`.

        Raises:
            ExportError: ONNX Runtime refuses what was written.
        """
        unknown = set(keep).difference(self.lowerable)
        if unknown:
            raise ValueError(f"not among the nodes that are lowered: {', '.join(sorted(unknown))}")
        low = graph.settle(self._graph, self._plan, {*self._reasons, *keep})
        lowered = graph.write(self._graph, self._plan, low)
        _require_loadable(lowered, self._form)
        return lowered

    def runnable(self, lowered: onnx.ModelProto) -> onnx.ModelProto:
        """Return the FP32 graph with every result rounded; on a CPU the lowered graph would hide overflows."""
        return twin(lowered, self._form)


def _prepared(model: onnx.ModelProto, form: Format) -> onnx.ModelProto:
    """A copy with names for all nodes, constants as initializers, and an opset that supports the format."""
    import onnx

    copy = _copied(model)
    forget_defaults(copy)
    graph = Graph(copy)
    for node in [n for n in graph.model.graph.node if n.op_type == "Constant"]:
        value = next((a.t for a in node.attribute if a.name == "value"), None)
        if value is not None and value.data_type == FLOAT:
            tensor = graph.model.graph.initializer.add()
            tensor.CopyFrom(value)
            tensor.name = node.output[0]
            graph.model.graph.node.remove(node)
    prepared = graph.model
    _forget_unused_domains(prepared)
    if gains(prepared, form):
        # Where the converter cannot do it, nodes without the format stay FP32, and say so.
        with suppress(onnx.version_converter.ConvertError, RuntimeError):
            prepared = onnx.version_converter.convert_version(prepared, form.opset)
            prepared.ir_version = max(model.ir_version, onnx.helper.find_min_ir_version_for(prepared.opset_import))
    return prepared


def _forget_unused_domains(model: onnx.ModelProto) -> None:
    """Remove unused operator sets that ONNX Runtime lists: other parsers fail on them."""
    used = {"", "ai.onnx", *(node.domain for node in onnx_files.all_nodes(model))}
    domains = [(o.domain, o.version) for o in model.opset_import if o.domain in used]
    del model.opset_import[:]
    for domain, version in domains:
        model.opset_import.add(domain=domain, version=version)


def _copied(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = type(model)()
    copy.CopyFrom(model)
    return copy


def _require_loadable(lowered: onnx.ModelProto, form: Format) -> None:
    """Require that ONNX Runtime loads a graph, as far as it has kernels for it.

    Raises:
        ExportError: it does not.
    """
    try:
        open_model(lowered, rewrites="none")
    except Exception as error:
        if form is BF16 and _LACKS_KERNEL in str(error):
            return  # it has checked all types by then
        raise ExportError(
            f"ONNX Runtime refuses the graph in {form.label}: {first_line(error)}",
            remedy="keep the node that it names in FP32: lowering: {keep: [...]}",
        ) from error
