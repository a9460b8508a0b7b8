"""Text rendering of lowerings, TensorRT plans and pipelines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import groupby, islice

from plansmith.formatting import format_bytes, format_seconds
from plansmith.records.engine import UNKNOWN, BuildCheck, Engine, LayerSummary, Plan
from plansmith.records.model import DataSet, LoweredModel, OnnxModel, Precision, SpeedRatio
from plansmith.records.pipeline import MODEL_PART, Pipeline, Script
from plansmith.records.validation import (
    AGAINST,
    Against,
    BaselineSpeed,
    Evaluation,
    OutputAgreement,
    PlanSpeed,
    ValidationReport,
    baseline_name,
)

_MEASURED_AS = {
    "same_first": ("first class", {"same first class", "same class of a token"}),
    "same_neighbour": ("nearest neighbour", {"same nearest neighbour"}),
}
"""What an agreement counts, its name, and the measures that tell the same with an interval."""

_EVIDENCE = {"shipped": "plansmith's own samples", "drawn": "values drawn at random"}

_MOST_OPERATORS = 5

_FEWEST_DIGITS, _MOST_DIGITS = 4, 9

_ROUNDING = 1e-6

BUILDERS = {"api": "TensorRT's Python API", "trtexec": "trtexec"}


def recipe_lines(lowered: LoweredModel) -> Iterator[str]:
    """Return lines on how a graph was lowered, its size and its speed; none if it was not lowered."""
    recipe = lowered.recipe
    if recipe is None:
        return
    operators = _counted(recipe.lowered)
    exceptions = f"; {len(recipe.kept)} {'node stays' if len(recipe.kept) == 1 else 'nodes stay'} higher"
    yield f"{recipe.method}: {operators} lowered{exceptions if recipe.kept else ''}" if operators else recipe.method
    chosen = next((trial for trial in lowered.trials if trial.chosen), None)
    if chosen is None:
        return
    share = f", {chosen.file_bytes / lowered.fp32_bytes:.2f} of FP32" if lowered.fp32_bytes else ""
    yield f"{format_bytes(chosen.file_bytes)}{share}"
    if chosen.speed is not None:
        yield format_speedup(chosen.speed)
        yield f"  {chosen.speed.setting}"


def format_speedup(speed: SpeedRatio) -> str:
    """Format a ratio with its interval, and the limits of its conclusion."""
    doubt = "" if speed.verdict == "faster" else f": {speed.verdict}"
    return f"{speed.ratio:.2f} times as fast as FP32 (95 % interval {speed.low:.2f} to {speed.high:.2f}{doubt})"


def describe_choice(lowered: LoweredModel) -> str:
    """Describe a choice by speed and its alternatives; names precisions without a passing recipe."""
    ratios: dict[Precision, list[float]] = {}
    for trial in lowered.trials:
        ratios.setdefault(trial.precision, []).extend([trial.speed.ratio] if trial.speed and not trial.problem else [])
    descriptions = [
        f"{precision} {max(values):.2f} times as fast as fp32" if values else f"no {precision} that can be taken"
        for precision, values in ratios.items()
    ]
    return f"auto took {lowered.precision}: {', '.join(descriptions) or 'nothing lower was tried'}"


def describe_output_agreement(evaluation: Evaluation, agreement: OutputAgreement) -> str:
    """Describe how close one output is to FP32, except where a task metric reports it anyway."""
    parts = [
        f"mean cosine {format_cosine(agreement.mean_cosine)}",
        f"worst {format_cosine(agreement.min_cosine)}",
        f"SQNR {agreement.sqnr_db:.1f} dB",
    ]
    if agreement.kl is not None:
        parts.append(f"KL {agreement.kl:.2g} nats")
    measured = {metric.name for metric in evaluation.metrics}
    for field, (name, measures) in _MEASURED_AS.items():
        share = getattr(agreement, field)
        if share is not None and measured.isdisjoint(measures):
            parts.append(f"the same {name} in {share:.1%}")
    if agreement.first_among_five is not None:
        parts.append(f"FP32's class among the first five in {agreement.first_among_five:.1%}")
    return ", ".join(parts)


def evaluation_lines(evaluation: Evaluation) -> Iterator[tuple[str, bool]]:
    """Return held-out results, a line per output and metric, and whether they are within the limits."""
    for agreement in evaluation.agreements:
        yield f"{agreement.output}: {describe_output_agreement(evaluation, agreement)}", not agreement.failures
    for metric in evaluation.metrics:
        yield metric.summary(), not metric.failures


def describe_held_out(evaluation: Evaluation) -> str:
    """Describe the number of samples, and their source."""
    return f"{evaluation.samples} held-out samples of {evaluation.data}"


def doubts(validation: ValidationReport) -> Iterator[str]:
    """Return untested doubts: lowering without real inputs, and what could not run on this machine."""
    is_lowered = validation.precision not in (None, Precision.FP32)
    if is_lowered and validation.evidence not in (None, "given"):
        own = _EVIDENCE[validation.evidence]
        searched = ", which the search for its recipe had looked at too" if validation.searched else ""
        yield (
            f"{validation.precision} was judged on {own} alone{searched}: give real ones with --data, and keep some for"
            " `evaluation`"
        )
    for note in validation.not_validated:
        yield f"not validated: {note}"


def format_cosine(cosine: float) -> str:
    """Format a cosine with two digits of its distance from 1, truncated, not rounded up.

    0.9986, 0.99995, 1.000000000.
    """
    digits = 1 + math.ceil(-math.log10(max(1 - cosine, 10.0**-_MOST_DIGITS)))
    digits = min(max(digits, _FEWEST_DIGITS), _MOST_DIGITS)
    return f"{math.floor(cosine * 10**digits + _ROUNDING) / 10**digits:.{digits}f}"


def _counted(operators: Mapping[str, int]) -> str:
    """Format operators with their counts, most frequent first."""
    named = [f"{count} {operator}" for operator, count in islice(operators.items(), _MOST_OPERATORS)]
    others = sum(islice(operators.values(), _MOST_OPERATORS, None))
    return ", ".join([*named, f"{others} other nodes"] if others else named)


def check_lines(check: BuildCheck) -> Iterator[str]:
    """Return TensorRT-RTX's results on the graph on a CPU, with layer precisions and warnings."""
    yield describe_check(check)
    if check.layers is not None:
        yield from (f"  {line}" for line in layer_lines(check.layers, check.precision))
    yield from (f"  {line}" for line in check.warnings)


