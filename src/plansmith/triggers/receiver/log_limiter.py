"""What is logged of requests that anybody can send: of a flood, a line a minute for each kind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable

_SECONDS = 60.0

Say = Callable[[int], None]
"""Writes a line, given for how many requests it stands."""


class LogLimiter:
    """Says the first of a kind at once, and all that come within a minute after a line of theirs as the next one.

    Lives in the loop that requests are answered in.

    Args:
        seconds: how long a minute is.
    """

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._seconds = seconds
        self._unsaid: dict[Hashable, tuple[int, Say]] = {}  # of each kind that had a line within the last minute

    def note(self, kind: Hashable, say: Say) -> None:
        """Say something, or count it.

        Args:
            kind: one of few, as each is remembered for a minute.
            say: of those that are counted, the last one's is called.
        """
        if kind in self._unsaid:
            self._unsaid[kind] = (self._unsaid[kind][0] + 1, say)
        else:
            self._say(kind, 1, say)

    def end(self) -> None:
        """Say what was only counted yet; when the loop has ended."""
        for number, say in self._unsaid.values():
            if number:
                say(number)
        self._unsaid.clear()

    def _say(self, kind: Hashable, number: int, say: Say) -> None:
        say(number)
        self._unsaid[kind] = (0, say)
        asyncio.get_running_loop().call_later(self._seconds, self._look, kind)

    def _look(self, kind: Hashable) -> None:
        number, say = self._unsaid.pop(kind)
        if number:
            self._say(kind, number, say)
