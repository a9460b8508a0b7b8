"""Worker pool: several worker processes at a time, all of which an interrupt ends."""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from plansmith.system.process import Worker

T = TypeVar("T")
R = TypeVar("R")

_POLL_SECONDS = 0.2
_INTERRUPT_SECONDS = 1
"""A signal for all processes may end a worker before the main thread has heard of it."""


def cores_per_job(jobs: int) -> int:
    """Return the number of threads for each of several jobs, so that together they fill the cores."""
    return max(1, len(os.sched_getaffinity(0)) // jobs)


class WorkerPool:
    """Worker pool.

    Args:
        jobs: threads, each of which may have a worker.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._lock = threading.Lock()
        self._open: set[Worker] = set()
        self._ended = threading.Event()

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Return a function's result for each item, in order; the function runs in several threads.

        An interrupt, or the first error, kills all workers of the pool.
        """
        with ThreadPoolExecutor(self._jobs, thread_name_prefix="worker-pool") as threads:
            try:
                return _results([threads.submit(contextvars.copy_context().run, function, item) for item in items])
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                self._end()
                raise

    @contextmanager
    def open(
        self,
        module: str,
        log: Path,
        progress: Callable[[str], None] = lambda _: None,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> Iterator[Worker]:
        """Start a worker for the block; see `Worker` for the arguments."""
        with Worker(module, log, progress, environment=environment) as worker:
            with self._lock:
                self._open.add(worker)
            if self._ended.is_set():
                worker.kill()
            try:
                yield worker
            finally:
                with self._lock:
                    self._open.discard(worker)

    def is_interrupted(self) -> bool:
        """Whether a worker that has just died was ended by an interrupt; waits a moment to hear of it."""
        return self._ended.wait(_INTERRUPT_SECONDS)

    def _end(self) -> None:
        self._ended.set()
        with self._lock:
            for worker in self._open:
                worker.kill()


def _results(futures: Sequence[Future[R]]) -> list[R]:
    """Return all results, or raise the first error.

    Waits in short turns: a signal that comes as a wait begins is heard of only at its end.
    """
    while True:
        done, pending = wait(futures, timeout=_POLL_SECONDS, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
        if not pending:
            return [future.result() for future in futures]
