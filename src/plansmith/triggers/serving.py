"""Serving of triggers: receiver and builder in one process, until a signal arrives."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TextIO

from plansmith.config.service_triggers import TriggersConfig
from plansmith.errors import EnvironmentFault, first_line
from plansmith.triggers.inbox.inbox import Inbox
from plansmith.triggers.metrics import Metrics
from plansmith.triggers.receiver.application import LogLimiter, Pages, make_app
from plansmith.triggers.receiver.server import ReceiverServer
from plansmith.triggers.secrets import Secrets

_OURS = ("plansmith.deliveries", "plansmith.builds", "plansmith.pages", "plansmith.watch")
_SERVERS = ("uvicorn.error", "asyncio")
"""The server's own logs; what they say of requests that are none would be a line for each of an attacker's."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LOOK_SECONDS = 0.5
_END_SECONDS = 60.0
"""How long a worker may take to finish its entry: all questions of one run."""


class _Line(logging.Formatter):
    """One-line log format: plansmith messages are one line already; messages of the server are joined into one."""

    def format(self, record: logging.LogRecord) -> str:
        if record.name in _OURS:
            return record.getMessage()
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = {"event": "server", "time": time, "reason": record.getMessage()}
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            fields["reason"] = f"{type(error).__name__}: {first_line(error)}"
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def log_as_json(stream: TextIO | None = None) -> None:
    """Configure the service's loggers to write JSON lines, without any other handler.

    Args:
        stream: standard error where left out.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Line())
    for name, level in (*((name, logging.INFO) for name in _OURS), *((name, logging.ERROR) for name in _SERVERS)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)


class Service(Protocol):
    """A background service that runs in its own thread."""

    def work(self, stop: threading.Event) -> None:
        """Work until stopped, then finish the item in progress."""
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
    """Run the service until SIGINT or SIGTERM and return that signal; must be called in the main thread.

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
    app = make_app(
        config, inbox, secrets.by_registry, metrics=metrics, repeats=repeats, awaited=secrets.awaited, pages=pages
    )
    with _catch_signals() as signals, ReceiverServer(app, at, limits=config.limits, metrics=metrics) as listener:
        threads = [threading.Thread(target=worker.work, args=(stop,), daemon=True) for worker in (*workers, secrets)]
        for thread in threads:
            thread.start()
        ready()
        number = _wait(signals, lambda: listener.is_running)
        listener.stop()
        stop.set()
        if number is None:
            raise EnvironmentFault("the receiver has ended by itself", remedy="see what it wrote, and start it again")
        _finish(signals, threads, ending)
    repeats.end()
    return number


@contextmanager
def _catch_signals() -> Iterator[SimpleQueue[int]]:
    """Catch the signals that arrive while a block runs."""
    signals: SimpleQueue[int] = SimpleQueue()

    def take(number: int, _frame: Any) -> None:
        signals.put(number)

    before = {signal_number: signal.signal(signal_number, take) for signal_number in _SIGNALS}
    try:
        yield signals
    finally:
        for signal_number, handler in before.items():
            signal.signal(signal_number, handler)


def _wait(signals: SimpleQueue[int], is_running: Callable[[], bool]) -> int | None:
    while is_running():
        with suppress(Empty):
            return signals.get(timeout=_LOOK_SECONDS)
    return None


def _finish(signals: SimpleQueue[int], threads: Sequence[threading.Thread], ending: Callable[[], None]) -> None:
    """Wait for the workers to finish, unless another signal arrives."""
    for thread in threads:
        thread.join(_LOOK_SECONDS / len(threads))
    if any(thread.is_alive() for thread in threads):
        ending()
    left = _END_SECONDS
    while left > 0 and any(thread.is_alive() for thread in threads):
        with suppress(Empty):
            signals.get(timeout=_LOOK_SECONDS / 5)
            return
        left -= _LOOK_SECONDS / 5


def worker_name(number: int) -> str:
    """Return the name of one of this process's workers, as shown with the entries it has leased."""
    return f"{socket.gethostname()}:{os.getpid()}:{number}"
