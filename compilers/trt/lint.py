"""A graph looked over before a plan is built of it: what TensorRT's parser refuses or gets wrong, in seconds on a CPU.

The rules of the lint of lowered graphs that need no weights, for the TensorRT of the target; and those of
`lint_shapes`, on the shapes that profiles settle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from plansmith.compilers.precision.lint import control_flow, operator_limits, type_rules, value_rules
from plansmith.compilers.precision.lint.linter import RULES, Finding, accept, refuse
from plansmith.compilers.precision.lint.parser_table import version_of
from plansmith.compilers.precision.lint.view import View
from plansmith.compilers.precision.requests import LintPlanRequest, LintWarnings
from plansmith.compilers.trt import lint_shapes
from plansmith.compilers.trt.check.library import API
from plansmith.records.engine import OptimizationProfile
from plansmith.records.model import Component, EngineKind

# What reads every weight has been done where a graph was lowered, and says nothing of one in FP32.
_READING = (type_rules.constants, *value_rules.RULES)
GRAPH_RULES = tuple(rule for rule in RULES if rule not in _READING)

# What the parser and the builder say themselves: not asked where they took the graph. The other rules know of mistakes
# that they make in silence, or of other versions.
PARSER_RULES = (operator_limits.limits, operator_limits.ranks, *control_flow.RULES)


def lint_for_plan(
    path: Path,
    *,
    profiles: Sequence[OptimizationProfile],
    component: Component,
    tensorrt: str,
    plugins: bool = False,
    built: bool = False,
) -> list[Finding]:
    """Look for what keeps TensorRT from making a right plan of a graph; errors first.

    Weights beside the graph are not read, but for single ones that a rule asks about.

    Args:
        path: the ONNX file.
        profiles: that the plan is to have.
        component: the interface of the graph.
        tensorrt: the version of the target, such as "10.16" or "11.4.0.106".
        plugins: the build brings libraries of plugins.
        built: TensorRT-RTX has built it.
    """
    import onnx

    model = onnx.load(path, load_external_data=False)
    view = View(model, EngineKind.TENSORRT, promised=component, tensorrt=tensorrt, plugins=plugins, folder=path.parent)
    same_parser = built and version_of(tensorrt)[0] == version_of(API)[0]
    rules = [rule for rule in GRAPH_RULES if not (same_parser and rule in PARSER_RULES)]
    found = [finding for rule in rules for finding in rule(view)]
    found += [finding for rule in lint_shapes.RULES for finding in rule(view, profiles)]
    foreign = {finding.id for finding in found} & {"foreign-operator", "library-plugin"}
    if foreign or plugins:  # ONNX cannot infer anything behind what it does not know
        found = [finding for finding in found if finding.id != "inference"]
    return sorted(dict.fromkeys(found), key=lambda finding: finding.severity != "error")


def refuse_unparsable(findings: Sequence[Finding], accepted: Sequence[str], *, tensorrt: str) -> list[str]:
    """Let a graph pass in which there are no errors, or none but those that a person accepts.

    Returns:
        What is doubtful, a line each.

    Raises:
        ExportError: TensorRT would refuse the graph, or get it wrong; names the node, the reason, what to do.
    """
    left = accept(findings, accepted)
    refuse(left, what=f"the graph, for TensorRT {tensorrt},")
    return [f"{' '.join(filter(None, (f.node, f.words)))} [{f.id}]" for f in left]


def lint_plan(request: LintPlanRequest, progress: Callable[[str], None]) -> LintWarnings:
    """Look for what TensorRT would refuse in a graph, in the worker, before a GPU is kept busy with it.

    Raises:
        ExportError: as for `refuse_unparsable`.
    """
    component, tensorrt = request.lowered.components["model"], request.tensorrt
    progress(f"looking for what TensorRT {tensorrt} would refuse")
    findings = lint_for_plan(
        request.folder / component.file,
        profiles=request.profiles,
        component=component,
        tensorrt=tensorrt,
        plugins=request.plugins,
        built=request.built,
    )
    return LintWarnings(warnings=tuple(refuse_unparsable(findings, request.accepted, tensorrt=tensorrt)))
