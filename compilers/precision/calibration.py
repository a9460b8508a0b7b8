"""Calibration: collects inner tensor values over the data without padding, in small batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from plansmith.compilers.onnxrt import open_model

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

    from plansmith.data.reference import StoredCases
    from plansmith.records.arrays import Arrays

ROWS_AT_ONCE = 16
"""Samples that run at once at most, where the batch is free."""

BYTES_AT_ONCE = 512 << 20
"""Values that a pass holds at once, unless those of one tensor for one sample are more."""

_PROBED_ROWS = 3
Positions = Literal["apart", "as one", "none"]
"""How a tensor begins: with the mask's axes, with one axis of all its positions, or with something else."""


def stream(model: onnx.ModelProto, feeds: Iterable[Arrays], tensors: Sequence[str]) -> Iterator[Arrays]:
    """Yield the values of some tensors, one mapping per feed; the graph runs as written, without optimizations.

    Args:
        model: the graph, with its weights in memory; not changed.
        feeds: inputs, a batch each.
        tensors: inner tensors or outputs; all are held at once for one batch, so ask for as many as fit into memory.
    """
    session = open_model(model, outputs=tensors, rewrites="none", in_order=True)
    for feed in feeds:
        yield dict(zip(tensors, session.run(list(tensors), dict(feed)), strict=True))


def difference(before: onnx.ModelProto, after: onnx.ModelProto, feeds: Sequence[Arrays]) -> float:
    """Return the largest error between two graphs' floating-point outputs, relative to each output's magnitude."""
    outputs = [value.name for value in before.graph.output]
    worst = 0.0
    for expected, actual in zip(*(stream(m, feeds, outputs) for m in (before, after)), strict=True):
        errors = [_relative(expected[name], actual[name]) for name in outputs if expected[name].dtype.kind == "f"]
        worst = max([worst, *errors])
    return worst


def _relative(exact: NDArray[np.generic], actual: NDArray[np.generic]) -> float:
    """The largest error, relative to the magnitude; infinite where only one of the two is finite."""
    import numpy as np

    left, right = exact.astype(np.float64), actual.astype(np.float64)
    finite = np.isfinite(left)
    same = left.shape == right.shape and np.array_equal(left[~finite], right[~finite], equal_nan=True)
    if not same or not np.isfinite(right[finite]).all():
        return float("inf")
    magnitude = float(np.sqrt(np.square(left[finite]).mean())) if finite.any() else 0.0
    return float(np.abs(right[finite] - left[finite]).max(initial=0.0)) / (magnitude or 1.0)


class Observer(Protocol):
    """Observer: collects statistics of one tensor, batch by batch."""

    def update(self, values: NDArray[np.float32]) -> None:
        """Update with the values of a batch, without those at padding."""
        ...


@dataclass(frozen=True)
class Walk:
    """Calibration run plan: keeps memory bounded, and says where tensors have padding.

    Attributes:
        rows: samples that run at once.
        passes: the tensors that are held at once, pass by pass.
        positions: how each tensor begins.
    """

    rows: int
    passes: Sequence[Sequence[str]]
    positions: Mapping[str, Positions]


def observe(
    model: onnx.ModelProto,
    samples: StoredCases,
    observers: Mapping[str, Observer],
    *,
    mask_input: str | None,
    of_all: Mapping[str, Observer] | None = None,
) -> None:
    """Pass every observer its tensor for all samples.

    What stands at padding is left out where a tensor has a row for every position: such values are computed from
    nothing, reach no answer, and would widen the ranges.

    Args:
        model: the graph; runs as it is written.
        samples: the calibration data, of any batch sizes and lengths.
        observers: by tensor.
        mask_input: the input that marks padding with 0; None where there is none.
        of_all: further observers of the same tensors, which are shown what stands at padding too.
    """
    walk = plan_walk(model, largest_feed(case.feed for case in samples), list(observers), mask_input)
    for tensors in walk.passes:
        feeds, masks = (small_feeds(model, (case.feed for case in samples), walk.rows) for _ in range(2))
        for values, feed in zip(stream(model, feeds, tensors), masks, strict=True):
            mask = feed[mask_input].astype(bool) if mask_input in feed else None  # type: ignore[index]
            for name in tensors:
                content = without_padding(values[name], mask, walk.positions[name])
                if content.size:
                    observers[name].update(content)
                if of_all is not None and values[name].size:
                    of_all[name].update(values[name].astype(np.float32, copy=False))


