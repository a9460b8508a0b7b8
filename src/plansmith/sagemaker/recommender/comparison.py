"""The recommendations of a job beside load tests of our own (`plansmith loadtest`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from plansmith.records.model import Record
from plansmith.sagemaker.recommender.results import JobResult, Recommendation

_MINUTES_PER_HOUR = 60
_MILLION = 1e6


class LoadTestFigures(Record):
    """The best stage of a load test.

    Attributes:
        source: its file and stage.
        instance_type: that it ran on; empty where that is not said.
        requests_per_minute: that were answered.
        p95_ms: latency at that rate, as the client saw it.
        notes: what a reader has to know.
    """

    source: str
    instance_type: str = ""
    requests_per_minute: float
    p95_ms: float
    notes: tuple[str, ...] = ()


class ComparedRecommendation(Record):
    """A recommendation beside a load test of our own; None where a figure is not known.

    Attributes:
        recommendation: AWS's; its latency is that of the model alone.
        figures: our own; their latency is what the client waited.
        requests_percent: by how much AWS's requests per minute exceed ours, in percent of ours.
        latency_percent: by how much AWS's latency exceeds ours, in percent of ours.
        own_cost_per_million: of a million requests at our rate and AWS's price of the instance type, in US dollars.
        cost_percent: by how much AWS's cost per million exceeds ours, in percent of ours.
    """

    recommendation: Recommendation
    figures: LoadTestFigures
    requests_percent: float | None
    latency_percent: float | None
    own_cost_per_million: float | None
    cost_percent: float | None


def compare_recommendations(result: JobResult, figures: Sequence[LoadTestFigures]) -> list[ComparedRecommendation]:
    """Each recommendation beside our figures of the same instance type, and those that name none."""
    return [
        _compare(result, recommendation, own)
        for recommendation in result.recommendations
        for own in figures
        if own.instance_type in {"", recommendation.instance_type}
    ]


def comparison_notes(result: JobResult, figures: Sequence[LoadTestFigures]) -> Iterator[str]:
    """What a reader of both has to know."""
    types = sorted({recommendation.instance_type for recommendation in result.recommendations} - {""})
    for own in figures:
        yield from (f"{own.source}: {note}" for note in own.notes)
        if not own.instance_type:
            yield f"{own.source}: without an instance type it has no cost: --compare TYPE=FILE"
        elif own.instance_type not in types:
            yield f"{own.source} is of {own.instance_type}, and the job recommends {', '.join(types) or 'none'}"


def _compare(result: JobResult, recommendation: Recommendation, own: LoadTestFigures) -> ComparedRecommendation:
    cost = _own_cost(recommendation, own)
    return ComparedRecommendation(
        recommendation=recommendation,
        figures=own,
        requests_percent=_percent(recommendation.max_invocations, own.requests_per_minute),
        latency_percent=_percent(result.latency_ms(recommendation), own.p95_ms),
        own_cost_per_million=cost,
        cost_percent=_percent(recommendation.cost_per_million, cost),
    )


def _own_cost(recommendation: Recommendation, own: LoadTestFigures) -> float | None:
    """The cost of a million requests on one instance; None where ours ran on another machine.

    A cost per hour is that of all instances: the example of AWS's guide has $0.69 for 3 ml.c5d.xlarge.
    """
    if not own.instance_type or recommendation.cost_per_hour is None or not own.requests_per_minute:
        return None
    per_hour = recommendation.cost_per_hour / (recommendation.instances or 1)
    return per_hour / (own.requests_per_minute * _MINUTES_PER_HOUR) * _MILLION


def _percent(value: float | None, own: float | None) -> float | None:
    return (value - own) / own * 100 if value is not None and own else None
