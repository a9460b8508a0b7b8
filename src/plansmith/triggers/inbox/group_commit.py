"""Work that costs as much for one as for many, such as a commit: what several threads ask for is done at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Generic, TypeVar

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


@dataclass
class _Request(Generic[Asked, Answer]):
    """What one thread asked for; `answer` and `error` are set by whoever did it."""

    asked: Asked
    answer: Answer | None = None
    error: BaseException | None = None
    is_done: bool = False


class Together(Generic[Asked, Answer]):
    """Does what threads ask for: the first does its own, and those who came meanwhile have the next do theirs with it.

    Args:
        do: answers several requests, in their order; what it raises, all of them get.
    """

    def __init__(self, do: Callable[[Sequence[Asked]], Sequence[Answer]]) -> None:
        self._do = do
        self._turn = Lock()
        self._waiting: list[_Request[Asked, Answer]] = []

    def __call__(self, asked: Asked) -> Answer:
        """Have it done, by this thread or by one that is at it when this one comes."""
        mine: _Request[Asked, Answer] = _Request(asked)
        self._waiting.append(mine)  # in one step, whatever other threads do
        with self._turn:
            if not mine.is_done:
                self._do_all()
        if mine.error is not None:
            raise mine.error
        assert mine.is_done
        return mine.answer  # type: ignore[return-value] # it is set where there is no error

    def _do_all(self) -> None:
        """Do what waits; this thread has the turn."""
        requests = self._waiting[:]
        del self._waiting[: len(requests)]
        try:
            answers = self._do([request.asked for request in requests])
            for request, answer in zip(requests, answers, strict=True):
                request.answer = answer
        except BaseException as error:  # noqa: BLE001 - of every thread whose request it was, this one's included
            for request in requests:
                request.error = error
        for request in requests:
            request.is_done = True
