"""Submission of `compile-model` runs to a work pool; their parameters are checked before the server gets them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from plansmith.errors import EXIT_INTERRUPTED, EnvironmentFault, InternalError, PlansmithError, UsageError, first_line
from plansmith.fleet.records import NEXT, model_for, model_of
from plansmith.flows.deploy.deployments import HOW_TO_DEPLOY, ONE_MODEL, find_hindrance, service_tag
from plansmith.flows.prefect_api.api import parameter_problems, shortened
from plansmith.flows.runs.outcomes import read_outcome
from plansmith.formatting import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.client.schemas.objects import FlowRun
    from prefect.client.schemas.objects import State as RunState
    from prefect.client.schemas.responses import DeploymentResponse
    from prefect.exceptions import PrefectHTTPStatusError

    from plansmith.config.spec import ModelSpec
    from plansmith.fleet.records import ModelOutcome
    from plansmith.steps.provenance.history import Failure


_MOST_PROBLEMS = 8
_REFUSING = {400, 409, 413, 422}

DELETED = "DELETED"
"""The state of a run that the API does not have any more."""

_KINDS = {kind.exit_code: kind for kind in PlansmithError.__subclasses__()}
Tell = Callable[[str], None]
POLL_SECONDS = 1.0
CANCEL_SECONDS = 120.0
"""How long a cancelled run may take to end: a worker asks for what is cancelled every 10 seconds."""

_MOST_RUNS = 50
_MOST_IDS = 5
_GROUP_TAGS = ("model:", "target:", service_tag(""))
PAGE = 200
"""How many runs the server gives at once."""


@dataclass(frozen=True)
class WantedCompile:
    """A model to compile in a flow run.

    Args:
        model: its name.
        target: the runtime that it is for.
        spec: what is asked for; only what was said in it is sent, the rest is left to the worker's plansmith.
        folder: what relative directories in the spec start from, on the worker.
        directory: what its own folders and its target's file start from there; the folder where left out.
    """

    model: str
    target: str
    spec: ModelSpec
    folder: Path
    directory: str = ""

    @property
    def run_name(self) -> str:
        """The run's name; the flow itself generates the same one at its start."""
        return model_for(self.model, self.target)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of its run, as JSON values."""
        values = {"spec": self.spec.model_dump(mode="json", exclude_unset=True), "folder": str(self.folder)}
        return {**values, "directory": self.directory} if self.directory else values


@dataclass(frozen=True)
class SubmittedRun:
    """A submitted flow run; `address` is the URL of its page."""

    id: UUID
    name: str
    address: str

    def document(self) -> dict[str, Any]:
        """Return the run as JSON-ready fields."""
        return {"id": str(self.id), "name": self.name, "address": self.address}


def pool_notice(client: SyncPrefectClient, deployment: DeploymentResponse) -> str:
    """Return what keeps a deployment's runs from being picked up now, with the remedy; empty if nothing does."""
    obstacle = find_hindrance(client, deployment)
    return f"{obstacle.message}: the run waits for: {obstacle.remedy}" if obstacle else ""


def check_parameters(compilation: WantedCompile, deployment: DeploymentResponse) -> None:
    """Validate the parameters of a run against the deployment's schema.

    The server refuses values that do not fit, one by one, and takes parameters that the flow does not have, whose run
    then fails: so both are looked for here.

    Raises:
        UsageError: names what does not fit, or they are larger than the server takes.
    """
    from prefect.settings import get_current_settings

    size, most = _size(compilation.parameters), get_current_settings().server.api.max_parameter_size
    if 0 < most < size:
        raise UsageError(
            f"the spec is too large for a flow run: {format_bytes(size)} as JSON, and a Prefect server takes"
            f" {format_bytes(most)}",
            remedy="shorten it, such as by tolerances for fewer outputs, or compile it on the worker itself",
        ).located(model=compilation.model)
    problems = [
        message for _, message in parameter_problems(compilation.parameters, deployment.parameter_openapi_schema or {})
    ]
    if problems:
        more = [f"… and {len(problems) - _MOST_PROBLEMS} more"] if len(problems) > _MOST_PROBLEMS else []
        listed = "\n  ".join([*problems[:_MOST_PROBLEMS], *more])
        raise UsageError(
            f"the deployment {ONE_MODEL}/{deployment.name} does not take this spec:\n  {listed}",
            remedy=f"mend the spec; where its plansmith is another version: {HOW_TO_DEPLOY}",
        ).located(model=compilation.model)


