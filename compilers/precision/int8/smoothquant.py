"""SmoothQuant (arXiv:2211.10438): migrates activation outliers into the weights, and rewrites the graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from plansmith.compilers.precision.calibration import difference, largest_feed, observe, small_feeds
from plansmith.compilers.precision.graph import Graph, attribute
from plansmith.compilers.precision.int8 import qdq
from plansmith.compilers.precision.int8.format import Format
from plansmith.compilers.precision.int8.nodes import Weighted, find_weighted, make_weights_constant
from plansmith.compilers.precision.opsets import forget_defaults
from plansmith.errors import ExportError

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

    from plansmith.data.reference import StoredCases

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

_HEADS_APART = [0, 2, 1, 3]
_TOGETHER = {"MatMul", "Gemm"}
_SAME = 1e-3
"""How far, relative to an output's magnitude, FP32 rounding alone may move an answer of a smoothed graph."""

MARGIN = 1.25
"""How far beyond the values seen at real positions those at padding may reach before they are clipped."""

WIDENED = 1.5
"""How many times wider padding must make a range for a Clip to be worth its time."""


@dataclass
class Extent:
    """Observer of every channel's range along a tensor's last axis, zero included."""

    lowest: Floats = field(default_factory=lambda: np.zeros(1, np.float32))
    highest: Floats = field(default_factory=lambda: np.zeros(1, np.float32))

    def update(self, values: Floats) -> None:
        """Update with a batch."""
        rows = values.reshape(-1, values.shape[-1])
        self.lowest = np.minimum(self.lowest, rows.min(axis=0))
        self.highest = np.maximum(self.highest, rows.max(axis=0))

    def divided(self, divisors: Floats) -> tuple[float, float]:
        """Return the lowest and highest value over all channels, each divided by its own divisor."""
        return float((self.lowest / divisors).min()), float((self.highest / divisors).max())

    @property
    def largest(self) -> Floats:
        """The largest magnitude of every channel."""
        return np.maximum(np.abs(self.lowest), np.abs(self.highest)).clip(_FLOOR)


@dataclass
class Channels(Extent):
    """Observer of ranges, and of rows sampled evenly from all batches: `quota` of each."""

    quota: int = ROWS
    _rows: list[Floats] = field(default_factory=list)

    def update(self, values: Floats) -> None:
        """Update with a batch."""
        super().update(values)
        rows = values.reshape(-1, values.shape[-1])
        drawn = np.random.default_rng(len(self._rows)).permutation(len(rows))[: self.quota]
        self._rows.append(rows[drawn].copy())

    @property
    def rows(self) -> Floats:
        """The sampled rows, [rows, channels]."""
        return np.concatenate(self._rows)


@dataclass(frozen=True)
class Group:
    """Matrix products with the same input: `data` is divided, and the rows of all their weights are multiplied."""

    data: str
    members: tuple[Weighted, ...]


@dataclass(frozen=True)
class Migration:
    """The best migration of a group: divisors per channel, and the errors of its products before and after."""

    group: Group
    divisors: Floats
    how: str
    before: float
    after: float


