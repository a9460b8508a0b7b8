"""Pieces of files move in a few threads, and few of them are in memory at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from plansmith.stores.backend.s3.thread_pool import TransferPool


def test_results_come_in_the_order_of_the_jobs() -> None:
    def job(number: int) -> int:
        time.sleep(0.002 * (number % 3))
        return number

    assert TransferPool().run(partial(job, number) for number in range(30)) == list(range(30))


def test_no_more_pieces_are_made_than_there_is_room_for() -> None:
    lanes = TransferPool()
    held: set[int] = set()
    most: list[int] = []
    lock = threading.Lock()

    def job(number: int) -> None:
        time.sleep(0.002)
        with lock:
            held.remove(number)

    def jobs(first: int) -> Iterator[Callable[[], None]]:
        for number in range(first, first + 20):
            with lock:
                held.add(number)
                most.append(len(held))
            yield partial(job, number)

    callers = [threading.Thread(target=lanes.run, args=(jobs(100 * number),)) for number in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not held
    assert len(most) == 80
    assert max(most) <= 6


def test_the_first_failure_ends_a_run_and_leaves_room_for_others() -> None:
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


def test_a_job_that_cannot_be_made_leaves_room_for_others() -> None:
    lanes = TransferPool()

    def jobs() -> Iterator[Callable[[], int]]:
        yield lambda: 1
        raise ValueError("no file")

    for _ in range(10):
        with pytest.raises(ValueError, match="no file"):
            lanes.run(jobs())
    assert lanes.run([lambda: 1] * 20) == [1] * 20
