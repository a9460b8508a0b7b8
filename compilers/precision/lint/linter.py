"""What is wrong with a lowered graph: what TensorRT's parser refuses, and what gives wrong numbers anywhere.

A rule is a function from a `View` to findings, in one of the lists below; its docstring says where the rule comes from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from plansmith.compilers.precision.lint import (
    control_flow,
    operator_limits,
    parser_support,
    qdq_placement,
    qdq_scales,
    tensor_types,
    type_rules,
    value_rules,
)
from plansmith.compilers.precision.lint.view import Finding, View
from plansmith.errors import ExportError
from plansmith.records.model import Component, EngineKind

if TYPE_CHECKING:
    import onnx

    from plansmith.data.reference import StoredCase

__all__ = ["RULES", "Finding", "accept", "lint", "refuse"]

RULES = (
    *qdq_scales.RULES,
    *qdq_placement.RULES,
    *type_rules.RULES,
    *parser_support.RULES,
    *operator_limits.RULES,
    *tensor_types.RULES,
    *control_flow.RULES,
    *value_rules.RULES,
)
_MOST_CASES = 4
_NAMED = 3


def lint(
    model: onnx.ModelProto,
    *,
    engine: EngineKind,
    samples: Iterable[StoredCase] | None = None,
    promised: Component | None = None,
    max_opset: int | None = None,
    mask_input: str | None = None,
) -> list[Finding]:
    """Look for what an engine refuses and for what makes numbers wrong; errors first.

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
    static = [rule for rule in RULES if rule not in value_rules.RULES]
    findings = list(dict.fromkeys(finding for rule in static for finding in rule(view)))
    if not any(finding.severity == "error" for finding in findings):  # a graph that is wrong may not even run
        findings += [finding for rule in value_rules.RULES for finding in rule(view)]
    return sorted(findings, key=lambda finding: finding.severity != "error")


def accept(findings: Sequence[Finding], accepted: Sequence[str]) -> list[Finding]:
    """The same findings, where errors of some ids are warnings: somebody wants the graph all the same."""
    return [replace(f, severity="warning") if f.id in accepted else f for f in findings]


def refuse(findings: Sequence[Finding], *, what: str = "the lowered graph") -> None:
    """Let a graph pass that has no errors; warnings do not hold it up.

    Args:
        findings: of the lint.
        what: they were found in.

    Raises:
        ExportError: names the first errors, and how many there are.
    """
    errors = [finding for finding in findings if finding.severity == "error"]
    if not errors:
        return
    shown = _one_of_each(errors)[:_NAMED]
    more = len(errors) - len(shown)
    lines = [
        f"{what} has {len(errors)} error(s):",
        *(f"{' '.join(filter(None, (f.node, f.words)))} [{f.id}]" for f in shown),
        *([f"and {more} more"] if more else []),
    ]
    mend = "; ".join(dict.fromkeys(f.remedy for f in shown))
    known = ", ".join(dict.fromkeys(f.id for f in errors))
    raise ExportError("\n  ".join(lines), remedy=f"{mend}; or, to have it as it is, `lowering: {{accept: [{known}]}}`")


def _one_of_each(findings: Sequence[Finding]) -> list[Finding]:
    """The first finding of each rule, then the others: three of a kind say less than three kinds."""
    first = {finding.id: finding for finding in reversed(findings)}
    return sorted(findings, key=lambda finding: first[finding.id] is not finding)
