"""Who is told how flow runs go that are followed from another process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plansmith.flows.runs.endings import RunEnded
    from plansmith.flows.runs.submitting import SubmittedRun


class Watcher:
    """Told how flow runs go; this one keeps silent."""

    def state(self, run: SubmittedRun, words: str) -> None:
        """A run is in another state."""

    def step(self, run: SubmittedRun, names: Sequence[str]) -> None:
        """Which tasks of a run are at work now."""

    def line(self, run: SubmittedRun, level: int, text: str) -> None:
        """A run logged something, at one of the levels of Python's logging."""

    def ended(self, ended: RunEnded) -> None:
        """A run has ended."""

    def notice(self, text: str) -> None:
        """Something unusual happened that does not end the following."""
