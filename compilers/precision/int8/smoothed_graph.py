"""The FP32 graph that INT8 and FP8 methods start from: weights constant, outliers migrated, answers unchanged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from plansmith.compilers.precision.activations import difference
from plansmith.compilers.precision.calibration import largest_feed, observe, small_feeds
from plansmith.compilers.precision.graph import Graph
from plansmith.compilers.precision.int8 import smoothquant, smoothquant_graph
from plansmith.compilers.precision.int8.format import Format
from plansmith.compilers.precision.int8.nodes import Weighted, find_weighted, make_weights_constant
from plansmith.compilers.precision.opsets import forget_defaults
from plansmith.errors import ExportError

if TYPE_CHECKING:
    import onnx

    from plansmith.compilers.precision.int8.smoothquant import Migration
    from plansmith.data.reference import StoredCases

_SAME = 1e-3
"""How far, relative to an output's magnitude, FP32 rounding alone may move an answer of a smoothed graph."""


MARGIN = 1.25
"""How far beyond the values seen at real positions those at padding may reach before they are clipped."""

WIDENED = 1.5
"""How many times wider padding must make a range for a Clip to be worth its time."""


@dataclass(frozen=True)
class Smoothed:
    """A graph whose products are ready for eight bits.

    Attributes:
        model: computes what the given graph does.
        how: what was migrated where, in words.
        limits: where values at padding widen the range of what products take: lowest and highest value that real
            positions need, by the product's name.
    """

    model: onnx.ModelProto
    how: str
    limits: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def prepare(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a graph whose weights are initialisers and whose nodes all have names."""
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    forget_defaults(copy)
    make_weights_constant(Graph(copy))
    return copy


def smooth(
    model: onnx.ModelProto,
    nodes: Sequence[Weighted],
    samples: StoredCases,
    form: Format,
    *,
    mask_input: str | None,
) -> Smoothed:
    """Migrate outliers of activations into weights wherever calibration data say that it helps.

    Args:
        model: a prepared graph.
        nodes: those that are going to be lowered.
        samples: calibration data.
        form: that activations will be stored in.
        mask_input: the input that marks padding with 0.
    """
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = Graph(copy)
    groups = smoothquant.find_groups(graph, nodes)
    if not groups:
        return Smoothed(model, "nothing to smooth")
    quota = smoothquant.quota(groups, graph, len(samples))
    channels = {group.data: smoothquant.Channels(quota=quota) for group in groups}
    padded = {group.data: smoothquant.Extent() for group in groups}
    observe(model, samples, channels, mask_input=mask_input, of_all=padded)
    migrations = smoothquant.find_migrations(graph, groups, channels, form)
    how = "no outliers worth migrating"
    if migrations:
        places = smoothquant_graph.migrate(graph, migrations)
        graph.drop_unused_initializers()
        how = _told(migrations, places, len(groups))
        if (apart := _difference(model, copy, samples)) > _SAME:
            copy, migrations = model, []
            how = f"left out: the smoothed FP32 graph differs by {apart:.1g} from the given one"
    divisors = {migration.group.data: migration.divisors for migration in migrations}
    limits: dict[str, tuple[float, float]] = {}
    for group in groups:
        divided = divisors.get(group.data, np.ones(1, np.float32))
        low, high = channels[group.data].divided(divided)
        below, above = padded[group.data].divided(divided)
        if above - below > WIDENED * (high - low):
            limits |= dict.fromkeys((m.name for m in group.members), (MARGIN * low, MARGIN * high))
    return Smoothed(copy, how, limits)


def again(model: onnx.ModelProto, nodes: Sequence[Weighted]) -> list[Weighted]:
    """The same nodes as they stand in a changed graph."""
    names = {node.name for node in nodes}
    return [node for node in find_weighted(Graph(model))[0] if node.name in names]


def nothing_to_lower(form: Format, why: str, remedy: str) -> ExportError:
    """A format was asked for, and the graph or the options leave nothing to it."""
    return ExportError(f"nothing can be lowered to {form.precision.upper()}: {why}", remedy=remedy)


def _difference(before: onnx.ModelProto, after: onnx.ModelProto, samples: StoredCases) -> float:
    """The largest error over the outputs of the first case and the largest, relative to the output's magnitude."""
    given = (next(iter(samples)).feed, largest_feed(case.feed for case in samples))
    return difference(before, after, [next(small_feeds(before, [feed])) for feed in given])


def _told(migrations: Sequence[Migration], places: Mapping[str, str], groups: int) -> str:
    before, after = (float(np.mean([getattr(m, side) for m in migrations])) for side in ("before", "after"))
    counted = ", ".join(f"{number} by {place}" for place, number in Counter(places.values()).most_common())
    return (
        f"{len(migrations)} of {groups} activations ({counted}); mean relative squared error of their products"
        f" {before:.2g} before, {after:.2g} after"
    )
