"""Triton's counters of its models, and their differences over a stage.

The fields are those of Triton's statistics extension (docs/protocol/extension_statistics.md): times are nanoseconds
summed over requests, `inference_count` counts samples, `execution_count` batches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from plansmith.loadtest.results import ModelStatistics

_NS_PER_MS = 1e6

Counters = Mapping[str, Mapping[tuple[str, ...], int]]
"""By model, its counters by their path; summed over its versions, but for those that are separate."""


def counters_from_rows(rows: Iterable[Mapping[str, Any]], separate: Collection[str] = ()) -> Counters:
    """The counters of all models of a server.

    Args:
        rows: as `Connection.statistics` returns them.
        separate: models whose versions count separately, as "MODEL@VERSION".
    """
    counters: dict[str, dict[tuple[str, ...], int]] = {}
    for row in rows:
        name = str(row["name"])
        model = counters.setdefault(f"{name}@{row.get('version', '')}" if name in separate else name, {})
        for path, value in _flatten(row):
            model[path] = model.get(path, 0) + value
    return counters


def statistics_between(
    before: Counters, after: Counters, models: Mapping[str, Collection[str]]
) -> tuple[ModelStatistics, ...]:
    """What models did between two readings.

    Args:
        before: the first reading.
        after: the second; the counters of a server that was restarted between them count from its start.
        models: the tested models, each with itself and its members.
    """
    differences = []
    for name in after:
        member_of = tuple(sorted(model for model, members in models.items() if name in members and name != model))
        if member_of or name in models:
            statistics = _statistics(name, _difference(before.get(name, {}), after[name]))
            differences.append(statistics.model_copy(update={"member_of": () if name in models else member_of}))
    return tuple(differences)


def other_models(before: Counters, after: Counters, models: Collection[str]) -> list[str]:
    """Models besides some that answered requests between two readings, sorted."""
    grown = {name: _difference(before.get(name, {}), after[name]) for name in after if name not in models}
    return sorted(name for name, counters in grown.items() if counters.get(("inference_stats", "success", "count")))


def _flatten(row: Mapping[str, Any]) -> Iterable[tuple[tuple[str, ...], int]]:
    for name in ("inference_count", "execution_count"):
        yield (name,), int(row.get(name, 0))
    for kind, value in row.get("inference_stats", {}).items():
        for name in ("count", "ns"):
            yield ("inference_stats", kind, name), int(value.get(name, 0))
    for batch in row.get("batch_stats", ()):
        executions = batch.get("compute_infer", {}).get("count", 0)
        yield ("batch_stats", str(batch.get("batch_size", 0))), int(executions)


def _difference(
    before: Mapping[tuple[str, ...], int], after: Mapping[tuple[str, ...], int]
) -> dict[tuple[str, ...], int]:
    is_restarted = any(after.get(path, 0) < value for path, value in before.items())
    return {path: value - (0 if is_restarted else before.get(path, 0)) for path, value in after.items()}


def _statistics(model: str, counters: Mapping[tuple[str, ...], int]) -> ModelStatistics:
    def count(kind: str) -> int:
        return counters.get(("inference_stats", kind, "count"), 0)

    def mean_ms(kind: str) -> float:
        total = counters.get(("inference_stats", kind, "ns"), 0)
        return total / count(kind) / _NS_PER_MS if count(kind) else 0.0

    batches = sorted((int(path[1]), value) for path, value in counters.items() if path[0] == "batch_stats" and value)
    return ModelStatistics(
        model=model,
        inferences=counters.get(("inference_count",), 0),
        executions=counters.get(("execution_count",), 0),
        batches=dict(batches),
        queue_ms=mean_ms("queue"),
        compute_input_ms=mean_ms("compute_input"),
        compute_ms=mean_ms("compute_infer"),
        compute_output_ms=mean_ms("compute_output"),
        cache_hits=count("cache_hit"),
        failed=count("fail"),
    )
