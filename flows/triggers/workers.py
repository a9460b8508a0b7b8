"""Service workers: one processes the inbox, one writes outcomes back to registries."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Protocol

from plansmith.errors import GateError, ServedCheckError, UsageError
from plansmith.flows.triggers.builder import Builder, BuildResult, RunOutcome
from plansmith.triggers.inbox.entry import InboxEntry, Sibling, StartedRun, WriteBack
from plansmith.triggers.worker_loop import LEASE_SECONDS, WorkerContext, recheck_seconds, renewed, run_until_stopped
from plansmith.triggers.write_back import Build, Verdict, VersionReport, Writer, whole_verdict

_LAG_SECONDS = 600.0
"""For how long a registry may be behind what it has told itself."""

_REFUSALS = {GateError.exit_code, ServedCheckError.exit_code}


class Worker:
    """Inbox worker: processes entries.

    Args:
        hand: whose name, inbox and patience it has.
        builder: turns entries into runs.
        registries: the registries that are told what came of builds.
    """

    def __init__(self, hand: WorkerContext, builder: Builder, *, registries: Collection[str] = ()) -> None:
        self._context = hand
        self._inbox = hand.inbox
        self._clock = hand.clock
        self._builder = builder
        self._registries = registries

    def work(self, stop: threading.Event) -> None:
        """Work until stopped; the entry in progress is finished."""
        run_until_stopped(self.step, stop, self._context.draw)

    def step(self) -> bool:
        """Process one entry; False if none is due.

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
        """Why an entry needs no run, as a later one has other content for the same topic; empty where none does.

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
        elif built.is_denied and 0 <= age < _LAG_SECONDS:  # below 0 the clock was set back since
            self._wait(entry, started, "the registry does not say so yet, or no more", age)
        elif built.is_denied:
            self._leave(entry, started, "the registry says otherwise")
        elif self._inbox.finish(entry, started, tell=entry.registry in self._registries):
            outcome = "built" if started else "unwanted"
            self._context.log_entry(entry, logging.INFO, "build", outcome, runs=[run.id for run in started])

    def _leave(self, entry: InboxEntry, started: Sequence[StartedRun], reason: str) -> None:
        """Finish an entry without another run; it keeps the runs it has."""
        runs = entry.with_started(started) or entry.runs
        if self._inbox.finish(entry, runs, tell=entry.registry in self._registries, reason=reason):
            self._context.log_entry(entry, logging.INFO, "build", "outdated", reason=reason)

    def _wait(self, entry: InboxEntry, started: Sequence[StartedRun], reason: str, age: float) -> None:
        after = recheck_seconds(age)
        next_at = self._clock() + timedelta(seconds=after)
        if self._inbox.postpone(entry, reason, next_at, failed=False, started=started):
            self._context.log_entry(entry, logging.INFO, "build", "behind", reason=reason, seconds=round(after, 1))

    def _keep(self, entry: InboxEntry) -> bool:
        return self._inbox.renew(entry, self._clock(), LEASE_SECONDS)


class RunOutcomes(Protocol):
    """Source of run outcomes. Thread-safe."""

    def ended(self, run: str) -> RunOutcome | None:
        """As `TriggeredRuns.ended`."""
        ...


class WriteBackWorker:
    """Write-back worker: reports the results of inbox entries to registries.

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
        """Work until stopped; the write-back in progress is finished."""
        run_until_stopped(self.step, stop, self._context.draw)

    def step(self) -> bool:
        """Check the runs of one entry and write back their results; False if none is due.

        Raises:
            EnvironmentFault: the inbox cannot be read or written.
        """
        write_back = self._write_backs.claim(self._context.name, self._context.clock(), LEASE_SECONDS)
        if write_back is None:
            return False
        entry = self._context.inbox.entry(write_back.entry)
        if entry is None:
            self._write_backs.unwanted(write_back)
            return True
        try:
            self._tell(write_back, entry)
        except Exception as error:  # noqa: BLE001 - a bug of ours or of Prefect's is no reason to stop, either
            put_off = partial(self._write_backs.postpone, write_back, failed=True)
            set_aside = partial(self._write_backs.set_aside, write_back)
            self._context.fail(
                error, "write-back", entry, write_back.attempts + 1, put_off=put_off, set_aside=set_aside
            )
        return True

    def _tell(self, write_back: WriteBack, entry: InboxEntry) -> None:
        if entry.registry not in self._registries:
            raise UsageError(
                f"the file of the service has no registry {entry.registry}, but {', '.join(self._registries)}",
                remedy="add it, or give each service an inbox of its own; then: plansmith triggers inbox write-back"
                f" {write_back.entry}",
            )
        if (writer := self._writers.get(entry.registry)) is None:
            self._write_backs.unwanted(write_back)
            return
        siblings = self._write_backs.of_version(entry)
        progress = self._look(write_back, siblings)
        if progress is None:
            return
        if entry.id in progress.awaited:
            self._wait(write_back, entry, "the end of its runs is waited for")
            return
        verdict = whole_verdict(progress.verdicts)
        telling = VersionReport(
            event=entry.event,
            builds=tuple(progress.builds),
            verdict="" if progress.awaited and verdict == "published" else verdict,
            is_last=progress.is_last,
        )
        if not writer.write(telling, partial(self._keep, write_back)):
            return
        if progress.awaited:
            self._wait(write_back, entry, f"the verdict of the version waits for entry {min(progress.awaited)}")
        elif self._write_backs.finish(write_back, verdict):
            runs = {build.run: build.verdict for build in telling.builds}
            self._context.log_entry(entry, logging.INFO, "write-back", "written", verdict=verdict, runs=runs)

    def _look(self, write_back: WriteBack, siblings: Sequence[Sibling]) -> _VersionProgress | None:
        """The results of a version's models and targets, from their youngest entries.

        None where another worker has it now.
        """
        progress = _VersionProgress(awaited={sibling.entry for sibling in siblings if sibling.write_back is None})
        youngest = {run.label: (sibling, run) for sibling in siblings for run in sibling.runs}
        for sibling, run in youngest.values():
            report = sibling.write_back
            if report is None:
                continue
            if report.verdict == "published":
                progress.verdicts.append("published")
                continue
            if not self._keep(write_back):
                return None
            ended = self._endings.ended(run.id)
            if ended is None:
                progress.awaited.add(sibling.entry)
                continue
            progress.verdicts.append(verdict_of(ended))
            progress.is_last &= ended.is_last
            # What was told stays, and what a registry did not take of one keeps none of the others back.
            if report.state not in {"written", "set-aside"}:
                progress.builds.append(build_of(run, ended))
        return progress

    def _wait(self, write_back: WriteBack, entry: InboxEntry, reason: str) -> None:
        now = self._context.clock()
        took = now - (entry.settled_at or entry.received_at)
        after = recheck_seconds(took.total_seconds())
        self._write_backs.postpone(write_back, reason, now + timedelta(seconds=after), failed=False)

    def _keep(self, write_back: WriteBack) -> bool:
        return self._write_backs.renew(write_back, self._context.clock(), LEASE_SECONDS)


@dataclass
class _VersionProgress:
    """A version's progress: `awaited`: entries still pending; `is_last`: whether it is the one served."""

    awaited: set[int]
    is_last: bool = True
    builds: list[Build] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)


def build_of(run: StartedRun, ended: RunOutcome) -> Build:
    """Return the build result of a run for a registry."""
    verdict, details = verdict_of(ended), ended.findings
    if not run.model:
        raise UsageError(
            f"nobody noted what the run {run.id} compiles: an older plansmith started it",
            remedy="retry the entry: plansmith triggers inbox retry ID",
        )
    return Build(
        model=run.model,
        target=run.target,
        verdict=verdict,
        reason="" if verdict == "published" else ended.run.summary,
        places=details.places,
        manifest_digest=details.manifest_digest,
        figures=details.figures,
        run=run.address or run.id,
    )


def verdict_of(ended: RunOutcome) -> Verdict:
    """Return how a run ended, as a verdict."""
    if ended.run.state == "CANCELLED":
        return "cancelled"
    error = ended.run.error
    if error is None:
        return "published"
    return "refused" if error.exit_code in _REFUSALS else "failed"
