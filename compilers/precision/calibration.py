"""Walking through calibration data: what inner tensors hold, padding left out, one small batch at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from plansmith.compilers.precision.activations import stream

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

    from plansmith.data.reference import StoredCases

    Arrays = Mapping[str, NDArray[np.generic]]

ROWS_AT_ONCE = 16
"""Samples that run at once at most, where the batch is free."""

BYTES_AT_ONCE = 512 << 20
"""Values that a pass holds at once, unless those of one tensor for one sample are more."""

_PROBED_ROWS = 3

Positions = Literal["apart", "as one", "none"]
"""How a tensor begins: with the mask's axes, with one axis of all its positions, or with something else."""


class Observer(Protocol):
    """What looks at one tensor, batch after batch."""

    def update(self, values: NDArray[np.float32]) -> None:
        """Take in the values of a batch, without those at padding."""
        ...


@dataclass(frozen=True)
class Walk:
    """How to walk through the data in bounded memory, and where tensors have padding.

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
    """Show every observer its tensor for all samples.

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
                kept = without_padding(values[name], mask, walk.positions[name])
                if kept.size:
                    observers[name].update(kept)
                if of_all is not None and values[name].size:
                    of_all[name].update(values[name].astype(np.float32, copy=False))


def plan_walk(model: onnx.ModelProto, feed: Arrays, tensors: Sequence[str], mask_input: str | None) -> Walk:
    """Run one sample, then three shorter ones: what takes how much memory, and what follows the mask.

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
    positions = {name: _positions(masks, [seen[name] for seen in shapes]) for name in tensors}
    passes = _passes(sizes)
    widest = max((sum(sizes[name] for name in names) for names in passes), default=0)
    return Walk(min(ROWS_AT_ONCE, max(1, BYTES_AT_ONCE // max(1, widest))), passes, positions)


def find_positions(
    model: onnx.ModelProto, feeds: Sequence[Arrays], tensors: Sequence[str], mask_input: str | None
) -> Mapping[str, Positions]:
    """How some tensors begin, told on the largest of the batches; nothing is run where there is no mask."""
    if not any(mask_input in feed for feed in feeds):
        return dict.fromkeys(tensors, "none")
    return plan_walk(model, largest_feed(feeds), tensors, mask_input).positions


def without_padding(
    values: NDArray[np.generic], mask: NDArray[np.bool_] | None, positions: Positions
) -> NDArray[np.float32]:
    """The values at positions that count."""
    found = values.astype(np.float32, copy=False)
    if mask is None or positions == "none":
        return found
    return found[mask if positions == "apart" else mask.ravel()]


def largest_feed(feeds: Iterable[Arrays]) -> Arrays:
    """The batch with the largest samples; of those, the first."""
    largest, found = -1.0, None
    for feed in feeds:
        size = sum(value.nbytes / max(1, len(value)) for value in feed.values() if value.ndim)
        if size > largest:
            largest, found = size, feed
    assert found is not None, "there is a batch"
    return found


def small_feeds(model: onnx.ModelProto, feeds: Iterable[Arrays], rows: int = ROWS_AT_ONCE) -> Iterator[Arrays]:
    """What a graph takes of each batch, in batches of at most so many rows where their size is free."""
    names, free = {v.name for v in model.graph.input}, _batch_is_free(model)
    for given in feeds:
        feed = {name: value for name, value in given.items() if name in names}
        batch = {len(value) for value in feed.values() if value.ndim}
        if not free or len(batch) != 1:
            yield feed
            continue
        for start in range(0, batch.pop(), rows):
            yield {name: value[start : start + rows] for name, value in feed.items()}


def _batch_is_free(model: onnx.ModelProto) -> bool:
    stored = {t.name for t in model.graph.initializer}
    given = [v.type.tensor_type.shape.dim for v in model.graph.input if v.name not in stored]
    return all(dims and not dims[0].HasField("dim_value") for dims in given)


def _shorter(model: onnx.ModelProto, feed: Arrays, mask_input: str | None) -> Iterator[Arrays]:
    """The same at a quarter of its length along the mask's symbolic axes, three times where the batch is free."""
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
    """A shorter length; the probe's rows times it are never the length again."""
    return length // 4 or min(2, max(1, length - 1))


def _positions(masks: Sequence[tuple[int, ...]], shapes: Sequence[tuple[int, ...]]) -> Positions:
    pairs = list(zip(masks, shapes, strict=False))
    if pairs and all(len(shape) > len(mask) and shape[: len(mask)] == mask for mask, shape in pairs):
        return "apart"
    if pairs and all(len(shape) >= 2 and shape[0] == int(np.prod(mask)) for mask, shape in pairs):
        return "as one"
    return "none"


def _passes(sizes: Mapping[str, int]) -> list[list[str]]:
    """Tensors that fit into the memory of a pass together, in their order."""
    passes: list[list[str]] = []
    held = 0
    for name, size in sizes.items():
        if not passes or held + size > BYTES_AT_ONCE:
            passes.append([])
            held = 0
        passes[-1].append(name)
        held += size
    return passes
