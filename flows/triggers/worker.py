"""Works the inbox off: entry by entry, until told to stop. Nothing that goes wrong with one ends it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from datetime import timedelta
from functools import partial

from plansmith.flows.triggers.builder import Builder, BuildResult
from plansmith.triggers.inbox.entry import InboxEntry, StartedRun
from plansmith.triggers.worker_loop import LEASE_SECONDS, WorkerContext, recheck_seconds, renewed, run_until_stopped

_LAG_SECONDS = 600.0
"""For how long a registry may be behind what it has told itself."""


class Worker:
    """Works off entries of an inbox.

    Args:
        hand: whose name, inbox and patience it has.
        builder: turns entries into runs.
        told: the registries that are told what came of builds.
    """

    def __init__(self, hand: WorkerContext, builder: Builder, *, told: Collection[str] = ()) -> None:
        self._context = hand
        self._inbox = hand.inbox
        self._clock = hand.clock
        self._builder = builder
        self._told = told

    def work(self, stop: threading.Event) -> None:
        """Work until told to stop; the entry that is in work then is finished."""
        run_until_stopped(self.step, stop, self._context.draw)

    def step(self) -> bool:
        """Work on one entry; False where none is due.

        Raises:
            EnvironmentFault: the inbox cannot be read or written.
        """
        entry = self._inbox.claim(self._context.name, self._clock(), LEASE_SECONDS)
        if entry is None:
            return False
        started: list[StartedRun] = []
        try:
            overtaken = self._overtaken(entry)
            with renewed(partial(self._keep, entry)) if self._builder.is_inline else nullcontext():
                built = (
                    BuildResult()
                    if overtaken
                    else self._builder.build(entry, partial(self._keep, entry), started.append)
                )
        except Exception as error:  # noqa: BLE001 - a bug of ours or of Prefect's is no reason to stop, either
            put_off = partial(self._inbox.postpone, entry, started=started)
            set_aside = partial(self._inbox.set_aside, entry, started=started)
            self._context.fail(error, "build", entry, entry.attempts, put_off=put_off, set_aside=set_aside)
        else:
            if overtaken:
                self._leave(entry, started, overtaken)
            elif built is not None:
                self._settle(entry, built, started)
        return True

    def _overtaken(self, entry: InboxEntry) -> str:
        """Why an entry needs no run, as a later one tells of other content of the same; empty where none does.

        Registries promise no order: what comes later may be the older news. So an entry whose registry still says the
        same is built all the same, and the later one finds out by itself that it is none.
        """
        youngest = self._inbox.youngest(entry.event) if entry.event.is_current else None
        if youngest is None:
            return ""
        number, content_key = youngest
        is_later = number > entry.id and content_key != entry.content_key
        if not is_later or self._builder.is_confirmed(entry.event):
            return ""
        if self._inbox.states(number).get(number) == "set-aside":
            return ""  # nothing comes of that one unless a person decides so
        return f"entry {number} tells of a later version"

    def _settle(self, entry: InboxEntry, built: BuildResult, started: Sequence[StartedRun]) -> None:
        age = (self._clock() - entry.received_at).total_seconds()
        if built.behind:
            self._wait(entry, started, f"waits for the run before it: {built.behind}", age)
        elif built.is_denied and age < _LAG_SECONDS:
            self._wait(entry, started, "the registry does not say so yet, or no more", age)
        elif built.is_denied:
            self._leave(entry, started, "the registry says otherwise")
        elif self._inbox.finish(entry, started, tell=entry.registry in self._told):
            outcome = "built" if started else "unwanted"
            self._context.log_entry(entry, logging.INFO, "build", outcome, runs=[run.id for run in started])

    def _leave(self, entry: InboxEntry, started: Sequence[StartedRun], reason: str) -> None:
        """An entry is done without another run; those that it has become stay its own."""
        runs = entry.with_started(started) or entry.runs
        if self._inbox.finish(entry, runs, tell=entry.registry in self._told, reason=reason):
            self._context.log_entry(entry, logging.INFO, "build", "outdated", reason=reason)

    def _wait(self, entry: InboxEntry, started: Sequence[StartedRun], reason: str, age: float) -> None:
        after = recheck_seconds(age)
        next_at = self._clock() + timedelta(seconds=after)
        if self._inbox.postpone(entry, reason, next_at, failed=False, started=started):
            self._context.log_entry(entry, logging.INFO, "build", "behind", reason=reason, seconds=round(after, 1))

    def _keep(self, entry: InboxEntry) -> bool:
        return self._inbox.renew(entry, self._clock(), LEASE_SECONDS)
