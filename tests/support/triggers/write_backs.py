"""Entries that became runs, runs that ended in one way or another, and a registry that is told of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from uuid import NAMESPACE_URL, uuid5

from plansmith.config.service_triggers import MlflowRegistry
from plansmith.errors import EXIT_INTERRUPTED
from plansmith.fleet.records import Ended, ModelOutcome
from plansmith.flows.runs.outcomes import Findings
from plansmith.flows.runs.submitting import DELETED, RunEnded, SubmittedRun
from plansmith.flows.triggers.builder import RunOutcome
from plansmith.flows.triggers.workers import WriteBackWorker
from plansmith.steps.provenance.history import Failure
from plansmith.triggers.inbox.entry import StartedRun
from plansmith.triggers.inbox.inbox import Inbox
from plansmith.triggers.registries.delivery import Event
from plansmith.triggers.worker_loop import WorkerContext
from plansmith.triggers.write_back import MlflowWriter

from .inboxes import LEASE
from .known_runs import champion
from .mlflow_server import Mlflow

RETRIES = 3
FINDINGS = Findings(places=("/srv/repository version 4",), manifest_digest="ab" * 32, figures={"bytes": 1024})


def run_of(name: str, target: str = "local-cpu") -> StartedRun:
    """A run of a name."""
    number = str(uuid5(NAMESPACE_URL, name))
    return StartedRun(id=number, address=f"http://prefect/runs/{name}", model="ranker", target=target)


def ended(state: str, *, exit_code: int = 0, step: str = "", findings: Findings = FINDINGS) -> RunOutcome:
    """How a run ended; without an exit code it left no outcome, unless it went well."""
    outcome = None
    if state == "COMPLETED":
        outcome = ModelOutcome(model="ranker", target="local-cpu", file="", ended="published", version=4)
    elif exit_code:
        failure = Failure(step=step, error="Error", message="it was wrong", exit_code=exit_code)
        how: Ended = "interrupted" if exit_code == EXIT_INTERRUPTED else "failed"
        outcome = ModelOutcome(model="ranker", target="local-cpu", file="", ended=how, failure=failure)
    run = SubmittedRun(uuid5(NAMESPACE_URL, "any"), "ranker for local-cpu", "")
    return RunOutcome(RunEnded(run, state, "", outcome), findings)


PUBLISHED = ended("COMPLETED")
REFUSED = ended("FAILED", exit_code=5, step="validate", findings=Findings(figures={"min_cosine": 0.5}))
CRASHED = ended("CRASHED", findings=Findings())
GONE = ended(DELETED, findings=Findings())


@dataclass
class KnownEndings:
    """In place of a Prefect API: how runs ended, by id.

    `fails`: what asking raises, one after the other; `meanwhile`: what happens while one is asked for.
    """

    ended_runs: dict[str, RunOutcome] = field(default_factory=dict)
    fails: list[Exception] = field(default_factory=list)
    meanwhile: Callable[[], object] = lambda: None

    def ended(self, run: str) -> RunOutcome | None:
        self.meanwhile()
        if self.fails:
            raise self.fails.pop(0)
        return self.ended_runs.get(run)

    def end(self, run: StartedRun, how: RunOutcome = PUBLISHED) -> None:
        self.ended_runs[run.id] = how


def finish(inbox: Inbox, now: datetime, *runs: StartedRun, event: Event | None = None, tell: bool = True) -> int:
    """Have a new entry done, which became these runs; its id."""
    delivery = f"d-{sum(inbox.counts().values())}"
    assert inbox.take("mlflow", delivery, [event or champion()])
    entry = inbox.claim("w", now, LEASE)
    assert entry is not None
    assert inbox.finish(entry, runs, tell=tell)
    return entry.id


def teller(
    inbox: Inbox, endings: KnownEndings, mlflow: Mlflow, clock: Callable[[], datetime], alias: str = ""
) -> WriteBackWorker:
    """Tells that server."""
    config = MlflowRegistry(type="mlflow", tracking_uri=mlflow.url, write_back=True, write_back_alias=alias)
    writers = {"mlflow": MlflowWriter(config, {})}
    return WriteBackWorker(WorkerContext("t", inbox, RETRIES, clock, lambda: 0.0), endings, writers, writers)
