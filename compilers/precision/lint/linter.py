"""Lint of a lowered graph: what TensorRT's parser refuses, and what gives wrong numbers on any runtime.

A rule is a function from a `View` to findings, in one of the lists below; its docstring says where the rule comes from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from plansmith.compilers.precision.int8.format import FP8, INT8, UINT8, Format
from plansmith.compilers.precision.lint import operator_rules, qdq_rules, type_rules
from plansmith.compilers.precision.lint.view import Finding, View, operand
from plansmith.errors import ExportError
from plansmith.formatting import count
from plansmith.records.model import Component, EngineKind

if TYPE_CHECKING:
    import numpy as np
    import onnx
    from numpy.typing import NDArray

    from plansmith.data.reference import StoredCase


# A percentile of 99.9 and an entropy calibration cut off some thousandths.
CLIPPED_SHARE = 0.01
# MinMax over a long tail leaves much of the bulk below the first code; a range that is wrong leaves nearly all.
VANISHED_SHARE = 0.995
_TENSORS_AT_ONCE = 48

__all__ = ["RULES", "Finding", "accept", "lint", "refuse"]
_MOST_CASES = 4
_NAMED = 3


@dataclass
class _Count:
    """Counts over all batches: values, nonzero values, clipped ones, and ones rounded to zero."""

    values: int = 0
    others: int = 0
    clipped: int = 0
    vanished: int = 0

    def add(self, values: NDArray[np.generic], scale: float, zero: int, form: Format) -> None:
        import numpy as np

        levels = values.astype(np.float32).ravel() / np.float32(scale)
        nonzero = values.ravel() != 0
        self.values += levels.size
        self.others += int(nonzero.sum())
        # Half a step beyond the last code is still rounded, as every other value is.
        smallest, widest = form.step(np.array([0.0, form.largest])) / 2
        self.clipped += int(((levels + zero > form.largest + widest) | (levels + zero < form.least - widest)).sum())
        self.vanished += int((nonzero & (np.abs(levels) < smallest)).sum())


def calibration(view: View) -> Iterator[Finding]:
    """Check that scales fit the data: few values beyond the last code, and not nearly all below the first."""
    nodes = {node.input[0]: node for node in view.activations() if _parameters(view, node) is not None}
    tensors = list(nodes) if view.feeds else []
    for start in range(0, len(tensors), _TENSORS_AT_ONCE):
        counts = {tensor: _Count() for tensor in tensors[start : start + _TENSORS_AT_ONCE]}
        for values in view.run(list(counts)):
            for tensor, tally in counts.items():
                parameters = _parameters(view, nodes[tensor])
                assert parameters is not None
                tally.add(values[tensor], *parameters)
        for tensor, tally in counts.items():
            yield from _judge(nodes[tensor], tally)


def _judge(node: onnx.NodeProto, tally: _Count) -> Iterator[Finding]:
    clipped, vanished = tally.clipped / max(1, tally.values), tally.vanished / max(1, tally.others)
    if clipped > CLIPPED_SHARE:
        message = f"cuts off {clipped:.1%} of the values of {node.input[0]!r}"
        yield Finding("clipped-calibration", "error", node.name, message, "calibrate on data like this, or with minmax")
    elif vanished > VANISHED_SHARE:
        message = f"rounds {vanished:.1%} of the values of {node.input[0]!r} to zero"
        remedy = "calibrate with percentile or entropy, or keep what follows it high"
        yield Finding("vanished-values", "error", node.name, message, remedy)


def _parameters(view: View, node: onnx.NodeProto) -> tuple[float, int, Format] | None:
    """Scale, zero point and format of a QuantizeLinear to eight bits with one scale."""
    scale = view.constant(operand(node, 1))
    form = {"INT8": INT8, "UINT8": UINT8, "FLOAT8E4M3FN": FP8}.get(view.dtype(node.output[0]))
    zero = view.constant(operand(node, 2)) if operand(node, 2) else None
    if scale is None or scale.size != 1 or form is None or not float(scale.ravel()[0]) > 0:
        return None
    return float(scale.ravel()[0]), 0 if zero is None else int(zero.ravel()[0]), form


VALUE_RULES = (calibration,)


RULES = (
    *qdq_rules.SCALE_RULES,
    *qdq_rules.PLACEMENT_RULES,
    *type_rules.RULES,
    *operator_rules.SUPPORT_RULES,
    *operator_rules.LIMIT_RULES,
    *type_rules.TENSOR_RULES,
    *operator_rules.CONTROL_FLOW_RULES,
    *VALUE_RULES,
)


def lint(
    model: onnx.ModelProto,
    *,
    engine: EngineKind,
    samples: Iterable[StoredCase] | None = None,
    promised: Component | None = None,
    max_opset: int | None = None,
    mask_input: str | None = None,
) -> list[Finding]:
    """Lint a graph for what an engine refuses and for what makes results wrong; errors first.

    Args:
        model: the lowered graph, with its weights in memory; not changed.
        engine: what will run it.
        samples: inputs to run the graph on with ONNX Runtime, the first few of them; without any, nothing is said
            about whether the scales fit the data.
        promised: the interface of the graph before it was lowered.
        max_opset: the newest opset that the target reads.
        mask_input: the input that marks padding with 0, where no scale has to fit; None where there is none.
    """
    feeds = [case.feed for case in islice(samples or (), _MOST_CASES)]
    view = View(model, engine, feeds=feeds, promised=promised, max_opset=max_opset, mask_input=mask_input)
    static = [rule for rule in RULES if rule not in VALUE_RULES]
    findings = list(dict.fromkeys(finding for rule in static for finding in rule(view)))
    if not any(finding.severity == "error" for finding in findings):  # a graph that is wrong may not even run
        findings += [finding for rule in VALUE_RULES for finding in rule(view)]
    return sorted(findings, key=lambda finding: finding.severity != "error")


def accept(findings: Sequence[Finding], accepted: Sequence[str]) -> list[Finding]:
    """Downgrade errors with accepted IDs to warnings."""
    return [replace(f, severity="warning") if f.id in accepted else f for f in findings]


def refuse(findings: Sequence[Finding], *, subject: str = "the lowered graph") -> None:
    """Refuse a graph with errors; warnings are allowed.

    Args:
        findings: of the lint.
        subject: they were found in.

    Raises:
        ExportError: names the first errors, and how many there are.
    """
    errors = [finding for finding in findings if finding.severity == "error"]
    if not errors:
        return
    shown = _one_of_each(errors)[:_NAMED]
    more = len(errors) - len(shown)
    lines = [
        f"{subject} has {count(len(errors), 'error')}:",
        *(f"{' '.join(filter(None, (f.node, f.message)))} [{f.id}]" for f in shown),
        *([f"and {more} more"] if more else []),
    ]
    mend = "; ".join(dict.fromkeys(f.remedy for f in shown))
    identifiers = ", ".join(dict.fromkeys(f.id for f in errors))
    raise ExportError(
        "\n  ".join(lines), remedy=f"{mend}; or, to have it as it is, `lowering: {{accept: [{identifiers}]}}`"
    )


def _one_of_each(findings: Sequence[Finding]) -> list[Finding]:
    """Order findings: the first of each rule, then the others, so that different rules are shown first."""
    first = {finding.id: finding for finding in reversed(findings)}
    return sorted(findings, key=lambda finding: first[finding.id] is not finding)
