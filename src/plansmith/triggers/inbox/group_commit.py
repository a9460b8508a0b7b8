"""Group commit: merges concurrent requests of coroutines for work that costs the same for one as for many."""

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
    """A pending request: the payload of one coroutine and the future it awaits."""

    payload: Asked
    answered: asyncio.Future[Answer]


class GroupCommit(Generic[Asked, Answer]):
    """Group commit: a thread of its own serves coroutines, batching all requests that came during the last batch.

    Args:
        do: answers several requests, in their order; what it raises, all of them get. That thread alone calls it.
    """

    def __init__(self, do: Callable[[Sequence[Asked]], Sequence[Answer]]) -> None:
        self._waiting: SimpleQueue[_Request[Asked, Answer] | None] = SimpleQueue()
        # The thread knows nothing of this object, and ends with it.
        Thread(target=_work, args=(self._waiting, do), name="together", daemon=True).start()
        weakref.finalize(self, self._waiting.put, None)

    async def __call__(self, item: Asked) -> Answer:
        """Submit an item and wait for the result; it is processed even if the caller is cancelled."""
        mine: _Request[Asked, Answer] = _Request(item, asyncio.get_running_loop().create_future())
        self._waiting.put(mine)
        return await mine.answered


def _work(
    waiting: SimpleQueue[_Request[Asked, Answer] | None], do: Callable[[Sequence[Asked]], Sequence[Answer]]
) -> None:
    is_over = False
    while not is_over:
        items = [waiting.get()]
        while not waiting.empty():
            items.append(waiting.get())
        is_over = None in items
        if requests := [item for item in items if item is not None]:
            _do_all(requests, do)


def _do_all(requests: list[_Request[Asked, Answer]], do: Callable[[Sequence[Asked]], Sequence[Answer]]) -> None:
    answers: Sequence[Answer] = ()
    failed: BaseException | None = None
    try:
        answers = do([request.payload for request in requests])
        assert len(answers) == len(requests)
    except BaseException as error:  # noqa: BLE001 - of everyone whose request it was
        failed = error

    def tell(loop: asyncio.AbstractEventLoop) -> None:
        for number, request in enumerate(requests):
            if request.answered.get_loop() is not loop or request.answered.done():
                continue
            if failed is not None:
                request.answered.set_exception(failed)
            else:
                request.answered.set_result(answers[number])

    for loop in {request.answered.get_loop() for request in requests}:
        with suppress(RuntimeError):  # it has ended, and nobody waits there
            loop.call_soon_threadsafe(tell, loop)
