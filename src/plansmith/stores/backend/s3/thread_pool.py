"""Threads that move pieces of files, and a bound on the memory that these take together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import BoundedSemaphore
from typing import TypeVar

T = TypeVar("T")

_THREADS = 4
_PIECES = 6


class TransferPool:
    """A few threads, for all that one store sends and fetches; may be used from several threads at once."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, "plansmith-s3")
        self._room = BoundedSemaphore(_PIECES)

    def run(self, jobs: Iterable[Callable[[], T]]) -> list[T]:
        """Do jobs, several at once, and give what they return, in their order.

        Args:
            jobs: each is asked for when there is room for the piece of a file that it holds.

        Raises:
            Exception: whatever the first job raised that failed; those that were not begun are left then, the others
                are waited for.
        """
        waiting = iter(jobs)
        running: deque[Future[T]] = deque()
        done: list[T] = []
        try:
            while (job := self._next(waiting)) is not None:
                future = self._pool.submit(job)
                future.add_done_callback(lambda _: self._room.release())
                running.append(future)
                while running and running[0].done():
                    done.append(running.popleft().result())
            while running:
                done.append(running.popleft().result())
        finally:
            for future in running:
                future.cancel()
            wait(running)
        return done

    def _next(self, jobs: Iterator[Callable[[], T]]) -> Callable[[], T] | None:
        """The next job, and room for it; None, and no room taken, after the last."""
        self._room.acquire()
        job = None
        try:
            job = next(jobs, None)
        finally:
            if job is None:
                self._room.release()
        return job
