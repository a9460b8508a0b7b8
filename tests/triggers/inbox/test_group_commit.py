"""What several coroutines ask for is done at once, and each gets its own answer."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Sequence
from threading import Event

import pytest

from plansmith.triggers.inbox.group_commit import GroupCommit

_LONGEST_SECONDS = 60


class _Slow:
    """Doubles numbers; the first time it goes on when it is let."""

    def __init__(self) -> None:
        self.done: list[list[int]] = []
        self.is_at_it, self.may_go_on = Event(), Event()

    def __call__(self, asked: Sequence[int]) -> list[int]:
        if not self.done:
            self.is_at_it.set()
            assert self.may_go_on.wait(_LONGEST_SECONDS)
        self.done.append(list(asked))
        if any(number < 0 for number in asked):
            raise ValueError("negative")
        return [2 * number for number in asked]


async def _first_and_others(together: Callable[[int], Awaitable[int]], slow: _Slow, *others: int) -> list[object]:
    """What becomes of 0, and of others that are asked for while it is done."""

    async def ask(number: int) -> int:
        return await together(number)

    first = asyncio.create_task(ask(0))
    assert await asyncio.to_thread(slow.is_at_it.wait, _LONGEST_SECONDS)
    rest = [asyncio.create_task(ask(number)) for number in others]
    await asyncio.sleep(0)  # each of them runs until it waits
    slow.may_go_on.set()
    return list(await asyncio.wait_for(asyncio.gather(first, *rest, return_exceptions=True), _LONGEST_SECONDS))


def test_waiting_jobs_committed_together() -> None:
    """Those who come while one is done are done together, and each has its answer."""
    slow = _Slow()
    answers = asyncio.run(_first_and_others(GroupCommit(slow), slow, 1, 2, 3, 4, 5, 6))
    assert answers == [0, 2, 4, 6, 8, 10, 12]
    assert slow.done == [[0], [1, 2, 3, 4, 5, 6]]


def test_failed_round_tells_everyone() -> None:
    """All of a round that failed are told, and the next round is done."""
    slow = _Slow()
    together = GroupCommit(slow)

    async def ask() -> int:
        first, *others = await _first_and_others(together, slow, -1, 1)
        assert first == 0
        for error in others:
            assert isinstance(error, ValueError)
        return await together(4)

    assert asyncio.run(ask()) == 8


def test_leaver_keeps_no_answer_back() -> None:
    """A caller that left keeps nobody else from an answer, nor does a loop that ended."""
    slow = _Slow()
    together = GroupCommit(slow)

    async def leave() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(together(0), 0.05)
        slow.may_go_on.set()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(together(1), 0)

    async def ask() -> int:
        return await together(2)

    asyncio.run(leave())
    assert asyncio.run(ask()) == 4


def test_thread_ends_with_last_asker() -> None:
    """The thread ends with the last caller who could ask."""
    before = set(threading.enumerate())
    together = GroupCommit(_Slow())
    (thread,) = set(threading.enumerate()) - before
    del together
    gc.collect()
    thread.join(_LONGEST_SECONDS)
    assert not thread.is_alive()
