"""Rules on branches and loops: what TensorRT's parser does not make of If, Loop and Scan.

From its table (docs/operators.md of onnx-tensorrt, TensorRT 10.15) and its importers (onnxOpImporters.cpp).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from plansmith.compilers.precision.lint.view import Finding, View, attribute, operand

if TYPE_CHECKING:
    import onnx

# A trip count from here on stands for "until the condition says so".
_ENDLESS = 2**31 - 1
_CARRIED_FROM = 2


def branches(view: View) -> Iterator[Finding]:
    """Both branches of an If give tensors of the same rank; of a constant condition only one branch is read."""
    for node in view.inside("If") if view.tensorrt else ():
        if view.is_constant(node.input[0]):
            continue
        then, other = attribute(node, "then_branch"), attribute(node, "else_branch")
        for one, two in zip(then.output, other.output, strict=False):
            shapes = view.shape(one.name), view.shape(two.name)
            if shapes[0] is not None and shapes[1] is not None and len(shapes[0]) != len(shapes[1]):
                words = f"gives {one.name!r} with {len(shapes[0])} axes in one branch and {len(shapes[1])} in the other"
                yield Finding("branch-ranks", "error", node.name, words, "give both branches the same number of axes")
        shared = sorted({v.name for v in then.output} & {v.name for v in other.output})
        if shared:
            words = f"names {shared[0]!r} in both branches, where TensorRT's table asks for different names"
            yield Finding("branch-names", "warning", node.name, words, "rename the output in one of them")


def loops(view: View) -> Iterator[Finding]:
    """What a loop gathers has as many entries as its trip count, and what it carries keeps its shape."""
    for node in view.inside("Loop") if view.tensorrt else ():
        body = attribute(node, "body")
        carried = max(0, len(node.input) - _CARRIED_FROM)
        if not operand(node, 1) and len(body.input) > 1 and _is_read(body, body.input[1].name):
            words = "leaves its condition out, and its body reads it"
            yield Finding("loop-condition", "error", node.name, words, "give the loop a condition that is true")
        if len(body.output) > 1 + carried and _is_endless(view, operand(node, 0)):
            words = "gathers outputs, and nothing but its condition says how many"
            yield Finding("loop-length", "error", node.name, words, "export the loop with a trip count")
        pairs = zip(body.input[_CARRIED_FROM:], body.output[1 : 1 + carried], strict=False)
        for before, after in pairs:
            if _differ(view, before.name, after.name):
                words = f"carries {before.name!r} from round to round with another shape"
                yield Finding("loop-shape", "error", node.name, words, "carry a tensor of one size and fill it")


def scans(view: View) -> Iterator[Finding]:
    """The importer of Scan takes the layer of its first state for its own, and fails where there is none."""
    for node in view.inside("Scan") if view.tensorrt else ():
        if len(node.input) <= attribute(node, "num_scan_inputs", 0):
            words = "carries no state, which TensorRT's parser does not read"
            yield Finding("scan-state", "error", node.name, words, "write it without a loop")


def _is_read(body: onnx.GraphProto, name: str) -> bool:
    return any(name in node.input for node in body.node) or any(output.name == name for output in body.output)


def _is_endless(view: View, count: str) -> bool:
    if not count:
        return True
    value = view.constant(count)
    return value is not None and int(value.ravel()[0]) >= _ENDLESS


def _differ(view: View, before: str, after: str) -> bool:
    """Whether two shapes have another rank, or other fixed sizes."""
    one, two = view.shape(before), view.shape(after)
    if one is None or two is None:
        return False
    return len(one) != len(two) or any(a != b for a, b in zip(one, two, strict=True) if None not in {a, b})


RULES = (branches, loops, scans)