def describe_check(check: BuildCheck) -> str:
    """Describe whether the graph was built, and by what."""
    kinds = ", ".join(check.compute_capabilities)
    judge = f"{check.library}'s parser and builder, not the target's"
    if check.verdict == "unknown":
        return f"not checked by {judge}: {check.reason}"
    kinds += f" (in place of {', '.join(check.in_place_of)})" if check.in_place_of else ""
    return f"built for compute capability {kinds} in {format_seconds(check.seconds)} by {judge}"


def plan_lines(engine: Engine, validation: ValidationReport) -> Iterator[str]:
    """Return lines on every plan: contents, accuracy and speed; none for an engine without plans."""
    if engine.build_check is not None:
        yield from check_lines(engine.build_check)
    for capability, plan in engine.plans.items():
        yield f"plan for compute capability {capability}: {describe_build(plan)}"
        if (summary := validation.layers.get(capability, plan.layer_summary)) is not None:
            yield from (f"  {line}" for line in layer_lines(summary, engine.precision))
        yield from (f"  {line}" for line in plan.warnings)
        yield from (f"  {line}" for line in corner_lines(validation, capability))
        yield from (f"  {line}" for line in speed_lines(validation, capability))
    if engine.plans and not validation.ran:
        yield "nothing here ran on TensorRT"


def describe_build(plan: Plan) -> str:
    """Describe a plan and its build."""
    parts = [
        f"TensorRT {plan.tensorrt} on {plan.gpu.name}",
        format_bytes(plan.bytes),
        f"built in {format_seconds(plan.seconds)} by {BUILDERS[plan.builder]}",
    ]
    if plan.peak_host_bytes is not None:
        parts.append(f"at most {format_bytes(plan.peak_host_bytes)} of memory")
    if plan.peak_device_bytes is not None:
        parts.append(f"at most {format_bytes(plan.peak_device_bytes)} on the GPU")
    return ", ".join(parts)


def layer_lines(layers: LayerSummary, precision: Precision) -> Iterator[str]:
    """Return the number of layers, those in a higher precision, and the slowest one."""
    time = f", {milliseconds(layers.milliseconds)} together" if layers.milliseconds is not None else ""
    dtypes = ", ".join(
        f"{n} {'untold' if dtype == UNKNOWN else f'in {dtype}'}" for dtype, n in layers.computing.items()
    )
    multiply = f", of which {sum(layers.computing.values())} multiply or convolve: {dtypes}" if dtypes else ""
    yield f"{layers.layers} layers{time}{multiply}"
    if layers.above_count:
        named = ", ".join((*layer.nodes, layer.name)[0] for layer in layers.above[:3])
        more = ", …" if layers.above_count > len(layers.above[:3]) else ""
        stay = "layer stays" if layers.above_count == 1 else "layers stay"
        yield f"{layers.above_count} compute {stay} above {precision}, as in the graph: {named}{more}"
    if layers.slowest:
        slowest = layers.slowest[0]
        yield f"slowest: {slowest.name} ({slowest.kind}), {milliseconds(slowest.milliseconds or 0.0)}"


