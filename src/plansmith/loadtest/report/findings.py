"""The findings of a load test in a few sentences: best throughput, knee of the latency, failures, how it ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from plansmith.errors import EnvironmentFault, PlansmithError, ServedCheckError
from plansmith.loadtest.results import LoadReport, ModelStatistics, StageResult

_ENDINGS = {
    "done": "It ended as planned",
    "threshold": "It was ended early",
    "server-lost": "It ended without its server",
    "client-lost": "It ended without its client",
    "interrupted": "It was interrupted",
}
_MAX_ERROR_RATE = 0.01
_FEW_REQUESTS = 100
"""Of fewer answers, the slowest percent is not even one."""


def summary(report: LoadReport) -> tuple[str, ...]:
    """The findings, a sentence each, the most important first."""
    ending = () if report.ending == "done" else (ending_sentence(report),)
    return (*ending, *saturation_sentences(report), *throughput_sentences(report), *failure_sentences(report))


def failure_of(report: LoadReport) -> PlansmithError | None:
    """What makes a test unsuccessful; None where it came to its end, to a threshold, or was interrupted."""
    if report.ending == "interrupted":
        return None
    if report.ending == "server-lost":
        return ServedCheckError(report.reason, remedy="read the log of the server")
    if report.ending == "client-lost":
        return EnvironmentFault(report.reason, remedy="read client.log beside the report")
    requests = sum(result.stats.requests for result in report.stages)
    if requests and requests == sum(result.stats.failed for result in report.stages):
        return ServedCheckError("no request was answered", remedy="correct what the first failure names")
    saturated = [result for result in report.stages if not result.is_valid]
    if saturated:
        return EnvironmentFault(
            f"the client was saturated in {len(saturated)} of {len(report.stages)} stages, whose figures are withheld:"
            f" {saturated[0].client.saturated.rpartition(': ')[0]}",
            remedy=saturated[0].client.saturated.rpartition(": ")[2],
        )
    return None


def best_stage(report: LoadReport) -> StageResult | None:
    """The stage with the highest throughput of those with at most 1 % failures, or else of all with figures."""
    answered = [result for result in report.stages if result.stats.throughput and result.stats.latency]
    good = [result for result in answered if result.stats.error_rate <= _MAX_ERROR_RATE]
    return max(good or answered, key=lambda result: result.stats.throughput or 0.0, default=None)


def knee(results: Sequence[StageResult]) -> StageResult | None:
    """The stage beyond which latency grows faster than throughput.

    There the power, throughput divided by mean latency, is highest (Kleinrock, Power and deterministic rules of thumb
    for probabilistic problems in computer communications, 1979).

    Returns:
        None where the load does not rise from stage to stage, or fewer than three have figures.
    """
    valid = [result for result in results if result.stats.throughput and result.stats.latency]
    if len(valid) < 3 or not is_rising(valid):
        return None

    def power(result: StageResult) -> float:
        latency = result.stats.latency
        return (result.stats.throughput or 0.0) / latency.mean_ms if latency else 0.0

    return max(valid, key=power)


def load_of(result: StageResult) -> float | None:
    """The load of a stage: users, or requests per second; None where it is unknown."""
    stage = result.stage
    return stage.users if stage.users is not None else stage.rate if stage.rate is not None else result.offered


def is_rising(results: Sequence[StageResult]) -> bool:
    """Whether all stages are of one loop, and each has more load than the previous one."""
    loads = [load_of(result) for result in results]
    numbers = [load for load in loads if load is not None]
    is_one_loop = len({result.loop for result in results}) == 1
    return is_one_loop and len(numbers) == len(loads) and all(before < after for before, after in pairwise(numbers))


def statistics_of(result: StageResult, model: str) -> ModelStatistics | None:
    """Triton's statistics of a tested model; of an ensemble, which has no queue, those of its slowest member."""
    members = [served for served in result.server_models if model in served.member_of]
    if members:
        return max(members, key=lambda served: served.queue_ms + served.compute_ms)
    return next((served for served in result.server_models if served.model == model), None)


