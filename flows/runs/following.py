"""Follows flow runs to their end by asking the API now and then; an API that is away for a while is waited for."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from plansmith.errors import EnvironmentFault
from plansmith.flows.prefect_api.api import asking
from plansmith.flows.prefect_api.patience import AWAY_SECONDS, retry_while_unavailable
from plansmith.flows.prefect_api.run_logs import LogReader, is_worth_telling, page_limit, page_of, text_of
from plansmith.flows.runs.endings import DELETED, RunEnded, ended_run
from plansmith.flows.runs.watching import Watcher
from plansmith.formatting import format_seconds

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, Log
    from prefect.client.schemas.objects import State as RunState

    from plansmith.flows.runs.submitting import SubmittedRun

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


@dataclass
class Pace:
    """Seconds between looks, after a run's end for its last lines, that the API may be away, and of the wait then."""

    poll: float = POLL_SECONDS
    settle: float = SETTLE_SECONDS
    away: float = AWAY_SECONDS
    pause: float = POLL_SECONDS


@dataclass
class _Followed:
    """A run that is followed, and what was told of it."""

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
            while unended := [one for one in followed if one.ending is None]:
                left = [one.run for one in unended]
                for some in _chunks(unended, limit):
                    ask(partial(_look, client, some, watcher, pace))
                if any(one.ending is None for one in unended):
                    time.sleep(pace.poll)
    except EnvironmentFault as fault:
        first = "" if fault.transient else f"{fault.remedy}, then "
        raise EnvironmentFault(
            f"{fault.message}; the run goes on", remedy=f"{first}{follow_command(left)}", transient=fault.transient
        ) from fault.__cause__
    return [one.ending for one in followed if one.ending is not None]


def _look(client: SyncPrefectClient, left: Sequence[_Followed], watcher: Watcher, pace: Pace) -> None:
    """Ask once how runs go, and tell what is new."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    wanted = FlowRunFilter(id=FlowRunFilterId(any_=[one.run.id for one in left]))
    there = {run.id: run for run in client.read_flow_runs(flow_run_filter=wanted, limit=len(left))}
    at_work = _tasks_at_work(client, left)
    for one in left:
        if one.ending is not None:
            continue  # in a look that was not answered to its end
        run = there.get(one.run.id)
        if run is None or run.state is None:
            one.ending = RunEnded(one.run, DELETED, "")
            watcher.ended(one.ending)
            continue
        _tell_state(one, run.state, watcher)
        steps = at_work.get(one.run.id, ())
        if steps != one.steps:
            one.steps = steps
            watcher.step(one.run, steps)
        quiet = not _tell_log(one, run, watcher)
        if run.state.is_final():
            one.seen_to_end = one.seen_to_end or time.monotonic()
            if quiet and time.monotonic() >= one.seen_to_end + pace.settle:
                one.ending = ended_run(one.run, run.state)
                watcher.ended(one.ending)
        else:
            one.seen_to_end = None  # such as one that crashed and was started again


def follow_command(runs: Sequence[SubmittedRun]) -> str:
    """What to type to follow runs."""
    return " ".join(["plansmith submit", *(f"--follow {run.id}" for run in runs)])


def _tell_state(one: _Followed, state: RunState, watcher: Watcher) -> None:
    name, now = state.name or state.type.value, time.monotonic()
    if name != one.state:
        one.state, one.since, one.is_stuck = name, now, False
        if not state.is_final():
            watcher.state(one.run, _WORDS.get(name, name))
    elif state.is_pending() and now > one.since + STUCK_SECONDS and not one.is_stuck:
        one.is_stuck = True
        took = format_seconds(STUCK_SECONDS)
        watcher.notice(
            f"{one.run.name} was taken up by a worker that has not started it for {took}, and may be dead:"
            f" plansmith submit --cancel {one.run.id}, and submit it again"
        )


def _tell_log(one: _Followed, run: FlowRun, watcher: Watcher) -> bool:
    """Tell the new lines of a run's log; whether there were some."""
    assert run.state is not None
    if run.state.is_scheduled():
        return False
    lines: list[Log] = one.log.read_new()
    for line in filter(is_worth_telling, lines):
        watcher.line(one.run, line.level, text_of(line))
    return bool(lines)


def _tasks_at_work(client: SyncPrefectClient, left: Sequence[_Followed]) -> dict[UUID, tuple[str, ...]]:
    """The names of the tasks that run now, by the runs that they belong to."""
    from prefect.client.schemas.filters import (
        FlowRunFilter,
        FlowRunFilterId,
        TaskRunFilter,
        TaskRunFilterState,
        TaskRunFilterStateType,
    )
    from prefect.client.schemas.objects import StateType

    running = [one.run.id for one in left if one.state == "Running"]
    if not running:
        return {}
    found = client.read_task_runs(
        flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=running)),
        task_run_filter=TaskRunFilter(state=TaskRunFilterState(type=TaskRunFilterStateType(any_=[StateType.RUNNING]))),
    )
    names: dict[UUID, tuple[str, ...]] = {}
    for task in found:
        if task.flow_run_id is not None:
            names[task.flow_run_id] = (*names.get(task.flow_run_id, ()), task.name)
    return names


def _chunks(left: Sequence[_Followed], size: int) -> Iterator[Sequence[_Followed]]:
    for start in range(0, len(left), size):
        yield left[start : start + size]
