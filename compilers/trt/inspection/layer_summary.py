"""What the layers of a plan come to, for its record: thousands of them stand in a file of their own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from plansmith.records.engine import UNKNOWN, LayerCount, LayerSummary, PlanLayer, dtypes_of

SLOWEST = 10
"""So many layers are named by how long they take, and as many of those above the asked precision."""


def stored_layers(file: Path) -> tuple[PlanLayer, ...]:
    """The layers of a plan, as its build wrote them down."""
    return tuple(PlanLayer.model_validate(layer) for layer in json.loads(file.read_text(encoding="utf-8")))


def summarise(layers: Sequence[PlanLayer], above: Sequence[PlanLayer] = (), *, most: int = SLOWEST) -> LayerSummary:
    """Count layers by kind and dtype, and name those that matter most.

    Args:
        layers: all of a plan, timed or not.
        above: the compute layers that came out in a higher precision than was asked for.
        most: how many layers a list names.
    """
    groups: dict[tuple[str, str], list[PlanLayer]] = {}
    for layer in layers:
        groups.setdefault((layer.kind, dtypes_of(layer)), []).append(layer)
    timed = [layer for layer in layers if layer.milliseconds is not None]
    return LayerSummary(
        layers=len(layers),
        counts=tuple(
            LayerCount(kind=kind, dtype=dtype, count=len(found), milliseconds=_together(found))
            for (kind, dtype), found in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
        ),
        computing=dict(Counter(layer.operands or UNKNOWN for layer in layers if layer.computes).most_common()),
        above_count=len(above),
        above=tuple(above[:most]),
        slowest=tuple(sorted(timed, key=lambda layer: -(layer.milliseconds or 0.0))[:most]),
        milliseconds=_together(layers),
    )


def timed(layers: Sequence[PlanLayer], times: Mapping[str, float]) -> tuple[PlanLayer, ...]:
    """The layers with the milliseconds that a profiler measured, by their names; layers that it left out have none."""
    return tuple(layer.model_copy(update={"milliseconds": times.get(layer.name)}) for layer in layers)


def _together(layers: Sequence[PlanLayer]) -> float | None:
    """How long those that were timed take; None where none was."""
    times = [layer.milliseconds for layer in layers if layer.milliseconds is not None]
    return sum(times) if times else None
