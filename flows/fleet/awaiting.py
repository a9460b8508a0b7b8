"""Waiting for fleet runs on work pools: for all of them, and for none forever."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.client.schemas.objects import StateType
from prefect.utilities.urls import url_for

from plansmith.config.spec import ModelSpec
from plansmith.errors import EXIT_INTERRUPTED, EnvironmentFault, PlansmithError, UsageError, first_line
from plansmith.fleet.build import outcome_of, outcome_without_work, spec_of
from plansmith.fleet.records import ModelOutcome, PlannedModel, failure_of, model_for
from plansmith.flows.fleet.pool_runs import Dispatch, Occupants, PoolRuns, WantedRun
from plansmith.flows.prefect_api.api import rooted
from plansmith.flows.prefect_api.patience import retry_while_unavailable
from plansmith.flows.runs.outcomes import read_outcome, tags_of
from plansmith.steps.provenance.fingerprint import fingerprint_of
from plansmith.steps.provenance.history import Failure
from plansmith.system.digest import Digester, digest_of

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

_SEE = "see the log of the run"


@dataclass
class Awaited:
    """A model that is built in another process.

    Args:
        planned: the model.
        request: what its run was started for.
        run: as it was seen last.
        since: when the wait for it began, by the monotonic clock.
        restarts: how often it was started again after a crash.
        begun: when the run began, by the same clock; None where it has not.
        replaced: whether it was started again because another fleet's was cancelled.
    """

    planned: PlannedModel
    request: WantedRun
    run: FlowRun
    since: float
    restarts: int = 0
    begun: float | None = None
    replaced: bool = False


class Wait:
    """Wait for runs until each has ended, was given up or was deleted.

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
        """Yield the outcomes of the models, as their runs end.

        Raises:
            EnvironmentFault: the Prefect API was away for too long.
        """
        while awaited:
            time.sleep(POLL_SECONDS)
            runs = self._read(awaited)
            for entry in awaited:
                run = runs.get(entry.run.id)
                if run is not None and not isinstance(run, Exception):
                    self._note(entry, run)
            still = []
            for entry in awaited:
                outcome = self._look(entry, runs.get(entry.run.id))
                if outcome is None:
                    still.append(entry)
                else:
                    yield outcome
            awaited = still

    def _read(self, awaited: Sequence[Awaited]) -> dict[UUID, FlowRun | Exception]:
        """The current states of the runs, or the errors that prevent reading them; without deleted ones."""
        try:
            return {**self._runs.read([entry.run.id for entry in awaited])}
        except Exception as error:  # noqa: BLE001 - one that cannot be read does not hide the others
            require_api(error)
        results: dict[UUID, FlowRun | Exception] = {}
        for entry in awaited:
            try:
                results |= self._runs.read([entry.run.id])
            except Exception as error:  # noqa: BLE001
                require_api(error)
                results[entry.run.id] = error
        return results

    def _note(self, entry: Awaited, run: FlowRun) -> None:
        entry.run, now = run, time.monotonic()
        if run.state is None or run.state.type in _NOT_BEGUN:
            return
        if entry.begun is None:  # another fleet may have started it long ago
            entry.begun = now - run.estimated_run_time.total_seconds()
        if run.state.is_running():
            self._busy[entry.request.deployment.id] = now

    def _look(self, entry: Awaited, current: FlowRun | Exception | None) -> ModelOutcome | None:
        """The outcome of a model; None while it is pending."""
        if current is None:
            return _interrupted(entry, "its run was deleted")
        if isinstance(current, Exception):
            return _failed(entry, current)
        try:
            if entry.run.state is None or not entry.run.state.is_final():
                return self._without_hope(entry)
            return self._ended(entry)
        except Exception as error:  # noqa: BLE001 - an odd answer about one model is no reason to give the others up
            require_api(error)
            return _failed(entry, error)

    def _ended(self, entry: Awaited) -> ModelOutcome | None:
        outcome = retry_while_unavailable(lambda: read_outcome(entry.run.id), self._tell)
        state = entry.run.state
        assert state is not None
        # What fails as its run is cancelled was most likely ended by that.
        if state.is_cancelled() and (outcome is None or outcome.ended in {"interrupted", "failed"}):
            if not self._is_to_be_replaced(entry):
                return _interrupted(entry, state.message or state.name or "")
            self._start_again(entry)
            return None
        if outcome is not None and not (state.is_crashed() and outcome.ended == "interrupted"):
            return outcome_of(
                entry.planned,
                outcome.ended,
                version=outcome.version,
                failure=outcome.failure,
                seconds=outcome.seconds,
                run=_address(entry.run),
            )
        reason = state.message or state.name or ""
        if state.is_crashed():
            return self._after_crash(entry, reason)
        return _failed(entry, EnvironmentFault(f"its run ended without saying what came of it: {reason}", remedy=_SEE))

    def _after_crash(self, entry: Awaited, reason: str) -> ModelOutcome | None:
        if entry.restarts == MOST_RESTARTS:
            message = f"its run crashed {entry.restarts + 1} times: {reason}"
            return _failed(entry, EnvironmentFault(message, remedy="see the logs of its runs and of the workers"))
        entry.restarts += 1
        self._tell(
            f"{entry.request.name}: its run crashed ({reason}); it is started again, {entry.restarts} of"
            f" {MOST_RESTARTS}"
        )
        self._start_again(entry)
        return None

    def _is_to_be_replaced(self, entry: Awaited) -> bool:
        """Whether to replace another fleet's cancelled run, once: it may have been cancelled only with that fleet."""
        if entry.replaced or self._runs.is_ours(entry.run):
            return False
        entry.replaced = True
        self._tell(
            f"{entry.request.name}: its run, which another fleet had started, was cancelled; it is started again"
        )
        return True

    def _start_again(self, entry: Awaited) -> None:
        entry.run = self._runs.start_again(entry.request, entry.run)
        entry.since, entry.begun = time.monotonic(), None

    def _without_hope(self, entry: Awaited) -> ModelOutcome | None:
        """Give up on a run that takes too long, or that no worker picks up."""
        now, dispatch = time.monotonic(), self._dispatch
        if entry.begun is not None and now - entry.begun > dispatch.longest_seconds:
            why = f"it was not done {dispatch.longest_seconds:.0f} s after it had begun"
            return self._given_up(entry, EnvironmentFault(why, remedy="see its log, or raise `longest_seconds`"))
        begun = entry.run.state is not None and entry.run.state.type not in _NOT_BEGUN
        return None if begun else self._without_worker(entry, now)

    def _without_worker(self, entry: Awaited, now: float) -> ModelOutcome | None:
        pool, dispatch = entry.request.pool, self._dispatch
        # A model waits its turn behind others: what counts is how long the pool did nothing at all.
        idle = now - max(entry.since, self._busy.get(entry.request.deployment.id, 0))
        if idle < min(dispatch.take_up_seconds, _HELD_UP_SECONDS):
            return None
        occupants = self._occupants_of(entry.request.deployment)
        if occupants.ending:
            self._busy[entry.request.deployment.id] = now
            return None
        if occupants.fleets:
            why = (
                f"nobody took its run up for {idle:.0f} s, and {pool} carries out nothing but fleets, which wait"
                f" themselves: {', '.join(occupants.fleets)}"
            )
            remedy = f"prefect worker start --pool {pool} once more or with a higher --limit, or fleets on another pool"
            return self._given_up(entry, EnvironmentFault(why, remedy=remedy))
        if idle < dispatch.take_up_seconds:
            return None
        why = f"nobody took its run up for {dispatch.take_up_seconds:.0f} s, and {pool} built nothing else"
        remedy = f"look at the workers: prefect work-pool inspect {pool}; prefect worker start --pool {pool}"
        return self._given_up(entry, EnvironmentFault(why, remedy=remedy))

    def _occupants_of(self, deployment: DeploymentResponse) -> Occupants:
        """The occupants of a deployment, cached for a while: a fleet may wait for a thousand models."""
        cached_entry, now = self._occupants.get(deployment.id), time.monotonic()
        if cached_entry is None or now > cached_entry[0] + _KNOWN_SECONDS:
            cached_entry = now, self._runs.occupants(deployment)
            self._occupants[deployment.id] = cached_entry
        return cached_entry[1]

    def _given_up(self, entry: Awaited, why: EnvironmentFault) -> ModelOutcome:
        """The outcome of a model that this fleet gives up on; another fleet's run continues."""
        try:
            if self._runs.is_ours(entry.run):
                self._runs.cancel(entry.run, why.message)
        except Exception as error:  # noqa: BLE001 - that it is given up is what counts
            require_api(error)
            self._tell(f"{entry.request.name}: its run could not be cancelled: {first_line(error)}")
        return _failed(entry, why)


