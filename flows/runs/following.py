"""Following of flow runs to their end by polling the API; waits while the API is unavailable."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from plansmith.errors import EnvironmentFault
from plansmith.fleet.records import ModelOutcome
from plansmith.flows.prefect_api.api import asking
from plansmith.flows.prefect_api.patience import AWAY_SECONDS, retry_while_unavailable
from plansmith.flows.prefect_api.run_log import LogReader, is_worth_telling, page_limit, page_of, text_of
from plansmith.flows.runs.submitting import DELETED, RunEnded, ended_run
from plansmith.formatting import format_seconds
from plansmith.records.release import Manifest, PublishedVersion
from plansmith.steps.runner import Listener

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, Log
    from prefect.client.schemas.objects import State as RunState

    from plansmith.flows.runs.submitting import SubmittedRun

current: ContextVar[RunObserver | None] = ContextVar("current", default=None)
POLL_SECONDS = 2.0
SETTLE_SECONDS = 4.0
"""Prefect sends the log of a run in batches, every 2 seconds: the last lines come after the run's end."""

STUCK_SECONDS = 300.0
"""After which it is said that a run was taken up and does not begin; Prefect itself leaves it so for good."""

_WORDS = {
    "Scheduled": "waiting for a worker",
    "Late": "still waiting: no worker has taken it up",
    "AwaitingRetry": "waiting to be tried again",
    "AwaitingConcurrencySlot": "waiting for a free slot",
    "Pending": "taken up by a worker",
    "Submitting": "taken up by a worker",
    "InfrastructurePending": "taken up by a worker",
    "Running": "running",
    "Retrying": "running again",
    "Paused": "paused",
    "Suspended": "paused",
    "Cancelling": "being cancelled",
}


class Watcher:
    """Watcher of flow runs; this base class ignores all events."""

    def state(self, run: SubmittedRun, description: str) -> None:
        """Called when a run changes its state."""

    def step(self, run: SubmittedRun, names: Sequence[str]) -> None:
        """Called with the active tasks of a run."""

    def line(self, run: SubmittedRun, level: int, text: str) -> None:
        """Called for each log message of a run, with a level of Python's logging."""

    def ended(self, ended: RunEnded) -> None:
        """Called when a run has ended."""

    def notice(self, text: str) -> None:
        """Called for an unusual event that does not end the watch."""


@dataclass
class RunObserver:
    """Run observer: receives a run's progress and its outcome; `ended`: also set if there is no result."""

    listener: Listener = field(default_factory=Listener)
    outcome: tuple[PublishedVersion, Manifest] | None = None
    ended: ModelOutcome | None = None


@dataclass
class Pace:
    """Intervals in seconds.

    Between polls, for last log lines after a run's end, and for API outages and their retries.
    """

    poll: float = POLL_SECONDS
    settle: float = SETTLE_SECONDS
    away: float = AWAY_SECONDS
    pause: float = POLL_SECONDS


@dataclass
class _Followed:
    """A followed run, and what was reported of it."""

    run: SubmittedRun
    log: LogReader
    state: str = ""
    since: float = 0
    is_stuck: bool = False
    steps: tuple[str, ...] = ()
    seen_to_end: float | None = None
    ending: RunEnded | None = field(default=None)


def follow(shown: str, runs: Sequence[SubmittedRun], watcher: Watcher, pace: Pace | None = None) -> list[RunEnded]:
    """Follow runs until all have ended.

    Args:
        shown: the URL of the API, from `require_api`.
        runs: to be followed.
        watcher: told how they go.
        pace: of the asking.

    Returns:
        How each ended, in their order.

    Raises:
        EnvironmentFault: the API does not let us in any more, or was away for too long; the runs go on.
    """
    pace, left = pace or Pace(), list(runs)
    try:
        ask = partial(retry_while_unavailable, tell=watcher.notice, seconds=pace.away, pause=pace.pause)
        # Once again where a token has run out; all else is asked again by the next look.
        with asking(shown, retries=1) as client:
            limit = ask(lambda: page_limit(client))
            followed = [_Followed(run, LogReader(page_of(client, run.id, limit), limit)) for run in runs]
            while unended := [item for item in followed if item.ending is None]:
                left = [item.run for item in unended]
                for some in _chunks(unended, limit):
                    ask(partial(_look, client, some, watcher, pace))
                if any(item.ending is None for item in unended):
                    time.sleep(pace.poll)
    except EnvironmentFault as fault:
        first = "" if fault.transient else f"{fault.remedy}, then "
        raise EnvironmentFault(
            f"{fault.message}; the run goes on", remedy=f"{first}{follow_command(left)}", transient=fault.transient
        ) from fault.__cause__
    return [item.ending for item in followed if item.ending is not None]


