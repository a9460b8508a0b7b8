"""Moving outliers of activations into weights (SmoothQuant, arXiv:2211.10438), as far as calibration data say it helps.

A product is the same when each input channel is divided by a number and the weights' row is multiplied by it. An
activation has one scale for all its channels, weights have one a column: a channel that is a hundred times as large as
the others costs the activation its resolution, and the weights hardly anything. Which numbers are best is measured: the
candidates are compared by the error of the products themselves, relative to every row's own magnitude, because a
normalisation follows in most networks, and a few rows of enormous values would decide everything otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from plansmith.compilers.precision.int8 import qdq
from plansmith.compilers.precision.int8.format import Format
from plansmith.compilers.precision.int8.nodes import Weighted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from plansmith.compilers.precision.graph import Graph

    Floats = NDArray[np.float32]

POWERS = (0.5, 0.6, 0.7, 0.8, 0.9)
"""Shares of the migration that are tried: the paper's alpha."""

CAPS = (0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995)
"""Quantiles of the channels' ranges that are tried as the largest range that any channel keeps."""

WORTH = 0.7
"""A migration is done if it leaves at most this share of the error."""

FINE = 1e-4
"""Products with no larger error than this, relative and squared, stay as they are: outliers are not their problem."""

ROWS = 384
_ROW_BYTES = 256 << 20
_FLOOR = 1e-5
_SMALL_ROWS = 0.1
_SILENT = 0.05


@dataclass
class Extent:
    """Every channel's range along a tensor's last axis, zero included."""

    lowest: Floats = field(default_factory=lambda: np.zeros(1, np.float32))
    highest: Floats = field(default_factory=lambda: np.zeros(1, np.float32))

    def update(self, values: Floats) -> None:
        """Take in a batch."""
        rows = values.reshape(-1, values.shape[-1])
        self.lowest = np.minimum(self.lowest, rows.min(axis=0))
        self.highest = np.maximum(self.highest, rows.max(axis=0))

    def divided(self, divisors: Floats) -> tuple[float, float]:
        """Lowest and highest value of all channels, each divided by its own number."""
        return float((self.lowest / divisors).min()), float((self.highest / divisors).max())

    @property
    def largest(self) -> Floats:
        """The largest magnitude of every channel."""
        return np.maximum(np.abs(self.lowest), np.abs(self.highest)).clip(_FLOOR)


@dataclass
class Channels(Extent):
    """Ranges, and rows drawn evenly from all batches: `quota` of each."""

    quota: int = ROWS
    _rows: list[Floats] = field(default_factory=list)

    def update(self, values: Floats) -> None:
        """Take in a batch."""
        super().update(values)
        rows = values.reshape(-1, values.shape[-1])
        drawn = np.random.default_rng(len(self._rows)).permutation(len(rows))[: self.quota]
        self._rows.append(rows[drawn].copy())

    @property
    def rows(self) -> Floats:
        """The drawn rows, [rows, channels]."""
        return np.concatenate(self._rows)


@dataclass(frozen=True)
class Group:
    """Products that share their data: `data` is divided, and the rows of all their weights are multiplied."""

    data: str
    members: tuple[Weighted, ...]


@dataclass(frozen=True)
class Migration:
    """What was found best for a group: divisors a channel, and the errors of its products before and after."""

    group: Group
    divisors: Floats
    how: str
    before: float
    after: float


def find_groups(graph: Graph, nodes: Sequence[Weighted]) -> list[Group]:
    """The products whose weights nothing else takes, by the tensor that they multiply."""
    by_data: dict[str, list[Weighted]] = {}
    for node in nodes:
        if node.is_product:
            by_data.setdefault(node.data, []).append(node)
    return [
        Group(data, tuple(members))
        for data, members in by_data.items()
        if all(len(graph.consumers(m.weight)) == 1 for m in members)
    ]


def quota(groups: Sequence[Group], graph: Graph, batches: int) -> int:
    """How many rows of each batch are drawn, so that all together stay within a bounded memory."""
    width: int = sum(graph.floats(g.members[0].weight).shape[g.members[0].in_axis] for g in groups)
    rows: int = min(ROWS, max(64, _ROW_BYTES // (4 * max(1, width))))
    return max(1, -(-rows // max(1, batches)))


def find_migrations(
    graph: Graph, groups: Sequence[Group], channels: Mapping[str, Channels], form: Format
) -> list[Migration]:
    """For every group the best divisors, where they are worth it.

    Args:
        graph: with the weights.
        groups: what is looked at.
        channels: what was observed, by tensor.
        form: that the activations will be stored in.
    """
    found = []
    for group in groups:
        seen = channels[group.data]
        weights = [_inputs_first(graph, member) for member in group.members]
        before = _error(seen, weights, np.ones_like(seen.largest), form)
        if before <= FINE:
            continue
        tried = [
            (_error(seen, weights, divisors, form), how, divisors)
            for how, divisors in _candidates(seen.largest, weights)
        ]
        after, how, divisors = min(tried, key=lambda t: t[0])
        if after <= WORTH * before:
            found.append(Migration(group, divisors, how, before, after))
    return found


def _candidates(largest: Floats, weights: Sequence[Floats]) -> Iterator[tuple[str, Floats]]:
    rows = np.max([np.abs(w).max(axis=1) for w in weights], axis=0).clip(_FLOOR)
    # A channel that was all but silent in the calibration data may speak up later: it must not be blown up.
    heard = largest.clip(_SILENT * np.median(largest))
    for power in POWERS:
        divisors = heard**power / rows ** (1 - power)
        yield f"power {power}", (divisors / np.exp(np.log(divisors).mean())).astype(np.float32)
    for cap in CAPS:
        yield f"cap at quantile {cap}", np.maximum(largest / np.quantile(largest, cap), 1).astype(np.float32)


def _error(seen: Channels, weights: Sequence[Floats], divisors: Floats, form: Format) -> float:
    """Squared error of the products relative to each row's squared length, averaged; tiny rows count less."""
    rows = seen.rows
    quantised = form.rounded(rows / divisors, *form.scale(*seen.divided(divisors)))
    total = 0.0
    for weight in weights:
        exact = rows @ weight
        found = quantised @ qdq.rounded(weight * divisors[:, None], axis=1)
        lengths = np.square(exact).sum(axis=1)
        errors = np.square(found - exact).sum(axis=1)
        total += float((errors / (lengths + _SMALL_ROWS * np.median(lengths) + np.finfo(np.float32).tiny)).mean())
    return total / len(weights)


def _inputs_first(graph: Graph, node: Weighted) -> Floats:
    weight = graph.floats(node.weight)
    return weight if node.in_axis == 0 else weight.T