def submit(
    client: SyncPrefectClient, compilation: WantedCompile, deployment: DeploymentResponse, key: str = ""
) -> SubmittedRun:
    """Submit a run of a deployment; its parameters are validated already.

    Args:
        client: of the API.
        compilation: what to compile.
        deployment: carries it out.
        key: makes two runs one, as the server takes each key once; a new run where left out.

    Raises:
        UsageError: the server does not take its parameters.
        httpx.HTTPError: the API does not answer.
    """
    from prefect.exceptions import PrefectHTTPStatusError

    from plansmith.flows.runs.outcomes import tags_of

    try:
        run = client.create_flow_run_from_deployment(
            deployment.id,
            parameters=compilation.parameters,
            name=compilation.run_name,
            tags=tags_of(compilation.model, compilation.target),
            # Prefect's client sends a request again whose answer was lost: by the key it is the same run.
            idempotency_key=key or f"submit-{uuid4()}",
        )
    except PrefectHTTPStatusError as error:
        if error.response.status_code not in _REFUSING:
            raise
        raise UsageError(
            f"the Prefect server does not take this spec: {_detail(error)}", remedy="mend it; see the server's log"
        ).located(model=compilation.model) from error
    return submitted_run(run)


def submitted_run(run: FlowRun) -> SubmittedRun:
    """Convert a flow run of the API to a submitted run."""
    from prefect.utilities.urls import url_for

    return SubmittedRun(run.id, run.name, url_for(run) or "")


def _size(parameters: Mapping[str, Any]) -> int:
    """The size of parameters in bytes, computed as the server does."""
    return len(json.dumps(parameters, separators=(",", ":")).encode())


def _detail(error: PrefectHTTPStatusError) -> str:
    """The detail of the server's error response to a refused request."""
    try:
        detail = error.response.json()["detail"]
    except (ValueError, KeyError, TypeError):
        detail = first_line(error)
    return shortened(str(detail))


@dataclass(frozen=True)
class RunEnded:
    """A flow run that has ended.

    Args:
        run: which one.
        state: Prefect's type of its last state, or `DELETED`.
        message: that of the state.
        outcome: what the run itself left; None where it could not, or is no run of compile-model.
    """

    run: SubmittedRun
    state: str
    message: str
    outcome: ModelOutcome | None = None

    @property
    def exit_code(self) -> int:
        """The exit code of a command that waited for the run."""
        error = self.error
        if error is not None:
            return error.exit_code
        return EXIT_INTERRUPTED if self.state == "CANCELLED" else 0

    @property
    def error(self) -> PlansmithError | None:
        """The error that ended the run; None if it completed or was cancelled."""
        if self.state in {"COMPLETED", "CANCELLED"}:
            return None
        if self.state == "FAILED" and self.outcome is not None and self.outcome.failure is not None:
            return _error_from(self.outcome.failure, self.outcome.model)
        return self._without_outcome().located(model=self.run.name)

    @property
    def summary(self) -> str:
        """A short description of how it ended."""
        error, outcome = self.error, self.outcome
        if error is not None:
            at = f" at {error.step}" if error.step else ""
            return f"failed{at}, exit code {error.exit_code}"
        if self.state == "CANCELLED":
            return "cancelled"
        if outcome is None:
            return "completed"
        state = "unchanged, still" if outcome.ended == "unchanged" else f"{outcome.ended},"
        return f"{state} version {outcome.version}, in {format_seconds(outcome.seconds)}"

    def document(self) -> dict[str, Any]:
        """Return the run as JSON-ready fields."""
        error = self.error
        return {
            **self.run.document(),
            "state": self.state,
            "exit_code": self.exit_code,
            "outcome": self.outcome and self.outcome.model_dump(mode="json"),
            "error": error and error.to_dict(),
        }

    def _without_outcome(self) -> PlansmithError:
        where = f"see its log: {self.run.address or self.run.id}"
        suffix = f": {self.message}" if self.message else ""
        if self.state == DELETED:
            return EnvironmentFault("its run was deleted from the Prefect server", remedy="submit it again")
        if self.state == "CRASHED":
            return EnvironmentFault(
                f"its run crashed{suffix}",
                remedy=f"submit it again, it goes on after the last finished step; {where}",
                transient=True,
            )
        return EnvironmentFault(f"its run failed before the compile began{suffix}", remedy=where)