def require_api(error: Exception) -> None:
    """End the whole fleet if the API was unavailable for too long, instead of one model after another."""
    if isinstance(error, PlansmithError) and error.transient:
        raise error


def _failed(entry: Awaited, error: Exception) -> ModelOutcome:
    seconds = time.monotonic() - entry.since
    return outcome_of(entry.planned, "failed", failure=failure_of(error), seconds=seconds, run=_address(entry.run))


def _interrupted(entry: Awaited, reason: str) -> ModelOutcome:
    failure = Failure(step="", error="Cancelled", message=reason, exit_code=EXIT_INTERRUPTED)
    seconds = time.monotonic() - entry.since
    return outcome_of(entry.planned, "interrupted", failure=failure, seconds=seconds, run=_address(entry.run))


def _address(run: FlowRun) -> str:
    return url_for(run) or str(run.id)


def build_on_pools(
    planned: Sequence[PlannedModel],
    overrides: Mapping[str, Any],
    dispatch: Dispatch,
    runs: PoolRuns,
    tell: Tell,
) -> Iterator[ModelOutcome]:
    """Start a run for each stale model, and yield each model's outcome, as the runs end.

    Args:
        planned: of the fleet.
        overrides: as the plan was made with.
        dispatch: where, and how long.
        runs: of the fleet.
        tell: told in words what is unusual.

    Raises:
        EnvironmentFault: the Prefect API was away for too long; the runs go on, and the next fleet finds them.
    """
    awaited: list[Awaited] = []
    for model in planned:
        begun = _begin(model, overrides, dispatch, runs) if model.state == "stale" else outcome_without_work(model)
        if isinstance(begun, ModelOutcome):
            yield begun
        else:
            awaited.append(begun)
    yield from Wait(runs, dispatch, tell).until_ended(awaited)