def find_groups(graph: Graph, nodes: Sequence[Weighted]) -> list[Group]:
    """Return the products whose weights are not shared, grouped by input tensor."""
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
    """Return how many rows to sample per batch, so that the total stays within a memory limit."""
    width: int = sum(graph.floats(g.members[0].weight).shape[g.members[0].in_axis] for g in groups)
    rows: int = min(ROWS, max(64, _ROW_BYTES // (4 * max(1, width))))
    return max(1, -(-rows // max(1, batches)))


def find_migrations(
    graph: Graph, groups: Sequence[Group], channels: Mapping[str, Channels], form: Format
) -> list[Migration]:
    """Return the best divisors for every group that benefits.

    Args:
        graph: with the weights.
        groups: what is looked at.
        channels: what was observed, by tensor.
        form: that the activations will be stored in.
    """
    migrations = []
    for group in groups:
        group_channels = channels[group.data]
        weights = [_inputs_first(graph, member) for member in group.members]
        before = _error(group_channels, weights, np.ones_like(group_channels.largest), form)
        if before <= FINE:
            continue
        tried = [
            (_error(group_channels, weights, divisors, form), how, divisors)
            for how, divisors in _candidates(group_channels.largest, weights)
        ]
        after, how, divisors = min(tried, key=lambda t: t[0])
        if after <= WORTH * before:
            migrations.append(Migration(group, divisors, how, before, after))
    return migrations


def _candidates(largest: Floats, weights: Sequence[Floats]) -> Iterator[tuple[str, Floats]]:
    rows = np.max([np.abs(w).max(axis=1) for w in weights], axis=0).clip(_FLOOR)
    # A channel that was all but silent in the calibration data may speak up later: it must not be blown up.
    heard = largest.clip(_SILENT * np.median(largest))
    for power in POWERS:
        divisors = heard**power / rows ** (1 - power)
        yield f"power {power}", (divisors / np.exp(np.log(divisors).mean())).astype(np.float32)
    for cap in CAPS:
        yield f"cap at quantile {cap}", np.maximum(largest / np.quantile(largest, cap), 1).astype(np.float32)


def _error(group_channels: Channels, weights: Sequence[Floats], divisors: Floats, form: Format) -> float:
    """Squared error of the products relative to each row's squared norm, averaged; tiny rows count less."""
    rows = group_channels.rows
    quantised = form.rounded(rows / divisors, *form.scale(*group_channels.divided(divisors)))
    total = 0.0
    for weight in weights:
        exact = rows @ weight
        actual = quantised @ qdq.rounded(weight * divisors[:, None], axis=1)
        lengths = np.square(exact).sum(axis=1)
        errors = np.square(actual - exact).sum(axis=1)
        total += float((errors / (lengths + _SMALL_ROWS * np.median(lengths) + np.finfo(np.float32).tiny)).mean())
    return total / len(weights)


def _inputs_first(graph: Graph, node: Weighted) -> Floats:
    weight = graph.floats(node.weight)
    return weight if node.in_axis == 0 else weight.T


def migrate(graph: Graph, migrations: Sequence[Migration]) -> dict[str, str]:
    """Divide the inputs and multiply the weights, in place; the graph's results do not change.

    Returns:
        Where each tensor's division went, in words.
    """
    places = {}
    for migration in migrations:
        group, divisors = migration.group, migration.divisors
        for member in group.members:
            _scale(graph, member.weight, member.in_axis, divisors)
        if _into_normalisation(graph, group.data, group.members, divisors):
            places[group.data] = "the normalisation before it"
        elif _into_values(graph, group.data, group.members, divisors):
            places[group.data] = "the columns of the value projection"
        else:
            _as_mul(graph, group.data, group.members, divisors)
            places[group.data] = "a Mul"
    return places


def _into_normalisation(graph: Graph, data: str, members: Sequence[Weighted], divisors: Floats) -> bool:
    """Fold divisors into the scale and bias of a normalization that only these products use."""
    node = graph.producer(data)
    if node is None or node.op_type != "LayerNormalization" or not _only_taken_by(graph, data, members):
        return False
    width = divisors.shape
    parameters = [name for name in node.input[1:] if name]
    values = [graph.constant(name) for name in parameters]
    if any(value is None or value.shape != width for value in values):
        return False
    for place, name in enumerate(parameters, start=1):
        node.input[place] = graph.add_initializer(f"{name}_smooth", graph.floats(name) / divisors)
    graph.rewrite({})
    return True


def _into_values(graph: Graph, data: str, members: Sequence[Weighted], divisors: Floats) -> bool:
    """Fold divisors into the columns of the product that makes an attention's values, which only these products use.

    The context is a weighted mean of the values' rows, channel by channel: what divides a channel of the values
    divides that channel of the context.
    """
    if not _only_taken_by(graph, data, members):
        return False
    product = _up(graph, data, ("Reshape", "Transpose", "MatMul"))
    if product is None or graph.constant(product.input[1]) is not None:
        return False
    values = product.input[1]
    if len(graph.consumers(values)) != 1 or values in graph.outputs:
        return False
    reshape = _up(graph, values, ("Transpose", "Reshape"))
    if reshape is None:
        return False
    return _into_columns(graph, reshape.input[0], divisors)


def _into_columns(graph: Graph, tensor: str, divisors: Floats) -> bool:
    """Fold divisors into the columns of a product's weights and of the bias added to it."""
    node, bias = graph.producer(tensor), ""
    if node is not None and node.op_type == "Add":
        constants = [name for name in node.input if graph.constant(name) is not None]
        if len(constants) != 1 or not _is_alone(graph, tensor):
            return False
        bias = constants[0]
        tensor = next(name for name in node.input if name != bias)
        node = graph.producer(tensor)
    if node is None or node.op_type not in _TOGETHER or not _is_alone(graph, tensor):
        return False
    axis = 0 if attribute(node, "transB", 0) else 1
    inner = node.input[2] if len(node.input) > 2 else ""
    weight = graph.constant(node.input[1])
    vectors = [name for name in (bias, inner) if name]
    names = [node.input[1], *vectors]
    if weight is None or weight.ndim != 2 or weight.shape[axis] != divisors.size:
        return False
    if any(graph.constant(n).shape != divisors.shape for n in vectors):  # type: ignore[union-attr]
        return False
    if any(len(graph.consumers(name)) != 1 for name in names):
        return False
    inverse = np.reciprocal(divisors)
    _scale(graph, node.input[1], axis, inverse)
    for name in vectors:
        _scale(graph, name, 0, inverse)
    return True


def _as_mul(graph: Graph, data: str, members: Sequence[Weighted], divisors: Floats) -> None:
    import onnx

    factors = graph.add_initializer(f"{data}_smoothing", np.reciprocal(divisors))
    divided = graph.fresh(f"{data}_smooth")
    name = graph.fresh(f"{members[0].name}_smoothing")
    names = {m.name for m in members}
    takers = [node for node in graph.consumers(data) if node.name in names]
    for node in takers:
        node.input[0] = divided
    mul = onnx.helper.make_node("Mul", [data, factors], [divided], name=name)
    graph.rewrite({takers[0].name: [mul, takers[0]]})


def _scale(graph: Graph, name: str, axis: int, factors: Floats) -> None:
    value = graph.floats(name)
    shape = [1] * value.ndim
    shape[axis] = -1
    graph.set_initializer(name, value * factors.reshape(shape))


def _up(graph: Graph, tensor: str, kinds: Sequence[str]) -> onnx.NodeProto | None:
    """The node reached upward through these operators, each with one consumer; Transpose only swaps the head axes."""
    node = None
    for kind in kinds:
        node = graph.producer(tensor)
        if node is None or node.op_type != kind:
            return None
        if kind == "Transpose" and list(attribute(node, "perm", [])) != _HEADS_APART:
            return None
        if not _is_alone(graph, tensor) and kind != kinds[0]:
            return None
        tensor = node.input[0]
    return node


def _is_alone(graph: Graph, tensor: str) -> bool:
    return len(graph.consumers(tensor)) == 1 and tensor not in graph.outputs


def _only_taken_by(graph: Graph, tensor: str, members: Sequence[Weighted]) -> bool:
    return tensor not in graph.outputs and {n.name for n in graph.consumers(tensor)} == {m.name for m in members}


@dataclass(frozen=True)
class Smoothed:
    """A smoothed graph, ready for 8-bit quantization.

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
    """Return a copy of a graph whose weights are initializers and whose nodes all have names."""
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
    """SmoothQuant: migrate outliers of activations into weights where the calibration data show a benefit.

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
    groups = find_groups(graph, nodes)
    if not groups:
        return Smoothed(model, "nothing to smooth")
    row_quota = quota(groups, graph, len(samples))
    channels = {group.data: Channels(quota=row_quota) for group in groups}
    padded = {group.data: Extent() for group in groups}
    observe(model, samples, channels, mask_input=mask_input, of_all=padded)
    migrations = find_migrations(graph, groups, channels, form)
    how = "no outliers worth migrating"
    if migrations:
        places = migrate(graph, migrations)
        graph.drop_unused_initializers()
        how = _summarize_migrations(migrations, places, len(groups))
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
    """Return the same nodes as found in a changed graph."""
    names = {node.name for node in nodes}
    return [node for node in find_weighted(Graph(model))[0] if node.name in names]


def nothing_to_lower(form: Format, why: str, remedy: str) -> ExportError:
    """Return the error that the graph or the options leave nothing to lower to the requested format."""
    return ExportError(f"nothing can be lowered to {form.precision.upper()}: {why}", remedy=remedy)


def _difference(before: onnx.ModelProto, after: onnx.ModelProto, samples: StoredCases) -> float:
    """The largest error over the outputs of the first and the largest case, relative to the output's magnitude."""
    feeds = (next(iter(samples)).feed, largest_feed(case.feed for case in samples))
    return difference(before, after, [next(small_feeds(before, [feed])) for feed in feeds])


def _summarize_migrations(migrations: Sequence[Migration], places: Mapping[str, str], groups: int) -> str:
    before, after = (float(np.mean([getattr(m, side) for m in migrations])) for side in ("before", "after"))
    counted = ", ".join(f"{number} by {place}" for place, number in Counter(places.values()).most_common())
    return (
        f"{len(migrations)} of {groups} activations ({counted}); mean relative squared error of their products"
        f" {before:.2g} before, {after:.2g} after"
    )