def ended_run(run: SubmittedRun, state: RunState) -> RunEnded:
    """Return an ended run with its outcome.

    Raises:
        httpx.HTTPError: the API does not answer.
    """
    return RunEnded(run, state.type.value, state.message or "", read_outcome(run.id))


def _error_from(failure: Failure, model: str) -> PlansmithError:
    kind = _KINDS.get(failure.exit_code, InternalError)
    text, _, remedy = failure.message.partition(NEXT)
    return kind(text, remedy=remedy, model=model, step=failure.step)


def find_run(client: SyncPrefectClient, called: str) -> FlowRun:
    """Find a flow run by ID or name: of several, the unfinished one, or else the newest.

    Args:
        client: of the API.
        called: the run's id, its name, or the name of its model.

    Raises:
        UsageError: there is none, or several of that name have not ended.
        httpx.HTTPError: the API does not answer.
    """
    matches = _runs_called(client, called)
    going_on = [run for run in matches if run.state is None or not run.state.is_final()]
    if len(going_on) > 1:
        ids = ", ".join(str(run.id) for run in going_on[:_MOST_IDS])
        raise UsageError(
            f"{len(going_on)} flow runs called {called} have not ended", remedy=f"name one by its id: {ids}"
        )
    if not matches:
        raise UsageError(f"the Prefect server has no flow run {called}", remedy="prefect flow-run ls")
    return (going_on or matches)[0]


def cancel_to_end(
    client: SyncPrefectClient,
    runs: Sequence[FlowRun],
    notice: Callable[[str], None],
    *,
    seconds: float = CANCEL_SECONDS,
) -> Iterator[RunEnded]:
    """Cancel flow runs, and yield how each ended; those that ended already are left unchanged.

    Args:
        client: of the API.
        runs: which ones, in this order.
        notice: told when the API goes away for a while.
        seconds: that all of them may take.

    Raises:
        EnvironmentFault: one goes on all the same, as where its worker is dead.
        httpx.HTTPError: the API refuses it.
    """
    from plansmith.flows.prefect_api.cancelling import cancel_run
    from plansmith.flows.prefect_api.patience import retry_while_unavailable

    deadline = time.monotonic() + seconds
    for run in runs:
        if run.state is None or not (run.state.is_final() or run.state.is_cancelling()):
            # Asked twice it does no more than asked once.
            retry_while_unavailable(partial(cancel_run, client, run, "cancelled by plansmith submit --cancel"), notice)
    for run in runs:
        state = run.state
        while state is None or not state.is_final():
            state = retry_while_unavailable(partial(client.read_flow_run, run.id), notice).state
            if state is not None and state.is_final():
                break
            if time.monotonic() > deadline:
                raise EnvironmentFault(
                    f"{run.name} is still being cancelled after {format_seconds(seconds)}: its worker may be dead",
                    remedy=f"start a worker of its pool, or take it off the server: prefect flow-run delete {run.id}",
                )
            time.sleep(POLL_SECONDS)
        yield ended_run(submitted_run(run), state)