def ending_sentence(report: LoadReport) -> str:
    """How it ended and why, and what of the plan was not done."""
    reason = "" if report.ending == "interrupted" else report.reason.rstrip(".")
    ending = f"{_ENDINGS[report.ending]}: {reason}" if reason else _ENDINGS[report.ending]
    done, planned = len(report.stages), len(report.plan.stages)
    rest = f"; {planned - done} of {planned} stages did not begin" if done < planned else ""
    return f"{ending}{rest}."


def throughput_sentences(report: LoadReport) -> Iterator[str]:
    """Where throughput was best, and beyond which load latency grows faster."""
    best = best_stage(report)
    if best is None or best.stats.latency is None:
        if report.stages and all(result.is_valid for result in report.stages):
            yield "No request was answered."
        return
    label = "Throughput was" if len(report.stages) == 1 else "The best throughput was"
    samples = ""
    if best.stats.samples != best.stats.answered:
        samples = f" ({format_number(best.stats.samples_per_second or 0.0)} samples/s)"
    latency = f"p95 {format_number(best.stats.latency.p95_ms)} ms ({best.loop} loop)"
    yield f"{label} {format_number(best.stats.throughput or 0.0)} requests/s{samples} at {best.stage.label}, {latency}."
    bend = knee(report.stages)
    last = [result for result in report.stages if result.stats.latency][-1]
    if bend is not None and bend is not last and bend.stats.latency and last.stats.latency:
        before, after = format_number(bend.stats.latency.p95_ms), format_number(last.stats.latency.p95_ms)
        yield (
            f"Beyond {bend.stage.label} latency grows faster than throughput: p95 {before} ms there, {after} ms at"
            f" {last.stage.label}."
        )
    few = [result.stage.label for result in report.stages if 0 < result.stats.answered < _FEW_REQUESTS]
    if few:
        yield f"p99 says little at {format_list(few)}: fewer than {_FEW_REQUESTS} requests were answered."


def failure_sentences(report: LoadReport) -> Iterator[str]:
    """How many requests failed, and how."""
    failed = sum(result.stats.failed for result in report.stages)
    requests = sum(result.stats.requests for result in report.stages)
    if not failed:
        return
    first = next(result for result in report.stages if result.stats.failed)
    kinds: dict[str, int] = {}
    for failure in (failure for result in report.stages for failure in result.failures):
        kinds[failure.kind] = kinds.get(failure.kind, 0) + failure.count
    counts = ", ".join(f"{kind} {count:,}" for kind, count in sorted(kinds.items(), key=lambda item: -item[1]))
    share = format_percent(failed / requests)
    yield f"{failed:,} of {requests:,} requests failed ({share}), first at {first.stage.label}: {counts}."


def saturation_sentences(report: LoadReport) -> Iterator[str]:
    """Where the client and not the server was the limit."""
    saturated = [result for result in report.stages if not result.is_valid]
    if saturated:
        stages = format_list([result.stage.label for result in saturated])
        yield f"The client was saturated at {stages}, so that there are no figures: {saturated[0].client.saturated}."


def format_number(value: float) -> str:
    """A figure with three significant digits: 0.042, 1.23, 12.3, 1,234."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def format_percent(share: float) -> str:
    """A share: 0.02 %, 3.1 %, 100 %; never 0 % of something, nor 100 % where something is missing."""
    if 0 < share < 0.0001:
        return "< 0.01 %"
    if 0.999 < share < 1:
        return "> 99.9 %"
    return f"{100 * share:.2g} %" if share < 0.0995 else f"{100 * share:.3g} %"


def format_list(names: Sequence[str], limit: int = 3) -> str:
    """A, B and C; A, B and 7 more."""
    parts = list(names[:limit]) if len(names) <= limit else [*names[: limit - 1], f"{len(names) - limit + 1} more"]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
