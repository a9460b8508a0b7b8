"""What is known of TensorRT plans, in lines for a person: what was built, what ran, how near and how fast it is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from plansmith.formatting import format_bytes, format_seconds
from plansmith.records.engine import UNKNOWN, BuildCheck, Engine, LayerSummary, Plan
from plansmith.records.model import Precision
from plansmith.records.validation import AGAINST, Against, BaselineSpeed, PlanSpeed, ValidationReport, baseline_name
from plansmith.report.text.precision import format_cosine

BUILDERS = {"api": "TensorRT's Python API", "trtexec": "trtexec"}


def check_lines(check: BuildCheck) -> Iterator[str]:
    """What TensorRT-RTX made of the graph on a CPU, with the precision of its layers and its warnings."""
    yield describe_check(check)
    if check.layers is not None:
        yield from (f"  {line}" for line in layer_lines(check.layers, check.precision))
    yield from (f"  {line}" for line in check.warnings)


def describe_check(check: BuildCheck) -> str:
    """Whether the graph was built, and by what."""
    kinds = ", ".join(check.compute_capabilities)
    judge = f"{check.library}'s parser and builder, not the target's"
    if check.verdict == "unknown":
        return f"not checked by {judge}: {check.reason}"
    kinds += f" (in place of {', '.join(check.in_place_of)})" if check.in_place_of else ""
    return f"built for compute capability {kinds} in {format_seconds(check.seconds)} by {judge}"


def plan_lines(engine: Engine, validation: ValidationReport) -> Iterator[str]:
    """Every plan with what it holds, how near it is and how fast; nothing for an engine that has none."""
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
    """What a plan is and how it was built."""
    words = [
        f"TensorRT {plan.tensorrt} on {plan.gpu.name}",
        format_bytes(plan.bytes),
        f"built in {format_seconds(plan.seconds)} by {BUILDERS[plan.builder]}",
    ]
    if plan.peak_host_bytes is not None:
        words.append(f"at most {format_bytes(plan.peak_host_bytes)} of memory")
    if plan.peak_device_bytes is not None:
        words.append(f"at most {format_bytes(plan.peak_device_bytes)} on the GPU")
    return ", ".join(words)


def layer_lines(layers: LayerSummary, precision: Precision) -> Iterator[str]:
    """How many layers there are, which came out in a higher precision, and which one takes longest."""
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
    """The worst of a plan's answers at all corners of its profiles, a line a graph that it stands beside."""
    for against, words in AGAINST.items():
        found = [c.found for c in validation.at_corners if c.plan == plan and c.against == against]
        if not found:
            continue
        corners = corner_count(validation, plan, against)
        failed = sum(bool(c.failures) for c in found)
        if failed:
            yield f"!! at {corners} corners of profiles beside {words}: {failed} of {len(found)} answers too far off"
            continue
        error, cosine = max(c.max_relative for c in found), min(c.min_cosine for c in found)
        yield (
            f"at {corners} corners of profiles beside {words}: largest error {error:.2g} of the output's magnitude,"
            f" smallest cosine {format_cosine(cosine)}"
        )


def corner_count(validation: ValidationReport, plan: str, against: Against) -> int:
    """At how many corners a plan was compared with a graph."""
    return len({(c.profile, c.corner) for c in validation.at_corners if c.plan == plan and c.against == against})


def speed_lines(validation: ValidationReport, plan: str) -> Iterator[str]:
    """How fast a plan is at the opt of each profile, alone and beside others, and what was on while it ran."""
    speeds = [speed for speed in validation.speeds if speed.plan == plan]
    for speed in speeds:
        yield f"profile {speed.profile!r} ({speed.shapes}): {format_latency(speed)}"
        yield from (f"  {describe_speedup(other)}" for other in speed.baselines)
    yield from (f"  {setting}" for setting, _ in groupby(speed.setting for speed in speeds))


def format_latency(speed: PlanSpeed) -> str:
    """The median and the quantiles that there are."""
    words = [milliseconds(speed.median_ms)]
    words += [
        f"{name} {milliseconds(n)}" for name, n in (("p95", speed.p95_ms), ("p99", speed.p99_ms)) if n is not None
    ]
    return ", ".join(words)


def describe_speedup(other: BaselineSpeed) -> str:
    """How much faster the plan is, or why nothing tells."""
    name = baseline_name(other)
    if other.speed is None:
        return f"not measured beside {name}: {other.problem}"
    found = other.speed
    doubt = "" if found.verdict == "faster" else f": {found.verdict}"
    return f"{found.ratio:.2f} times as fast as {name} (95 % interval {found.low:.2f} to {found.high:.2f}{doubt})"


def milliseconds(value: float) -> str:
    """A latency with three digits that count: 0.0421 ms, 1.23 ms, 118 ms."""
    return f"{value:.3g} ms" if value < 1000 else f"{value:,.0f} ms"
