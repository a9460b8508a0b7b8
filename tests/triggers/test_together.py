"""What several threads ask for is done at once, and each gets its own answer."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from plansmith.triggers.inbox.group_commit import Together

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
        self.done.append(sorted(asked))
        if any(number < 0 for number in asked):
            raise ValueError("negative")
        return [2 * number for number in asked]


def test_those_who_come_while_one_is_done_are_done_together_and_each_has_its_answer() -> None:
    slow = _Slow()
    together = Together(slow)
    with ThreadPoolExecutor(8) as threads:
        first = threads.submit(together, 0)
        assert slow.is_at_it.wait(_LONGEST_SECONDS)
        others = [threads.submit(together, number) for number in range(1, 7)]
        while len(together._waiting) < len(others):
            assert not first.done()
        slow.may_go_on.set()
        assert [one.result(_LONGEST_SECONDS) for one in (first, *others)] == [0, 2, 4, 6, 8, 10, 12]
    assert slow.done == [[0], [1, 2, 3, 4, 5, 6]]


def test_all_of_a_round_that_failed_are_told_and_the_next_is_done() -> None:
    slow = _Slow()
    together = Together(slow)
    with ThreadPoolExecutor(8) as threads:
        first = threads.submit(together, 0)
        assert slow.is_at_it.wait(_LONGEST_SECONDS)
        others = [threads.submit(together, number) for number in (-1, 1)]
        while len(together._waiting) < len(others):
            assert not first.done()
        slow.may_go_on.set()
        assert first.result(_LONGEST_SECONDS) == 0
        for one in others:
            with pytest.raises(ValueError, match="negative"):
                one.result(_LONGEST_SECONDS)
    assert together(4) == 8
