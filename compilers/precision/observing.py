"""Walking through calibration data: what inner tensors hold, padding left out, one small batch at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np

from plansmith.compilers.precision.activations import stream

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

    from plansmith.reference import StoredCases

    Arrays = Mapping[str, NDArray[np.generic]]

ROWS_AT_ONCE = 16
"""Samples that run at once where the batch is free: what bounds the memory that a pass takes."""


class Observer(Protocol):
    """What looks at one tensor, batch after batch."""

    def update(self, values: NDArray[np.float32]) -> None:
        """Take in the values of a batch, without those at padding."""
        ...


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
    feeds, masks = (small_feeds(model, (case.feed for case in samples)) for _ in range(2))
    for values, feed in zip(stream(model, feeds, list(observers)), masks, strict=True):
        mask = feed[mask_input].astype(bool) if mask_input in feed else None  # type: ignore[index]
        for name, observer in observers.items():
            kept = without_padding(values[name], mask)
            if kept.size:
                observer.update(kept)
            if of_all is not None and values[name].size:
                of_all[name].update(values[name].astype(np.float32, copy=False))


def without_padding(values: NDArray[np.generic], mask: NDArray[np.bool_] | None) -> NDArray[np.float32]:
    """The values at positions that count, where the tensor has the mask's axes in front, apart or as one."""
    found = values.astype(np.float32, copy=False)
    if mask is None or found.ndim < 2:
        return found
    if found.ndim > mask.ndim and found.shape[: mask.ndim] == mask.shape:
        return found[mask]
    if found.ndim == mask.ndim and found.shape[0] == mask.size:
        return found[mask.ravel()]
    return found


def small_feeds(model: onnx.ModelProto, feeds: Iterable[Arrays], rows: int = ROWS_AT_ONCE) -> Iterator[Arrays]:
    """What a graph takes of each batch, in batches of at most so many rows where their size is free."""
    names = {v.name for v in model.graph.input}
    free = all(
        v.type.tensor_type.shape.dim and not v.type.tensor_type.shape.dim[0].HasField("dim_value")
        for v in model.graph.input
        if v.name not in {t.name for t in model.graph.initializer}
    )
    for given in feeds:
        feed = {name: value for name, value in given.items() if name in names}
        batch = {len(value) for value in feed.values() if value.ndim}
        if not free or len(batch) != 1:
            yield feed
            continue
        for start in range(0, batch.pop(), rows):
            yield {name: value[start : start + rows] for name, value in feed.items()}
