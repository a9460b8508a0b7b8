"""Receiver and builder in one process, until a signal comes."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from plansmith.config.service.triggers import TriggersConfig
from plansmith.errors import EnvironmentFault
from plansmith.triggers.inbox.inbox import Inbox
from plansmith.triggers.metrics import Metrics
from plansmith.triggers.receiver.application import Pages, make_app
from plansmith.triggers.receiver.log_limiter import LogLimiter
from plansmith.triggers.receiver.server import ReceiverServer
from plansmith.triggers.secrets import Secrets

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LOOK_SECONDS = 0.5
_END_SECONDS = 60.0
"""How long a worker may take to finish its entry: all questions of one run."""


class Service(Protocol):
    """Works something off in a thread of its own."""

    def work(self, stop: threading.Event) -> None:
        """Work until told to stop, and finish what is in work then."""
        ...


def serve(
    config: TriggersConfig,
    inbox: Inbox,
    secrets: Secrets,
    at: socket.socket,
    workers: Sequence[Service],
    *,
    ready: Callable[[], None],
    ending: Callable[[], None] = lambda: None,
    pages: Pages | None = None,
    metrics: Metrics | None = None,
) -> int:
    """Take deliveries and work them off until SIGINT or SIGTERM, which is the answer; call it in the main thread.

    What is in work then is finished: a second signal does not wait for that, and what was begun is done again later.

    Args:
        config: the section `triggers`.
        inbox: where deliveries are kept.
        secrets: of the registries; those that are not known yet are asked for meanwhile.
        at: where to listen.
        workers: each in a thread of its own; none: deliveries are kept for others.
        ready: called when deliveries are taken, and signals end it as they should.
        ending: called when the end waits for what is in work.
        pages: for people; none when left out.
        metrics: that the workers count in, too; new ones when left out.

    Raises:
        EnvironmentFault: the receiver does not start, or has ended by itself.
    """
    stop, metrics, repeats = threading.Event(), metrics or Metrics(), LogLimiter()
    app = make_app(config, inbox, secrets.known, metrics=metrics, repeats=repeats, awaited=secrets.awaited, pages=pages)
    with _told() as told, ReceiverServer(app, at, limits=config.limits, metrics=metrics) as listener:
        threads = [threading.Thread(target=one.work, args=(stop,), daemon=True) for one in (*workers, secrets)]
        for thread in threads:
            thread.start()
        ready()
        number = _wait(told, lambda: listener.is_running)
        listener.stop()
        stop.set()
        if number is None:
            raise EnvironmentFault("the receiver has ended by itself", remedy="see what it wrote, and start it again")
        _finish(told, threads, ending)
    repeats.end()
    return number


@contextmanager
def _told() -> Iterator[SimpleQueue[int]]:
    """The signals that come while a block is worked through."""
    told: SimpleQueue[int] = SimpleQueue()

    def take(number: int, _frame: Any) -> None:
        told.put(number)

    before = {one: signal.signal(one, take) for one in _SIGNALS}
    try:
        yield told
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _wait(told: SimpleQueue[int], is_running: Callable[[], bool]) -> int | None:
    while is_running():
        with suppress(Empty):
            return told.get(timeout=_LOOK_SECONDS)
    return None


def _finish(told: SimpleQueue[int], threads: Sequence[threading.Thread], ending: Callable[[], None]) -> None:
    """Wait for the workers, unless told once more."""
    for thread in threads:
        thread.join(_LOOK_SECONDS / len(threads))
    if any(thread.is_alive() for thread in threads):
        ending()
    left = _END_SECONDS
    while left > 0 and any(thread.is_alive() for thread in threads):
        with suppress(Empty):
            told.get(timeout=_LOOK_SECONDS / 5)
            return
        left -= _LOOK_SECONDS / 5


def worker_name(number: int) -> str:
    """What one of several workers of this process is called, beside what it has in work."""
    return f"{socket.gethostname()}:{os.getpid()}:{number}"
