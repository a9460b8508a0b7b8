"""Requests of one execution go together where their shapes allow it, and come apart as they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plansmith.compilers.python_backend.batching import batches, merged, parted


def feed(batch: int, length: int, *, mask: bool = False) -> dict[str, np.ndarray[Any, Any]]:
    ids = np.arange(batch * length).reshape(batch, length)
    return {"ids": ids, "mask": np.ones_like(ids)} if mask else {"ids": ids}


def test_equal_requests_batched_together() -> None:
    """Requests of equal shape behind the batch, and of the same inputs, go together."""
    feeds = [feed(1, 3), feed(2, 4), feed(5, 3), feed(1, 3, mask=True), feed(1, 4)]
    assert batches(feeds, batching=True) == [[0, 2], [1, 4], [3]]
    assert batches(feeds, batching=False) == [[0], [1], [2], [3], [4]]


def test_request_rows_have_own_memory() -> None:
    """Each request gets its own rows in memory of their own."""
    feeds = [feed(1, 3), feed(3, 3), feed(2, 3)]
    together = merged(feeds)
    assert together["ids"].shape == (6, 3)
    parts = parted({"sum": together["ids"].sum(1), "twice": together["ids"].T.copy().T * 2}, feeds)
    for part, own in zip(parts, feeds, strict=True):
        np.testing.assert_array_equal(part["sum"], own["ids"].sum(1))
        np.testing.assert_array_equal(part["twice"], own["ids"] * 2)
        assert all(array.flags.c_contiguous for array in part.values())


def test_single_request_not_copied() -> None:
    """A single request is not copied."""
    alone = feed(2, 3)
    assert merged([alone])["ids"] is alone["ids"]


def test_missing_output_rows_are_error() -> None:
    """An output with too few rows is an error and no mixture."""
    with pytest.raises(ValueError, match="'pooled' has 1 rows for a batch of 3"):
        parted({"pooled": np.zeros((1, 2))}, [feed(1, 3), feed(2, 3)])
