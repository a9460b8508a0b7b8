"""Pieces of files move in a few threads, and few of them are in memory at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from plansmith.stores.backend.s3_transfer import TransferPool


def test_results_keep_job_order() -> None:
    """Results come in the order of the jobs."""

    def job(number: int) -> int:
        time.sleep(0.002 * (number % 3))
        return number

    assert TransferPool().run(partial(job, number) for number in range(30)) == list(range(30))


def test_pieces_limited_by_room() -> None:
    """No more pieces are made than there is room for."""
    lanes = TransferPool()
    pieces: set[int] = set()
    most: list[int] = []
    lock = threading.Lock()

    def job(number: int) -> None:
        time.sleep(0.002)
        with lock:
            pieces.remove(number)

    def jobs(first: int) -> Iterator[Callable[[], None]]:
        for number in range(first, first + 20):
            with lock:
                pieces.add(number)
                most.append(len(pieces))
            yield partial(job, number)

    callers = [threading.Thread(target=lanes.run, args=(jobs(100 * number),)) for number in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not pieces
    assert len(most) == 80
    assert max(most) <= 6


def test_first_failure_ends_run() -> None:
    """The first failure ends a run and leaves room for others."""
    lanes = TransferPool()
    begun: list[int] = []

    def job(number: int) -> None:
        begun.append(number)
        if number == 3:
            raise ValueError("third")

    for _ in range(10):
        begun.clear()
        with pytest.raises(ValueError, match="third"):
            lanes.run(partial(job, number) for number in range(1000))
        assert len(begun) < 1000
    assert lanes.run([lambda: 1]) == [1]


def test_impossible_job_frees_room() -> None:
    """A job that cannot be made leaves room for others."""
    lanes = TransferPool()

    def jobs() -> Iterator[Callable[[], int]]:
        yield lambda: 1
        raise ValueError("no file")

    for _ in range(10):
        with pytest.raises(ValueError, match="no file"):
            lanes.run(jobs())
    assert lanes.run([lambda: 1] * 20) == [1] * 20