def _look(client: SyncPrefectClient, left: Sequence[_Followed], watcher: Watcher, pace: Pace) -> None:
    """Poll the runs once, and report what is new."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    run_filter = FlowRunFilter(id=FlowRunFilterId(any_=[item.run.id for item in left]))
    runs = {run.id: run for run in client.read_flow_runs(flow_run_filter=run_filter, limit=len(left))}
    at_work = _tasks_at_work(client, left)
    for item in left:
        if item.ending is not None:
            continue  # in a look that was not answered to its end
        run = runs.get(item.run.id)
        if run is None or run.state is None:
            item.ending = RunEnded(item.run, DELETED, "")
            watcher.ended(item.ending)
            continue
        _tell_state(item, run.state, watcher)
        steps = at_work.get(item.run.id, ())
        if steps != item.steps:
            item.steps = steps
            watcher.step(item.run, steps)
        quiet = not _tell_log(item, run, watcher)
        if run.state.is_final():
            item.seen_to_end = item.seen_to_end or time.monotonic()
            if quiet and time.monotonic() >= item.seen_to_end + pace.settle:
                item.ending = ended_run(item.run, run.state)
                watcher.ended(item.ending)
        else:
            item.seen_to_end = None  # such as one that crashed and was started again


def follow_command(runs: Sequence[SubmittedRun]) -> str:
    """Return the command to follow runs."""
    return " ".join(["plansmith submit", *(f"--follow {run.id}" for run in runs)])


def _tell_state(item: _Followed, state: RunState, watcher: Watcher) -> None:
    name, now = state.name or state.type.value, time.monotonic()
    if name != item.state:
        item.state, item.since, item.is_stuck = name, now, False
        if not state.is_final():
            watcher.state(item.run, _WORDS.get(name, name))
    elif state.is_pending() and now > item.since + STUCK_SECONDS and not item.is_stuck:
        item.is_stuck = True
        took = format_seconds(STUCK_SECONDS)
        watcher.notice(
            f"{item.run.name} was taken up by a worker that has not started it for {took}, and may be dead:"
            f" plansmith submit --cancel {item.run.id}, and submit it again"
        )


def _tell_log(item: _Followed, run: FlowRun, watcher: Watcher) -> bool:
    """Report the new lines of a run's log; return whether there were any."""
    assert run.state is not None
    if run.state.is_scheduled():
        return False
    lines: list[Log] = item.log.read_new()
    for line in filter(is_worth_telling, lines):
        watcher.line(item.run, line.level, text_of(line))
    return bool(lines)


def _tasks_at_work(client: SyncPrefectClient, left: Sequence[_Followed]) -> dict[UUID, tuple[str, ...]]:
    """The names of the running tasks, by the flow runs they belong to."""
    from prefect.client.schemas.filters import (
        FlowRunFilter,
        FlowRunFilterId,
        TaskRunFilter,
        TaskRunFilterState,
        TaskRunFilterStateType,
    )
    from prefect.client.schemas.objects import StateType

    running = [item.run.id for item in left if item.state == "Running"]
    if not running:
        return {}
    task_runs = client.read_task_runs(
        flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=running)),
        task_run_filter=TaskRunFilter(state=TaskRunFilterState(type=TaskRunFilterStateType(any_=[StateType.RUNNING]))),
    )
    names: dict[UUID, tuple[str, ...]] = {}
    for task in task_runs:
        if task.flow_run_id is not None:
            names[task.flow_run_id] = (*names.get(task.flow_run_id, ()), task.name)
    return names


def _chunks(left: Sequence[_Followed], size: int) -> Iterator[Sequence[_Followed]]:
    for start in range(0, len(left), size):
        yield left[start : start + size]
