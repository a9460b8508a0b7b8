"""The FP32 graph that INT8 methods start from: weights constant, outliers migrated, answers unchanged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from plansmith.compilers.precision import migrating, smoothing
from plansmith.compilers.precision.activations import stream
from plansmith.compilers.precision.graph import Graph
from plansmith.compilers.precision.int8_nodes import Weighted, find_weighted, make_weights_constant
from plansmith.compilers.precision.observing import observe
from plansmith.errors import ExportError

if TYPE_CHECKING:
    import onnx

    from plansmith.compilers.precision.smoothing import Migration
    from plansmith.reference import StoredCases

_SAME = 1e-3
"""How far, relative to an output's magnitude, FP32 rounding alone may move an answer of a smoothed graph."""


@dataclass(frozen=True)
class Smoothed:
    """A graph whose products are ready for INT8.

    Attributes:
        model: computes what the given graph does.
        how: what was migrated where, in words.
    """

    model: onnx.ModelProto
    how: str


def prepare(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a graph whose weights are initialisers and whose nodes all have names."""
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    make_weights_constant(Graph(copy))
    return copy


def smooth(
    model: onnx.ModelProto,
    nodes: Sequence[Weighted],
    samples: StoredCases,
    *,
    symmetric: bool,
    mask_input: str | None,
) -> Smoothed:
    """Migrate outliers of activations into weights wherever calibration data say that it helps.

    Args:
        model: a prepared graph.
        nodes: those that are going to be lowered.
        samples: calibration data.
        symmetric: how activations will be quantised.
        mask_input: the input that marks padding with 0.
    """
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = Graph(copy)
    groups = smoothing.find_groups(graph, nodes)
    if not groups:
        return Smoothed(model, "nothing to smooth")
    quota = smoothing.quota(groups, graph, len(samples))
    channels = {group.data: smoothing.Channels(quota) for group in groups}
    observe(model, samples, channels, mask_input=mask_input)
    migrations = smoothing.find_migrations(graph, groups, channels, symmetric=symmetric)
    if not migrations:
        return Smoothed(model, "no outliers worth migrating")
    places = migrating.migrate(graph, migrations)
    graph.drop_unused_initializers()
    if (apart := _difference(model, copy, samples)) > _SAME:
        return Smoothed(model, f"left out: the smoothed FP32 graph differs by {apart:.1g} from the given one")
    return Smoothed(copy, _told(migrations, places, len(groups)))


def again(model: onnx.ModelProto, nodes: Sequence[Weighted]) -> list[Weighted]:
    """The same nodes as they stand in a changed graph."""
    names = {node.name for node in nodes}
    return [node for node in find_weighted(Graph(model))[0] if node.name in names]


def nothing_to_lower(why: str, remedy: str) -> ExportError:
    """INT8 was asked for, and the graph or the options leave nothing to it."""
    return ExportError(f"nothing can be lowered to INT8: {why}", remedy=remedy)


def _difference(before: onnx.ModelProto, after: onnx.ModelProto, samples: StoredCases) -> float:
    """The largest error over the outputs of the first case, relative to the output's magnitude."""
    outputs = [v.name for v in before.graph.output]
    names = {v.name for v in before.graph.input}
    feed = {name: value for name, value in next(iter(samples)).feed.items() if name in names}
    expected, found = (next(iter(stream(m, [feed], outputs))) for m in (before, after))
    worst = 0.0
    for name in outputs:
        exact = expected[name].astype(np.float64)
        if exact.size and exact.dtype.kind == "f":
            magnitude = float(np.sqrt(np.square(exact).mean())) or 1.0
            worst = max(worst, float(np.abs(found[name].astype(np.float64) - exact).max()) / magnitude)
    return worst


def _told(migrations: Sequence[Migration], places: Mapping[str, str], groups: int) -> str:
    before, after = (float(np.mean([getattr(m, side) for m in migrations])) for side in ("before", "after"))
    counted = ", ".join(f"{number} by {place}" for place, number in Counter(places.values()).most_common())
    return (
        f"{len(migrations)} of {groups} activations ({counted}); mean relative squared error of their products"
        f" {before:.2g} before, {after:.2g} after"
    )
