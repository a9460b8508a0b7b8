"""Which nodes stay FP32, and why: what calibration saw, held against what a format of sixteen bits can carry."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plansmith.compilers.precision.fp16.attention_masks import Masks
from plansmith.compilers.precision.fp16.format import FLOAT, Format, number
from plansmith.compilers.precision.fp16.operators import MOVES, Slots, cast_target, slots
from plansmith.compilers.precision.fp16.ranges import Ranges
from plansmith.compilers.precision.graph import Graph

if TYPE_CHECKING:
    import onnx

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


@dataclass(frozen=True)
class Facts:
    """All that the rules look at; `sequences` are the names of what is no tensor."""

    graph: Graph
    floats: Collection[str]
    ranges: Ranges
    masks: Masks
    form: Format
    opset: int
    sequences: Collection[str] = ()


def reasons(facts: Facts, keep: Sequence[str]) -> dict[str, str]:
    """The nodes that stay FP32, by name, with the reason in words.

    Args:
        facts: the graph and what calibration saw of it.
        keep: regular expressions of the user's; they match whole names.
    """
    found: dict[str, str] = {}
    for node in facts.graph.model.graph.node:
        if is_float(node, facts.floats):
            reason = _asked(node, keep) or _reason(node, facts)
            if reason:
                found[node.name] = reason
    for spread in (_behind_epsilons, _before_angles, _before_small):
        for name, reason in spread(facts, found):
            found.setdefault(name, reason)
    return found


def is_float(node: onnx.NodeProto, floats: Collection[str]) -> bool:
    """Whether a node takes or gives FP32."""
    return any(name in floats for name in (*node.input, *node.output))


def _asked(node: onnx.NodeProto, keep: Sequence[str]) -> str:
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
        what = f"the constant {number(float(stored.ravel()[0]))}" if stored.size == 1 else "a weight"
        largest = float(np.abs(stored).max())
        if not largest <= form.largest:
            reach = "" if stored.size == 1 else f" reaches {number(largest)}, and it"
            return f"{what}{reach} is beyond the end of {form.words} at {number(form.largest)}"
        error = form.relative_error(stored)
        if error > (_ADDED_ERROR if node.op_type in _ADDING else _FACTOR_ERROR):
            lost = "becomes 0" if error == 1 else f"changes by {error:.1%}"
            return f"{what} {lost} in {form.words}, whose digits end at {number(form.smallest_normal)}"
        if node.op_type == "BatchNormalization" and place == 4 and float(stored.min()) < form.smallest_normal:
            return f"a variance of {number(float(stored.min()))} is below the digits of {form.words}"
    return ""


def _reach(node: onnx.NodeProto, places: Slots, facts: Facts) -> str:
    form, ranges, clipped = facts.form, facts.ranges, facts.masks.ends.get(node.name)
    sides = [("output", node.output[p]) for p in sorted(places.outputs)]
    sides += [("input", node.input[p]) for p in sorted(places.inputs) if p != clipped]
    for side, name in sides:
        masked = name in facts.masks.reaching
        reach = max(0.0, ranges.high.get(name, 0.0)) if masked else ranges.reach(name)
        if reach > form.limit:
            end = f"{form.words} ends at {number(form.largest)}"
            return f"{side} reaches {number(reach)}, " + (f"too near to where {end}" if reach <= form.largest else end)
        if side == "output" and 0 < reach < form.smallest_normal and node.op_type not in MOVES:
            return (
                f"{side} stays below {number(reach)}; the digits of {form.words} end at {number(form.smallest_normal)}"
            )
    return ""


def _sum(node: onnx.NodeProto, _: Slots, facts: Facts) -> str:
    form, ranges = facts.form, facts.ranges
    partial = ranges.sums.get(node.name, 0.0)
    if partial > form.largest:  # magnitudes were added, which is headroom enough: signs make real sums much smaller
        return f"sums inside reach {number(partial)}; {form.words} ends at {number(form.largest)}"
    terms = ranges.terms.get(node.name, 0)
    if node.op_type in _MEANS and terms > form.exact:
        return f"it adds {terms} numbers; a sum in {form.words} stops growing after {form.exact} equal ones"
    if node.op_type in _SQUARING:
        return f"it adds up inside, where {form.words} runs out of range or digits first"
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
    return f"it makes much of numbers as small as {number(smallest)}; {facts.form.words} has no digits there"


def _exact(node: onnx.NodeProto, _: Slots, facts: Facts) -> str:
    if not node.input:
        return ""
    form, reach = facts.form, facts.ranges.reach(node.input[0])
    if node.op_type in _PERIODIC and reach * 2.0**-form.digits > _PHASE_ERROR:
        return f"its angle reaches {number(reach)}, where {form.words} is off by {reach * 2.0**-form.digits:.2g}"
    to_whole = node.op_type == "Cast" and node.input[0] in facts.floats and cast_target(node) != FLOAT
    if (to_whole or node.op_type in _WHOLE) and reach > form.exact and math.isfinite(reach):
        return f"it counts to {number(reach)}; whole numbers in {form.words} are exact to {form.exact}"
    return ""


def _before_small(facts: Facts, found: Collection[str]) -> Iterator[tuple[str, str]]:
    """What computes the small numbers that a node makes much of: a constant added, a mean, the squares in it."""
    for node in facts.graph.model.graph.node:
        places = slots(node, facts.floats, facts.form, facts.opset)
        if node.name not in found or isinstance(places, str) or not _small(node, places, facts):
            continue
        maker = facts.graph.producer(node.input[1 if node.op_type == "Div" else 0])
        while maker is not None and maker.op_type in _MAKING_SMALL:
            yield maker.name, f"it computes the small numbers that {node.name} makes much of"
            computed = [name for name in maker.input if facts.graph.constant(name) is None]
            going_on = maker.op_type not in {"Mul", "Pow"} and len(computed) == 1
            maker = facts.graph.producer(computed[0]) if going_on else None


def _behind_epsilons(facts: Facts, found: Collection[str]) -> Iterator[tuple[str, str]]:
    """What divides by, or takes the root of, a number that is not zero only because of a small constant."""
    for node in facts.graph.model.graph.node:
        if node.name not in found or node.op_type != "Add":
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


def _before_angles(facts: Facts, found: Collection[str]) -> Iterator[tuple[str, str]]:
    """What computes an angle or a count that must be exact, back to the next layer with weights of its own."""
    for node in facts.graph.model.graph.node:
        exact = node.op_type in _PERIODIC | _WHOLE | {"Cast"}
        if node.name not in found or not exact or not _exact(node, Slots(frozenset(), frozenset()), facts):
            continue
        waiting, seen = [node.input[0]], set()
        while waiting:
            maker = facts.graph.producer(waiting.pop())
            if maker is None or maker.name in seen or not is_float(maker, facts.floats):
                continue
            seen.add(maker.name)
            yield maker.name, f"it computes what {node.name} needs in full"
            if maker.op_type not in _LEARNED:
                waiting += list(maker.input)
