"""Batching within one execution: groups requests of equal shape and splits the answers again.

For models of Triton's Python backend; needs NumPy alone, as the stub of a stand-in has no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Tensors = Mapping[str, Any]  # of NumPy; but for `merged`, of PyTorch as well


def batches(feeds: Sequence[Tensors], *, batching: bool) -> list[list[int]]:
    """Group requests that can run together, by index: same inputs, same shapes after the batch dimension.

    Args:
        feeds: the inputs of each request.
        batching: the first dimension is that of samples; otherwise each request runs alone.
    """
    if not batching:
        return [[index] for index in range(len(feeds))]
    groups: dict[Any, list[int]] = {}
    for index, feed in enumerate(feeds):
        alike = tuple(sorted((name, array.shape[1:]) for name, array in feed.items()))
        groups.setdefault(alike, []).append(index)
    return list(groups.values())


def merged(feeds: Sequence[Tensors]) -> Tensors:
    """Merge the inputs of several requests into one batch."""
    if len(feeds) == 1:
        return feeds[0]
    return {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}


def parted(answer: Tensors, feeds: Sequence[Tensors]) -> list[Tensors]:
    """Split the outputs of merged requests into each request's rows.

    Raises:
        ValueError: an output has fewer rows than all the requests together.
    """
    ends = np.cumsum([len(next(iter(feed.values()))) for feed in feeds])
    for name, value in answer.items():
        if len(value) < ends[-1]:
            raise ValueError(f"output '{name}' has {len(value)} rows for a batch of {ends[-1]}")
    starts = [0, *ends[:-1]]
    return [
        {name: _contiguous(value[start:end]) for name, value in answer.items()}
        for start, end in zip(starts, ends, strict=True)
    ]


def _contiguous(rows: Any) -> Any:
    """Make rows contiguous: a NumPy array or a PyTorch tensor."""
    return np.ascontiguousarray(rows) if isinstance(rows, np.ndarray) else rows.contiguous()
