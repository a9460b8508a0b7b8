"""Tells whether a server still answers."""

from __future__ import annotations

import time
from typing import Any

from plansmith.loadtest.client.senders import CONNECTION

_REFUSED_SECONDS = 5.0
_SILENT_SECONDS = 30.0
_TIMES_SLOWEST = 10
_GRACE_SECONDS = 5.0


class Liveness:
    """How long a server has answered nothing.

    It is lost when it refuses connections for 5 s, or answers no request for 30 s and ten times as long as the slowest
    answer took; at most as long as a request may take, and 5 s.

    Args:
        timeout_seconds: how long an answer may take.

    Attributes:
        is_refusing: it has refused connections since it last answered.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self.is_refusing = False
        self._max_seconds = timeout_seconds + _GRACE_SECONDS
        self._slowest_seconds = timeout_seconds
        self._answered = time.monotonic()

    def begin(self) -> None:
        """Requests are sent from now on."""
        self._answered = time.monotonic()

    def add(self, report: dict[str, Any], slowest_ms: float, in_flight: int) -> None:
        """Take a client's report.

        Args:
            report: of one client.
            slowest_ms: the slowest answer until now.
            in_flight: unanswered requests of all clients.
        """
        if slowest_ms:
            self._slowest_seconds = slowest_ms / 1000
        if report["answers"] or not (in_flight or report["unanswered"]):
            self._answered = time.monotonic()
        if report["answers"]:
            self.is_refusing = False
        elif report["unanswered"].get(CONNECTION, 0):
            self.is_refusing = True

    @property
    def silent_seconds(self) -> float:
        """How long nothing was answered while requests were in flight."""
        return time.monotonic() - self._answered

    def loss(self) -> str:
        """Why the server counts as lost; empty where it does not."""
        seconds = self.silent_seconds
        if self.is_refusing and seconds > _REFUSED_SECONDS:
            return f"it refuses connections, and has answered nothing for {seconds:.0f} s"
        limit = min(max(_SILENT_SECONDS, _TIMES_SLOWEST * self._slowest_seconds), self._max_seconds)
        return f"it has answered nothing for {seconds:.0f} s" if seconds > limit else ""
