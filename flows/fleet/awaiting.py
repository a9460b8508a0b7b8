"""Waiting for the runs of a fleet on work pools, for all of them, and for none for ever."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from prefect.client.schemas.objects import StateType
from prefect.utilities.urls import url_for

from plansmith.errors import EXIT_INTERRUPTED, EnvironmentFault, PlansmithError, first_line
from plansmith.fleet.build import outcome_of
from plansmith.fleet.records import ModelOutcome, PlannedModel, failure_of
from plansmith.flows.fleet.pool_runs import Dispatch, Occupants, PoolRuns, WantedRun
from plansmith.flows.prefect_api.patience import retry_while_unavailable
from plansmith.flows.runs.outcomes import read_outcome
from plansmith.steps.provenance.history import Failure

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun
    from prefect.client.schemas.responses import DeploymentResponse

POLL_SECONDS = 2.0
MOST_RESTARTS = 2

_HELD_UP_SECONDS = 300.0
"""How long a pool may carry out nothing but fleets, and take up no run, before it is clear that it never will."""
_KNOWN_SECONDS = 15.0

_NOT_BEGUN = {StateType.SCHEDULED, StateType.PENDING}

Tell = Callable[[str], None]


@dataclass
class Awaited:
    """A model that is built elsewhere.

    Args:
        planned: the model.
        wanted: what its run was started for.
        run: as it was seen last.
        since: when the wait for it began, by the monotonic clock.
        restarts: how often it was started again after a crash.
        begun: when the run began, by the same clock; None where it has not.
        replaced: whether it was started again because another fleet's was cancelled.
    """

    planned: PlannedModel
    wanted: WantedRun
    run: FlowRun
    since: float
    restarts: int = 0
    begun: float | None = None
    replaced: bool = False


class Wait:
    """Waits for runs until each has ended, was given up or was deleted.

    Args:
        runs: of the fleet.
        dispatch: how long.
        tell: told in words what is unusual.
    """

    def __init__(self, runs: PoolRuns, dispatch: Dispatch, tell: Tell) -> None:
        self._runs = runs
        self._dispatch = dispatch
        self._tell = tell
        self._busy: dict[UUID, float] = {}
        """By deployment when it was last seen to carry something out."""
        self._occupants: dict[UUID, tuple[float, Occupants]] = {}

    def until_ended(self, awaited: Sequence[Awaited]) -> Iterator[ModelOutcome]:
        """What comes of the models, as they end.

        Raises:
            EnvironmentFault: the Prefect API was away for too long.
        """
        while awaited:
            time.sleep(POLL_SECONDS)
            found = self._read(awaited)
            for one in awaited:
                run = found.get(one.run.id)
                if run is not None and not isinstance(run, Exception):
                    self._note(one, run)
            still = []
            for one in awaited:
                outcome = self._look(one, found.get(one.run.id))
                if outcome is None:
                    still.append(one)
                else:
                    yield outcome
            awaited = still

    def _read(self, awaited: Sequence[Awaited]) -> dict[UUID, FlowRun | Exception]:
        """How the runs are now, or what keeps one from being read; without those that were deleted."""
        try:
            return {**self._runs.read([one.run.id for one in awaited])}
        except Exception as error:  # noqa: BLE001 - one that cannot be read does not hide the others
            require_api(error)
        found: dict[UUID, FlowRun | Exception] = {}
        for one in awaited:
            try:
                found |= self._runs.read([one.run.id])
            except Exception as error:  # noqa: BLE001
                require_api(error)
                found[one.run.id] = error
        return found

    def _note(self, one: Awaited, run: FlowRun) -> None:
        one.run, now = run, time.monotonic()
        if run.state is None or run.state.type in _NOT_BEGUN:
            return
        if one.begun is None:  # another fleet may have started it long ago
            one.begun = now - run.estimated_run_time.total_seconds()
        if run.state.is_running():
            self._busy[one.wanted.deployment.id] = now

    def _look(self, one: Awaited, found: FlowRun | Exception | None) -> ModelOutcome | None:
        """What came of a model; None while that is open."""
        if found is None:
            return _interrupted(one, "its run was deleted")
        if isinstance(found, Exception):
            return _failed(one, found)
        try:
            if one.run.state is None or not one.run.state.is_final():
                return self._without_hope(one)
            return self._ended(one)
        except Exception as error:  # noqa: BLE001 - an odd answer about one model is no reason to give the others up
            require_api(error)
            return _failed(one, error)

    def _ended(self, one: Awaited) -> ModelOutcome | None:
        told = retry_while_unavailable(lambda: read_outcome(one.run.id), self._tell)
        state = one.run.state
        assert state is not None
        # What fails as its run is cancelled was most likely ended by that.
        if state.is_cancelled() and (told is None or told.ended in {"interrupted", "failed"}):
            if not self._is_to_be_replaced(one):
                return _interrupted(one, state.message or state.name or "")
            self._start_again(one)
            return None
        if told is not None and not (state.is_crashed() and told.ended == "interrupted"):
            return outcome_of(
                one.planned,
                told.ended,
                version=told.version,
                failure=told.failure,
                seconds=told.seconds,
                run=_address(one.run),
            )
        said = state.message or state.name or ""
        if state.is_crashed():
            return self._after_crash(one, said)
        return _failed(one, EnvironmentFault(f"its run ended without saying what came of it: {said}", remedy=_SEE))

    def _after_crash(self, one: Awaited, said: str) -> ModelOutcome | None:
        if one.restarts == MOST_RESTARTS:
            words = f"its run crashed {one.restarts + 1} times: {said}"
            return _failed(one, EnvironmentFault(words, remedy="see the logs of its runs and of the workers"))
        one.restarts += 1
        self._tell(
            f"{one.wanted.name}: its run crashed ({said}); it is started again, {one.restarts} of {MOST_RESTARTS}"
        )
        self._start_again(one)
        return None

    def _is_to_be_replaced(self, one: Awaited) -> bool:
        """Whether another fleet's run was cancelled, perhaps with that fleet; a second time it is meant."""
        if one.replaced or self._runs.is_ours(one.run):
            return False
        one.replaced = True
        self._tell(f"{one.wanted.name}: its run, which another fleet had started, was cancelled; it is started again")
        return True

    def _start_again(self, one: Awaited) -> None:
        one.run = self._runs.start_again(one.wanted, one.run)
        one.since, one.begun = time.monotonic(), None

    def _without_hope(self, one: Awaited) -> ModelOutcome | None:
        """Give a run up that takes too long, or that nobody takes up."""
        now, dispatch = time.monotonic(), self._dispatch
        if one.begun is not None and now - one.begun > dispatch.longest_seconds:
            why = f"it was not done {dispatch.longest_seconds:.0f} s after it had begun"
            return self._given_up(one, EnvironmentFault(why, remedy="see its log, or raise `longest_seconds`"))
        begun = one.run.state is not None and one.run.state.type not in _NOT_BEGUN
        return None if begun else self._without_worker(one, now)

    def _without_worker(self, one: Awaited, now: float) -> ModelOutcome | None:
        pool, dispatch = one.wanted.pool, self._dispatch
        # A model waits its turn behind others: what counts is how long the pool did nothing at all.
        idle = now - max(one.since, self._busy.get(one.wanted.deployment.id, 0))
        if idle < min(dispatch.take_up_seconds, _HELD_UP_SECONDS):
            return None
        there = self._occupants_of(one.wanted.deployment)
        if there.ending:
            self._busy[one.wanted.deployment.id] = now
            return None
        if there.fleets:
            why = (
                f"nobody took its run up for {idle:.0f} s, and {pool} carries out nothing but fleets, which wait"
                f" themselves: {', '.join(there.fleets)}"
            )
            remedy = f"prefect worker start --pool {pool} once more or with a higher --limit, or fleets on another pool"
            return self._given_up(one, EnvironmentFault(why, remedy=remedy))
        if idle < dispatch.take_up_seconds:
            return None
        why = f"nobody took its run up for {dispatch.take_up_seconds:.0f} s, and {pool} built nothing else"
        remedy = f"look at the workers: prefect work-pool inspect {pool}; prefect worker start --pool {pool}"
        return self._given_up(one, EnvironmentFault(why, remedy=remedy))

    def _occupants_of(self, deployment: DeploymentResponse) -> Occupants:
        """Asked now and then: a fleet may wait for a thousand models."""
        known, now = self._occupants.get(deployment.id), time.monotonic()
        if known is None or now > known[0] + _KNOWN_SECONDS:
            known = now, self._runs.occupants(deployment)
            self._occupants[deployment.id] = known
        return known[1]

    def _given_up(self, one: Awaited, why: EnvironmentFault) -> ModelOutcome:
        """What comes of a model that this fleet waits for no longer; the run of another fleet goes on."""
        try:
            if self._runs.is_ours(one.run):
                self._runs.cancel(one.run, why.message)
        except Exception as error:  # noqa: BLE001 - that it is given up is what counts
            require_api(error)
            self._tell(f"{one.wanted.name}: its run could not be cancelled: {first_line(error)}")
        return _failed(one, why)


_SEE = "see the log of the run"


def require_api(error: Exception) -> None:
    """Let the whole fleet end where the API was away for too long, in place of one model after another."""
    if isinstance(error, PlansmithError) and error.transient:
        raise error


def _failed(one: Awaited, error: Exception) -> ModelOutcome:
    seconds = time.monotonic() - one.since
    return outcome_of(one.planned, "failed", failure=failure_of(error), seconds=seconds, run=_address(one.run))


def _interrupted(one: Awaited, said: str) -> ModelOutcome:
    failure = Failure(step="", error="Cancelled", message=said, exit_code=EXIT_INTERRUPTED)
    seconds = time.monotonic() - one.since
    return outcome_of(one.planned, "interrupted", failure=failure, seconds=seconds, run=_address(one.run))


def _address(run: FlowRun) -> str:
    return url_for(run) or str(run.id)
