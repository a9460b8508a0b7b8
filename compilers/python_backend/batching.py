"""Requests of one execution as batches: those of equal shape together, and the answers apart again.

For models of Triton's Python backend; needs NumPy alone, as the stub of a stand-in has no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Arrays = Mapping[str, Any]  # of NumPy; but for `merged`, of PyTorch as well


def batches(feeds: Sequence[Arrays], *, batching: bool) -> list[list[int]]:
    """Indices of requests that can run together: same inputs, same shapes behind the batch dimension.

    Args:
        feeds: the inputs of each request.
        batching: the first dimension is that of samples; otherwise each request runs alone.
    """
    if not batching:
        return [[index] for index in range(len(feeds))]
    found: dict[Any, list[int]] = {}
    for index, feed in enumerate(feeds):
        alike = tuple(sorted((name, array.shape[1:]) for name, array in feed.items()))
        found.setdefault(alike, []).append(index)
    return list(found.values())


def merged(feeds: Sequence[Arrays]) -> Arrays:
    """The inputs of several requests as those of one."""
    if len(feeds) == 1:
        return feeds[0]
    return {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}


def parted(answer: Arrays, feeds: Sequence[Arrays]) -> list[Arrays]:
    """The outputs of merged requests, for each its own rows.

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
    """Rows in one piece of memory, of an array or of a PyTorch tensor."""
    return np.ascontiguousarray(rows) if isinstance(rows, np.ndarray) else rows.contiguous()
