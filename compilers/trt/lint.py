"""Graph lint before a plan build: what TensorRT's parser refuses or gets wrong, in seconds on a CPU.

The rules of the lint of lowered graphs that need no weights, for the TensorRT of the target; and rules on the shapes
that profiles settle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.compilers.precision.graph import names_inside
from plansmith.compilers.precision.lint import linter, operator_rules, type_rules
from plansmith.compilers.precision.lint.linter import RULES, accept, refuse
from plansmith.compilers.precision.lint.view import Finding, View, version_of
from plansmith.compilers.precision.requests import LintPlanRequest, LintWarnings
from plansmith.compilers.shape_inputs import inputs_that_decide, shape_inputs
from plansmith.compilers.trt.rtx import API
from plansmith.records.engine import OptimizationProfile
from plansmith.records.model import ANONYMOUS, BATCH, Component, EngineKind, InputRange

if TYPE_CHECKING:
    import onnx


Profiles = Sequence[OptimizationProfile]

# What comes out of these has as many entries as their input's contents say.
_COUNTING = ("Compress", "NonMaxSuppression", "NonZero", "Unique")
_ENDS = ("Shape", "Size")
# These give the shape of their first input.
_OF_THE_FIRST = ("Scatter", "ScatterElements", "ScatterND", "TensorScatter")
_MOST_SHAPE_VALUES = 64

# What reads every weight has been done where a graph was lowered, and says nothing of one in FP32.
_READING = (type_rules.constants, *linter.VALUE_RULES)
GRAPH_RULES = tuple(rule for rule in RULES if rule not in _READING)
# What the parser and the builder say themselves: not asked where they took the graph. The other rules know of mistakes
# that they make in silence, or of other versions.
PARSER_RULES = (operator_rules.limits, operator_rules.ranks, *operator_rules.CONTROL_FLOW_RULES)


def settled(view: View, profiles: Profiles) -> Iterator[Finding]:
    """Report dynamic dims missing from a profile: TensorRT's builder refuses them, trtexec uses 1."""
    holding = shape_inputs(view.model)
    varying = [name for name in _inputs(view) if name not in holding and None in (view.shape(name) or ())]
    if varying and not profiles:
        message = f"takes {', '.join(map(repr, varying))} of sizes that vary, and there is no profile"
        yield Finding("no-profile", "error", "", message, "give the ranges: `shapes`, or `tensorrt: {profiles: ...}`")
    for profile in profiles:
        missing = [name for name in varying if name not in profile.shapes]
        if missing:
            message = f"takes {', '.join(map(repr, missing))}, which profile {profile.name!r} does not name"
            yield Finding("no-profile", "error", "", message, f"give the range of {missing[0]} in every profile")
        unknown = sorted({*profile.shapes, *profile.values} - set(_inputs(view)))
        if unknown:
            message = f"has no input {unknown[0]!r}, which profile {profile.name!r} names"
            yield Finding("profile-shape", "error", "", message, f"its inputs are {', '.join(_inputs(view))}")


def fitting(view: View, profiles: Profiles) -> Iterator[Finding]:
    """Report invalid profiles: rank, static sizes, 0 <= min <= opt <= max (IOptimizationProfile::setDimensions)."""
    for profile in profiles:
        for name, input_range in profile.shapes.items():
            shape = view.shape(name)
            problem = _misfit(shape, input_range) if shape is not None else ""
            if problem:
                message = f"takes {name!r}, of which profile {profile.name!r} {problem} ({input_range})"
                yield Finding("profile-shape", "error", "", message, f"mend the range of {name}")


def shape_values(view: View, profiles: Profiles) -> Iterator[Finding]:
    """Report invalid shape inputs: a profile gives their values (setShapeValues), at most 64 integers of rank 0 or 1.

    Larger inputs whose contents decide a size make TensorRT wait for the device in the middle of a run.
    """
    holding = shape_inputs(view.model)
    for name, taker in inputs_that_decide(view.model).items():
        if name not in holding:
            message = f"takes a size from the contents of {name!r}, which TensorRT may refuse"
            yield Finding(
                "deciding-contents", "warning", taker, message, "compute sizes from shapes in the model's code"
            )
    for name in holding:
        shape = view.shape(name)
        without = [profile.name for profile in profiles if name not in profile.values]
        if shape and (shape[0] is None or shape[0] > _MOST_SHAPE_VALUES):
            message = f"holds a shape of {shape[0] or 'any number of'} values; TensorRT reads {_MOST_SHAPE_VALUES}"
            remedy = "make it a constant of the model"
            yield Finding("shape-values", "error", "", f"input {name!r} {message}", remedy)
        elif without or not profiles:
            where = f"profile {without[0]!r}" if without else "nothing"
            message = f"input {name!r} holds a shape, and {where} says which values it takes"
            remedy = "make it a constant of the model, or give its values as min:opt:max in every profile"
            yield Finding("shape-values", "error", "", message, remedy)


