"""Sends requests when they are due, independent of the answers, in a process that gevent has patched."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from plansmith.loadtest.client.recorder import Recorder

_GRACE_SECONDS = 0.5
"""After the stage, in which due requests are still sent: a process that was held up for a moment catches up."""


class OpenLoop:
    """Sends the requests of an open-loop stage.

    A bounded number is in flight: further ones wait, and their latencies include that, as they count from the due time.
    What still waits at the end of the stage is not sent, nor what this process cannot send by then.

    Args:
        stage: its number.
        arrivals: due times, in seconds after the stage began.
        seconds: duration of the stage.
        max_in_flight: unanswered requests at a time.
    """

    def __init__(self, stage: int, arrivals: Iterator[float], seconds: float, max_in_flight: int) -> None:
        from gevent.lock import BoundedSemaphore

        self._stage = stage
        self._arrivals = arrivals
        self._seconds = seconds
        self._slots = BoundedSemaphore(max_in_flight)
        self._is_behind = False

    def run(self, send: Callable[[float, bool], None], recorder: Recorder) -> None:
        """Send until the stage is over.

        Args:
            send: sends a request and waits for its answer; takes the due time, and whether it waited for others.
            recorder: counts arrivals.
        """
        import gevent

        zero = time.perf_counter()
        for at in self._arrivals:
            due = zero + at
            recorder.arrivals(self._stage, due=1)
            if time.perf_counter() - zero > self._seconds + _GRACE_SECONDS:
                recorder.arrivals(self._stage, due=sum(1 for _ in self._arrivals))
                break
            if (wait := due - time.perf_counter()) > 0:
                self._is_behind = False
            gevent.sleep(max(0.0, wait))  # also without a wait, so that requests in flight proceed
            if not self._acquire_slot(zero, recorder):
                continue
            recorder.arrivals(self._stage, sent=1)
            gevent.spawn(self._send, send, due, self._is_behind)
        gevent.sleep(max(0.0, zero + self._seconds - time.perf_counter()))

    def _acquire_slot(self, zero: float, recorder: Recorder) -> bool:
        """Wait until one more request may be in flight, but not beyond the stage."""
        if self._slots.acquire(blocking=False):
            return True
        recorder.arrivals(self._stage, held=1)
        self._is_behind = True
        remaining = zero + self._seconds - time.perf_counter()
        return remaining > 0 and bool(self._slots.acquire(timeout=remaining))

    def _send(self, send: Callable[[float, bool], None], due: float, is_behind: bool) -> None:
        try:
            send(due, is_behind)
        finally:
            self._slots.release()