def plan_walk(model: onnx.ModelProto, feed: Arrays, tensors: Sequence[str], mask_input: str | None) -> Walk:
    """Plan the run from one sample, then three shorter ones: memory per tensor, and which ones follow the mask.

    Sizes of one batch do not tell positions from heads where there are as many. A tensor that begins like the mask at
    two shapes with nothing in common follows it. Where the graph takes no other length, that of the data decides.

    Args:
        model: the graph.
        feed: the largest inputs.
        tensors: what is going to be observed.
        mask_input: the input that marks padding with 0.
    """
    first = next(small_feeds(model, [feed], 1))
    probes = [first, *_shorter(model, first, mask_input)]
    shapes: list[dict[str, tuple[int, ...]]] = []
    sizes: dict[str, int] = {}
    try:
        for values in stream(model, probes, tensors):
            shapes.append({name: values[name].shape for name in tensors})
            sizes = sizes or {name: values[name].nbytes for name in tensors}
    except Exception:  # whatever ONNX Runtime says of a length that the graph does not take
        if not shapes:
            raise
    masks = [p[mask_input].shape for p in probes[: len(shapes)] if mask_input in p]  # type: ignore[index]
    positions = {name: _positions(masks, [entry[name] for entry in shapes]) for name in tensors}
    passes = _passes(sizes)
    widest = max((sum(sizes[name] for name in names) for names in passes), default=0)
    return Walk(min(ROWS_AT_ONCE, max(1, BYTES_AT_ONCE // max(1, widest))), passes, positions)


def find_positions(
    model: onnx.ModelProto, feeds: Sequence[Arrays], tensors: Sequence[str], mask_input: str | None
) -> Mapping[str, Positions]:
    """Find the leading axes of some tensors, on the largest batch; nothing runs if there is no mask."""
    if not any(mask_input in feed for feed in feeds):
        return dict.fromkeys(tensors, "none")
    return plan_walk(model, largest_feed(feeds), tensors, mask_input).positions


def without_padding(
    values: NDArray[np.generic], mask: NDArray[np.bool_] | None, positions: Positions
) -> NDArray[np.float32]:
    """Return the values at positions that are not padding."""
    array = values.astype(np.float32, copy=False)
    if mask is None or positions == "none":
        return array
    return array[mask if positions == "apart" else mask.ravel()]


def largest_feed(feeds: Iterable[Arrays]) -> Arrays:
    """Return the batch with the largest samples; the first of several."""
    largest, result = -1.0, None
    for feed in feeds:
        size = sum(value.nbytes / max(1, len(value)) for value in feed.values() if value.ndim)
        if size > largest:
            largest, result = size, feed
    assert result is not None, "there is a batch"
    return result


def small_feeds(model: onnx.ModelProto, feeds: Iterable[Arrays], rows: int = ROWS_AT_ONCE) -> Iterator[Arrays]:
    """Yield a graph's inputs from each batch, in batches of at most so many rows if the batch axis is dynamic."""
    names, free = {v.name for v in model.graph.input}, _batch_is_free(model)
    for arrays in feeds:
        feed = {name: value for name, value in arrays.items() if name in names}
        batch = {len(value) for value in feed.values() if value.ndim}
        if not free or len(batch) != 1:
            yield feed
            continue
        for start in range(0, batch.pop(), rows):
            yield {name: value[start : start + rows] for name, value in feed.items()}


def _batch_is_free(model: onnx.ModelProto) -> bool:
    stored = {t.name for t in model.graph.initializer}
    shapes = [v.type.tensor_type.shape.dim for v in model.graph.input if v.name not in stored]
    return all(dims and not dims[0].HasField("dim_value") for dims in shapes)


def _shorter(model: onnx.ModelProto, feed: Arrays, mask_input: str | None) -> Iterator[Arrays]:
    """Yield the inputs cut to a quarter on the mask's symbolic axes, three times where the batch is dynamic."""
    dims = {v.name: [d.dim_param for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    lengths = {name for name in dims.get(mask_input or "", [])[1:] if name}
    if mask_input not in feed or not lengths:
        return
    rows = _PROBED_ROWS if _batch_is_free(model) else 1
    shorter = {}
    for name, value in feed.items():
        cut = (slice(_quarter(n) if dim in lengths else n) for dim, n in zip(dims[name], value.shape, strict=True))
        shorter[name] = np.concatenate([value[tuple(cut)]] * rows) if value.ndim else value
    yield shorter


def _quarter(length: int) -> int:
    """A shorter length; times the probe's batch size it never equals the original length."""
    return length // 4 or min(2, max(1, length - 1))


def _positions(masks: Sequence[tuple[int, ...]], shapes: Sequence[tuple[int, ...]]) -> Positions:
    pairs = list(zip(masks, shapes, strict=False))
    if pairs and all(len(shape) > len(mask) and shape[: len(mask)] == mask for mask, shape in pairs):
        return "apart"
    if pairs and all(len(shape) >= 2 and shape[0] == int(np.prod(mask)) for mask, shape in pairs):
        return "as one"
    return "none"


def _passes(sizes: Mapping[str, int]) -> list[list[str]]:
    """Split the tensors, in order, into passes that each fit into memory."""
    passes: list[list[str]] = []
    total = 0
    for name, size in sizes.items():
        if not passes or total + size > BYTES_AT_ONCE:
            passes.append([])
            total = 0
        passes[-1].append(name)
        total += size
    return passes