def corner_lines(validation: ValidationReport, plan: str) -> Iterator[str]:
    """Return the worst plan answers over all corners of its profiles, a line per graph compared with."""
    for against, label in AGAINST.items():
        comparisons = [c.found for c in validation.at_corners if c.plan == plan and c.against == against]
        if not comparisons:
            continue
        corners = corner_count(validation, plan, against)
        failed = sum(bool(c.failures) for c in comparisons)
        if failed:
            yield (
                f"!! at {corners} corners of profiles beside {label}: {failed}"
                f" of {len(comparisons)} answers too far off"
            )
            continue
        error, cosine = max(c.max_relative for c in comparisons), min(c.min_cosine for c in comparisons)
        yield (
            f"at {corners} corners of profiles beside {label}: largest error {error:.2g} of the output's magnitude,"
            f" smallest cosine {format_cosine(cosine)}"
        )


def corner_count(validation: ValidationReport, plan: str, against: Against) -> int:
    """Describe at how many corners a plan was compared with a graph."""
    return len({(c.profile, c.corner) for c in validation.at_corners if c.plan == plan and c.against == against})


def speed_lines(validation: ValidationReport, plan: str) -> Iterator[str]:
    """Return a plan's speed at the opt shape of each profile, alone and against baselines, with the active settings."""
    speeds = [speed for speed in validation.speeds if speed.plan == plan]
    for speed in speeds:
        yield f"profile {speed.profile!r} ({speed.shapes}): {format_latency(speed)}"
        yield from (f"  {describe_speedup(baseline)}" for baseline in speed.baselines)
    yield from (f"  {setting}" for setting, _ in groupby(speed.setting for speed in speeds))


def format_latency(speed: PlanSpeed) -> str:
    """Format the median and the available quantiles."""
    parts = [milliseconds(speed.median_ms)]
    parts += [
        f"{name} {milliseconds(n)}" for name, n in (("p95", speed.p95_ms), ("p99", speed.p99_ms)) if n is not None
    ]
    return ", ".join(parts)


def describe_speedup(baseline: BaselineSpeed) -> str:
    """Describe the speedup of the plan, or why it is unknown."""
    name = baseline_name(baseline)
    if baseline.speed is None:
        return f"not measured beside {name}: {baseline.problem}"
    speedup = baseline.speed
    doubt = "" if speedup.verdict == "faster" else f": {speedup.verdict}"
    return f"{speedup.ratio:.2f} times as fast as {name} (95 % interval {speedup.low:.2f} to {speedup.high:.2f}{doubt})"


def milliseconds(value: float) -> str:
    """Format a latency with three significant digits: 0.0421 ms, 1.23 ms, 118 ms."""
    return f"{value:.3g} ms" if value < 1000 else f"{value:,.0f} ms"


def describe_route(pipeline: Pipeline) -> str:
    """Describe the parts in the order in which a request passes through them."""
    parts = [part.name for part in pipeline.before] + [MODEL_PART] + [part.name for part in pipeline.after]
    return f"{pipeline.input} in, {pipeline.output} out: {' → '.join(parts)}"


def describe_agreement(pipeline: Pipeline) -> str:
    """Describe how the pipeline's answers agree with the source's own library, on this machine and without a server."""
    rows = sum(case.rows for case in pipeline.cases)
    summary = f"{rows} raw samples in {len(pipeline.cases)} requests"
    if not pipeline.agreements:
        return f"{summary}; not compared with {pipeline.source} here"
    others = [agreement for agreement in pipeline.agreements if not agreement.same]
    less = f"; not quite the same in {len(others)} of them" if others else ""
    return f"{summary} got the answers of {pipeline.source}{less}"


def isolation_lines(onnx: OnnxModel, data: DataSet | None) -> Iterator[str]:
    """Yield whether code that came with the model or is the user's ran isolated; nothing if there was none."""
    for isolation in dict.fromkeys([onnx.isolation, data.isolation if data is not None else None]):
        if isolation is not None and isolation.complete:
            yield "code that is not plansmith's ran without network and credentials"
        elif isolation is not None:
            yield f"code that is not plansmith's ran with network and credentials: {isolation.problem}"


def script_lines(script: Script | None) -> Iterator[str]:
    """Return the outputs of a script and what it answers; none without a script."""
    if script is None:
        return
    yield f"a script asks them, and answers with {', '.join(tensor.name for tensor in script.outputs)}"
    rows = sum(case.rows for case in script.cases)
    left = f"; it refuses {', '.join(script.refused)}" if script.refused else ""
    yield f"{rows} raw samples in {len(script.cases)} requests, answered with the sources' own libraries{left}"


def pipeline_lines(pipeline: Pipeline | None) -> Iterator[str]:
    """Return lines on route and agreement; none without a pipeline."""
    if pipeline is not None:
        yield describe_route(pipeline)
        yield describe_agreement(pipeline)