def _runs_called(client: SyncPrefectClient, called: str) -> list[FlowRun]:
    """The runs with this id or name, newest first."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName
    from prefect.client.schemas.sorting import FlowRunSort
    from prefect.exceptions import ObjectNotFound

    try:
        return [client.read_flow_run(UUID(called))]
    except ObjectNotFound:
        return []
    except ValueError:  # no id
        run_filter = FlowRunFilter(name=FlowRunFilterName(like_=called))
        runs = client.read_flow_runs(
            flow_run_filter=run_filter, sort=FlowRunSort.EXPECTED_START_TIME_DESC, limit=_MOST_RUNS
        )
        return [run for run in runs if called in {run.name, model_of(run.name)}]


def numbered(key: str, number: int) -> str:
    """Return the server's idempotency key for a numbered run."""
    return f"{key}:{number}"


def number_of(run: FlowRun) -> int:
    """Return the number of a run that was started with a key of `numbered`."""
    return int(str(run.idempotency_key).rpartition(":")[2])


def newest_of(read: Callable[[list[str]], list[FlowRun]], key: str) -> tuple[int, FlowRun | None]:
    """Return the run with the highest number for a key, and the number; an unused number if there is none.

    Args:
        read: gives the runs of some keys.
        key: of the cause.
    """
    first = 0
    while len(runs := read([numbered(key, number) for number in range(first, first + PAGE)])) == PAGE:
        first += PAGE
    if not runs:
        return first, None
    newest = max(runs, key=number_of)
    return number_of(newest), newest


def read_keyed(client: SyncPrefectClient, keys: list[str]) -> list[FlowRun]:
    """Return the runs of compile-model with some keys, at most `PAGE`."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterIdempotencyKey

    return read_compiles(client, FlowRunFilter(idempotency_key=FlowRunFilterIdempotencyKey(any_=keys)))


@dataclass(frozen=True)
class RunGroup:
    """Runs of compile-model that publish the same model for the same target.

    Args:
        tags: all of which they have.
        deployment: that they are of; None where the tags name a service, all of whose runs count.
    """

    tags: tuple[str, ...]
    deployment: UUID | None


def run_group_of(tags: Collection[str], deployment: UUID | None) -> RunGroup:
    """Return the run group of a run, from its tags and deployment."""
    own = tuple(tag for tag in tags if tag.startswith(_GROUP_TAGS))
    return RunGroup(own, None if any(tag.startswith(service_tag("")) for tag in own) else deployment)


def read_unfinished(client: SyncPrefectClient, kin: RunGroup) -> list[FlowRun]:
    """Return the unfinished runs of a group, at most `PAGE`."""
    from prefect.client.schemas.filters import FlowRunFilterState, FlowRunFilterStateType
    from prefect.client.schemas.objects import TERMINAL_STATES

    unfinished = FlowRunFilterState(type=FlowRunFilterStateType(not_any_=sorted(TERMINAL_STATES)))
    return _read_kin(client, kin, state=unfinished)


def read_later(client: SyncPrefectClient, than: FlowRun, kin: RunGroup) -> list[FlowRun]:
    """Return the successful runs of a group after the end of a run, at most `PAGE`; none while it is active."""
    from prefect.client.schemas.filters import FlowRunFilterEndTime, FlowRunFilterState, FlowRunFilterStateType
    from prefect.client.schemas.objects import StateType

    if than.end_time is None:
        return []
    well = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.COMPLETED]))
    after = FlowRunFilterEndTime(after_=than.end_time)
    return [run for run in _read_kin(client, kin, state=well, end_time=after) if run.id != than.id]


def _read_kin(client: SyncPrefectClient, kin: RunGroup, **which: Any) -> list[FlowRun]:
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId, FlowRunFilterTags

    if kin.deployment is not None:
        which["deployment_id"] = FlowRunFilterDeploymentId(any_=[kin.deployment])
    return read_compiles(client, FlowRunFilter(tags=FlowRunFilterTags(all_=list(kin.tags)), **which))


def read_compiles(client: SyncPrefectClient, which: FlowRunFilter) -> list[FlowRun]:
    """Return runs of compile-model, at most `PAGE`."""
    from prefect.client.schemas.filters import FlowFilter, FlowFilterName

    ours = FlowFilter(name=FlowFilterName(any_=[ONE_MODEL]))
    return client.read_flow_runs(flow_filter=ours, flow_run_filter=which, limit=PAGE)
