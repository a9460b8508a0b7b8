"""Pauses after what failed, longer each time."""

from __future__ import annotations

import time
from dataclasses import dataclass

_LONGEST_SECONDS = 300.0


@dataclass
class Pause:
    """Until when something that failed is not tried again: `first` seconds, then longer and longer."""

    first: float
    seconds: float = 0
    until: float = 0

    def begin(self) -> None:
        """It failed."""
        self.seconds = min(max(self.first, 2 * self.seconds), _LONGEST_SECONDS)
        self.until = time.monotonic() + self.seconds

    def end(self) -> None:
        """It did not."""
        self.seconds = self.until = 0

    @property
    def is_over(self) -> bool:
        """Whether it may be tried."""
        return time.monotonic() >= self.until
