"""How many of some bytes are on their way, in words for a person."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from plansmith.units import bytes_in_words

_SECONDS_BETWEEN_WORDS = 0.1


class Tally:
    """Adds up the bytes that threads report, and tells of them now and then.

    Args:
        words: what happens to them, such as "sending to s3://models".
        progress: told in words what is done, and which part of it, from 0 to 1, where that is known.
    """

    def __init__(self, words: str, progress: Callable[[str, float | None], None]) -> None:
        self._words = words
        self._progress = progress
        self._lock = threading.Lock()
        self._total = self._done = 0
        self._told = 0.0

    def begin(self, total: int) -> None:
        """So many bytes are to go."""
        self._total, self._done = total, 0

    def add(self, count: int) -> None:
        """So many of them went; what was sent again does not count twice."""
        with self._lock:
            self._done = min(self._done + count, self._total)
            now = time.monotonic()
            if now < self._told + _SECONDS_BETWEEN_WORDS and self._done < self._total:
                return
            self._told = now
            words = f"{self._words}, {bytes_in_words(self._done)} of {bytes_in_words(self._total)}"
            self._progress(words, self._done / self._total if self._total else None)