def counted_outputs(view: View, profiles: Profiles) -> Iterator[Finding]:
    """Report data-dependent outputs: Triton allocates them late, and cannot split them by request.

    Triton's TensorRT backend, pull request 72 (output allocators); its replies are cut along the first axis.
    """
    del profiles
    promised = view.promised
    if promised is None:
        return
    input_dims = {dim for tensor in promised.inputs for dim in tensor.dims} - {ANONYMOUS}
    batched = any(tensor.dims[:1] == (BATCH,) for tensor in promised.inputs)
    for output in promised.outputs:
        free = [place for place, dim in enumerate(output.dims) if isinstance(dim, str) and dim not in input_dims]
        maker = _counter(view, output.name) if free else None
        if maker is None:
            continue
        message = f"gives {output.name!r} as many entries as the contents of an input say ({maker.op_type})"
        if batched and 0 in free:
            remedy = "give a fixed number of entries per sample and pad them, or set engine: onnxruntime"
            yield Finding("counted-output", "error", maker.name, f"{message}, and no axis of samples", remedy)
        else:
            remedy = "see that clients take replies of any length"
            yield Finding("counted-output", "warning", maker.name, message, remedy)


def _inputs(view: View) -> list[str]:
    constants = {tensor.name for tensor in view.model.graph.initializer}
    return [value.name for value in view.model.graph.input if value.name not in constants]


def _misfit(shape: list[int | None], input_range: InputRange) -> str:
    if len(shape) != len(input_range.min):
        return f"gives {len(input_range.min)} axes and not {len(shape)}"
    places = list(zip(shape, input_range.min, input_range.opt, input_range.max, strict=True))
    if any(size is not None and {low, usual, high} != {size} for size, low, usual, high in places):
        return "changes a fixed size"
    return "is not 0 <= min <= opt <= max" if any(not 0 <= a <= b <= c for _, a, b, c in places) else ""


def _counter(view: View, tensor: str) -> onnx.NodeProto | None:
    """The node that computes a tensor's length from a count; None where only its shape is used."""
    waiting, visited = [tensor], set[str]()
    while waiting:
        name = waiting.pop()
        maker = view.producer(name)
        if maker is None or name in visited:
            continue
        visited.add(name)
        if maker.op_type in _COUNTING:
            return maker
        if maker.op_type in _OF_THE_FIRST:
            waiting.append(maker.input[0])
        elif maker.op_type not in _ENDS:
            waiting += [source for source in (*maker.input, *names_inside(maker)) if source]
    return None


SHAPE_RULES = (settled, fitting, shape_values, counted_outputs)


def lint_for_plan(
    path: Path,
    *,
    profiles: Sequence[OptimizationProfile],
    component: Component,
    tensorrt: str,
    plugins: bool = False,
    built: bool = False,
) -> list[Finding]:
    """Lint a graph for what prevents a correct plan; errors first.

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
    findings = [finding for rule in rules for finding in rule(view)]
    findings += [finding for rule in SHAPE_RULES for finding in rule(view, profiles)]
    foreign = {finding.id for finding in findings} & {"foreign-operator", "library-plugin"}
    if foreign or plugins:  # ONNX cannot infer anything behind what it does not know
        findings = [finding for finding in findings if finding.id != "inference"]
    return sorted(dict.fromkeys(findings), key=lambda finding: finding.severity != "error")


def refuse_unparsable(findings: Sequence[Finding], accepted: Sequence[str], *, tensorrt: str) -> list[str]:
    """Refuse a graph with errors, except those that the user accepts.

    Returns:
        What is doubtful, a line each.

    Raises:
        ExportError: TensorRT would refuse the graph, or get it wrong; names the node, the reason, what to do.
    """
    left = accept(findings, accepted)
    refuse(left, subject=f"the graph, for TensorRT {tensorrt},")
    return [f"{' '.join(filter(None, (f.node, f.message)))} [{f.id}]" for f in left]


def lint_plan(request: LintPlanRequest, progress: Callable[[str], None]) -> LintWarnings:
    """Lint a graph for TensorRT in the worker, before a GPU is occupied.

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
