"""Tells registries what came of builds: entry by entry, once all runs of one have ended, until told to stop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Protocol

from plansmith.errors import GateError, ServedCheckError, UsageError
from plansmith.flows.triggers.triggered_runs import RunOutcome
from plansmith.triggers.inbox.entry import InboxEntry, Sibling, StartedRun, WriteBack
from plansmith.triggers.worker_loop import LEASE_SECONDS, WorkerContext, recheck_seconds, run_until_stopped
from plansmith.triggers.write_back import verdicts
from plansmith.triggers.write_back.verdicts import Build, Verdict, VersionReport, Writer

_REFUSALS = {GateError.exit_code, ServedCheckError.exit_code}


class RunOutcomes(Protocol):
    """Knows how runs ended; may be asked from several threads."""

    def ended(self, run: str) -> RunOutcome | None:
        """As `TriggeredRuns.ended`."""
        ...


class WriteBackWorker:
    """Tells registries what came of entries of an inbox.

    One that is killed after it wrote and before that was noted is followed by another, which writes the same again.

    Args:
        hand: whose name, inbox and patience it has.
        endings: of the entries' runs.
        writers: of the registries that are told, by name.
        registries: all of the service's file.
    """

    def __init__(
        self, hand: WorkerContext, endings: RunOutcomes, writers: Mapping[str, Writer], registries: Collection[str]
    ) -> None:
        self._context = hand
        self._write_backs = hand.inbox.write_backs
        self._endings = endings
        self._writers = writers
        self._registries = registries

    def work(self, stop: threading.Event) -> None:
        """Tell until told to stop; what is in work then is finished."""
        run_until_stopped(self.step, stop, self._context.draw)

    def step(self) -> bool:
        """Look at the runs of one entry, and tell of them; False where none is due.

        Raises:
            EnvironmentFault: the inbox cannot be read or written.
        """
        one = self._write_backs.claim(self._context.name, self._context.clock(), LEASE_SECONDS)
        if one is None:
            return False
        entry = self._context.inbox.entry(one.entry)
        if entry is None:
            self._write_backs.unwanted(one)
            return True
        try:
            self._tell(one, entry)
        except Exception as error:  # noqa: BLE001 - a bug of ours or of Prefect's is no reason to stop, either
            put_off = partial(self._write_backs.postpone, one, failed=True)
            set_aside = partial(self._write_backs.set_aside, one)
            self._context.fail(error, "write-back", entry, one.attempts + 1, put_off=put_off, set_aside=set_aside)
        return True

    def _tell(self, one: WriteBack, entry: InboxEntry) -> None:
        if entry.registry not in self._registries:
            raise UsageError(
                f"the file of the service has no registry {entry.registry}, but {', '.join(self._registries)}",
                remedy="add it, or give each service an inbox of its own; then: plansmith triggers inbox write-back"
                f" {one.entry}",
            )
        if (writer := self._writers.get(entry.registry)) is None:
            self._write_backs.unwanted(one)
            return
        siblings = self._write_backs.of_version(entry)
        found = self._look(one, siblings)
        if found is None:
            return
        if entry.id in found.awaited:
            self._wait(one, entry, "the end of its runs is waited for")
            return
        verdict = verdicts.whole_verdict(found.verdicts)
        telling = VersionReport(
            event=entry.event,
            builds=tuple(found.builds),
            verdict="" if found.awaited and verdict == "published" else verdict,
            is_last=found.is_last,
        )
        if not writer.write(telling, partial(self._keep, one)):
            return
        if found.awaited:
            self._wait(one, entry, f"the verdict of the version waits for entry {min(found.awaited)}")
        elif self._write_backs.finish(one, verdict):
            runs = {build.run: build.verdict for build in telling.builds}
            self._context.log_entry(entry, logging.INFO, "write-back", "written", verdict=verdict, runs=runs)

    def _look(self, one: WriteBack, siblings: Sequence[Sibling]) -> _VersionProgress | None:
        """What came of each model and target of a version in its youngest entry; None where it is another's now."""
        found = _VersionProgress(awaited={sibling.entry for sibling in siblings if sibling.told is None})
        youngest = {run.label: (sibling, run) for sibling in siblings for run in sibling.runs}
        for sibling, run in youngest.values():
            told = sibling.told
            if told is None:
                continue
            if told.verdict == "published":
                found.verdicts.append("published")
                continue
            if not self._keep(one):
                return None
            ended = self._endings.ended(run.id)
            if ended is None:
                found.awaited.add(sibling.entry)
                continue
            found.verdicts.append(verdict_of(ended))
            found.is_last &= ended.is_last
            # What was told stays, and what a registry did not take of one keeps none of the others back.
            if told.state not in {"written", "set-aside"}:
                found.builds.append(build_of(run, ended))
        return found

    def _wait(self, one: WriteBack, entry: InboxEntry, reason: str) -> None:
        now = self._context.clock()
        took = now - (entry.settled_at or entry.received_at)
        after = recheck_seconds(took.total_seconds())
        self._write_backs.postpone(one, reason, now + timedelta(seconds=after), failed=False)

    def _keep(self, one: WriteBack) -> bool:
        return self._write_backs.renew(one, self._context.clock(), LEASE_SECONDS)


@dataclass
class _VersionProgress:
    """What came of a version so far: `awaited`: entries that have not ended; `is_last`: it is what is served."""

    awaited: set[int]
    is_last: bool = True
    builds: list[Build] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)


def build_of(run: StartedRun, ended: RunOutcome) -> Build:
    """What a registry is told of a run."""
    verdict, found = verdict_of(ended), ended.findings
    if not run.model:
        raise UsageError(
            f"nobody noted what the run {run.id} compiles: an older plansmith started it",
            remedy="retry the entry: plansmith triggers inbox retry ID",
        )
    return Build(
        model=run.model,
        target=run.target,
        verdict=verdict,
        reason="" if verdict == "published" else ended.run.words,
        places=found.places,
        manifest_digest=found.manifest_digest,
        figures=found.figures,
        run=run.address or run.id,
    )


def verdict_of(ended: RunOutcome) -> Verdict:
    """How a run ended, in a word."""
    if ended.run.state == "CANCELLED":
        return "cancelled"
    error = ended.run.error
    if error is None:
        return "published"
    return "refused" if error.exit_code in _REFUSALS else "failed"
