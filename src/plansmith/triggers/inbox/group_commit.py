"""Work that costs as much for one as for many, such as a commit: what several coroutines ask for is done at once."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import Generic, TypeVar

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


@dataclass
class _Request(Generic[Asked, Answer]):
    """What one coroutine asked for, and what it waits for."""

    asked: Asked
    answered: asyncio.Future[Answer]


class GroupCommit(Generic[Asked, Answer]):
    """Does what coroutines ask for, in a thread of its own: all that came while it did what came before, at once.

    Args:
        do: answers several requests, in their order; what it raises, all of them get. That thread alone calls it.
    """

    def __init__(self, do: Callable[[Sequence[Asked]], Sequence[Answer]]) -> None:
        self._waiting: SimpleQueue[_Request[Asked, Answer] | None] = SimpleQueue()
        # The thread knows nothing of this object, and ends with it.
        Thread(target=_work, args=(self._waiting, do), name="together", daemon=True).start()
        weakref.finalize(self, self._waiting.put, None)

    async def __call__(self, asked: Asked) -> Answer:
        """Have it done. What waits is done also where the one who asked waits no more."""
        mine: _Request[Asked, Answer] = _Request(asked, asyncio.get_running_loop().create_future())
        self._waiting.put(mine)
        return await mine.answered


def _work(
    waiting: SimpleQueue[_Request[Asked, Answer] | None], do: Callable[[Sequence[Asked]], Sequence[Answer]]
) -> None:
    is_over = False
    while not is_over:
        found = [waiting.get()]
        while not waiting.empty():
            found.append(waiting.get())
        is_over = None in found
        if requests := [one for one in found if one is not None]:
            _do_all(requests, do)


def _do_all(requests: list[_Request[Asked, Answer]], do: Callable[[Sequence[Asked]], Sequence[Answer]]) -> None:
    answers: Sequence[Answer] = ()
    failed: BaseException | None = None
    try:
        answers = do([one.asked for one in requests])
        assert len(answers) == len(requests)
    except BaseException as error:  # noqa: BLE001 - of everyone whose request it was
        failed = error

    def tell(loop: asyncio.AbstractEventLoop) -> None:
        for number, one in enumerate(requests):
            if one.answered.get_loop() is not loop or one.answered.done():
                continue
            if failed is not None:
                one.answered.set_exception(failed)
            else:
                one.answered.set_result(answers[number])

    for loop in {one.answered.get_loop() for one in requests}:
        with suppress(RuntimeError):  # it has ended, and nobody waits there
            loop.call_soon_threadsafe(tell, loop)
