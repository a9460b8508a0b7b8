"""Who watches a flow run from the process that started it.

A module of its own, because Prefect's runner pickles a flow together with the globals that it names, and a context
variable cannot be pickled.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field

from plansmith.fleet.records import ModelOutcome
from plansmith.records.release import Manifest, PublishedVersion
from plansmith.steps.runner import Listener


@dataclass
class RunObserver:
    """Told how a run goes, and handed what came of it; `ended`: in words, also where nothing did."""

    listener: Listener = field(default_factory=Listener)
    outcome: tuple[PublishedVersion, Manifest] | None = None
    ended: ModelOutcome | None = None


current: ContextVar[RunObserver | None] = ContextVar("current", default=None)