def _begin(
    planned: PlannedModel, overrides: Mapping[str, Any], dispatch: Dispatch, runs: PoolRuns
) -> Awaited | ModelOutcome:
    """Start the run of a model, or find an equivalent one; an error here is the model's failure."""
    since = time.monotonic()
    try:
        spec, folder = spec_of(planned, overrides)
        pool = _pool_of(planned.target, dispatch.pools)
        parameters = parameters_of(spec, folder, dispatch.folder)
        run_request = _make_run(planned, parameters, _basis(spec, folder), pool, runs.deployment(pool))
        return Awaited(planned, run_request, runs.find_or_start(run_request), since)
    except Exception as error:  # noqa: BLE001 - an odd answer about one model is no reason to give the others up
        require_api(error)
        return outcome_of(planned, "failed", failure=failure_of(error), seconds=time.monotonic() - since)


def _pool_of(target: str, pools: Mapping[str, str]) -> str:
    pool = pools.get(target, pools.get(""))
    if pool is None:
        raise UsageError(
            f"no work pool builds for the target {target}",
            remedy="name one in the parameter `pools`, by this target or by '' for all others",
        )
    return pool


def parameters_of(spec: ModelSpec, folder: Path, start: str) -> dict[str, Any]:
    """Return the parameters of compile-model for a spec of a fleet, whose paths may differ on a worker.

    Args:
        spec: of the model.
        folder: of its file.
        start: the fleet's folder, as it was asked for; this process works in it.
    """
    root = Path.cwd()
    placed = Path(start) / folder.relative_to(root) if folder.is_relative_to(root) else folder
    values = spec.model_dump(mode="json", exclude_defaults=True)
    return {"spec": values, "folder": str(placed), "directory": start}


def _make_run(
    planned: PlannedModel, parameters: dict[str, Any], basis: Any, pool: str, deployment: DeploymentResponse
) -> WantedRun:
    reasons = [reason.model_dump() for reason in planned.reasons]
    cause = [str(deployment.id), parameters, reasons, basis]
    return WantedRun(
        deployment=deployment,
        pool=pool,
        key=f"plansmith:{digest_of(cause)}",
        name=model_for(planned.model, planned.target),
        tags=tags_of(planned.model, planned.target),
        parameters=parameters,
    )


def _basis(original: ModelSpec, folder: Path) -> dict[str, Any] | None:
    """The build inputs of the model now: files may change twice while the reason to build reads the same."""
    spec = rooted(original, Path.cwd())
    cache = Path(spec.artifacts) / "cache"
    try:
        digester = Digester(cache / "digests.sqlite", read_only=not cache.is_dir())
        return fingerprint_of(spec, relative_to=folder, digester=digester).model_dump(mode="json")
    except (PlansmithError, OSError):
        return None  # the compile says what is wrong with it
