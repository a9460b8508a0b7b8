"""How long a fleet waits for runs, and how often it starts them again: told by a server that only this test knows."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from inspect import signature
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import httpx
import pytest

from plansmith.errors import EnvironmentFault
from plansmith.fleet.records import ModelOutcome, PlannedModel

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun


class StubClient:
    """The runs of a pool, which are in these states one after another; what was asked of it.

    Args:
        states: an error is raised, and none means that the run is gone.
        ours: whether this fleet started the run.
        ending: whether the pool carries out what ends.
        fleets: what else it carries out.
        seconds: how long the run has been carried out.
    """

    def __init__(
        self, *states: Any, ours: bool = True, ending: bool = False, fleets: tuple[str, ...] = (), seconds: float = 0
    ) -> None:
        self.states = list(states)
        self.requests: list[str] = []
        self._ours = ours
        self._ending, self._fleets = ending, fleets
        self._seconds = seconds

    def read(self, runs: list[UUID]) -> dict[UUID, Any]:
        state = self.states.pop(0)
        if isinstance(state, Exception):
            raise state
        return {} if state is None else {runs[0]: run_in(state, runs[0], self._seconds)}

    def start_again(self, run_request: Any, before: Any) -> FlowRun:
        del run_request, before
        self.requests.append("start again")
        return run_in(_state("SCHEDULED"))

    def is_ours(self, run: Any) -> bool:
        del run
        return self._ours

    def occupants(self, deployment: Any) -> Any:
        from plansmith.flows.fleet.pool_runs import Occupants

        del deployment
        self.requests.append("is it busy")
        return Occupants(self._ending, self._fleets)

    def cancel(self, run: Any, why: str) -> None:
        del run
        self.requests.append(f"cancel: {why}")


def run_in(state: Any, number: UUID | None = None, seconds: float = 0) -> FlowRun:
    from prefect.client.schemas.objects import FlowRun

    took = timedelta(seconds=seconds)
    return FlowRun(id=number or uuid4(), flow_id=uuid4(), name="a run", state=state, estimated_run_time=took)


def deployment_of(pool: str) -> Any:
    from prefect.client.schemas.responses import DeploymentResponse

    return DeploymentResponse(id=uuid4(), name=pool, flow_id=uuid4(), work_pool_name=pool, labels={})


def _state(kind: str, message: str = "") -> Any:
    from prefect.client.schemas.objects import State, StateType

    return State(type=StateType[kind], message=message)


def waited(
    monkeypatch: pytest.MonkeyPatch, told: StubClient, left: Callable[[UUID], Any] = lambda _: None, **dispatch: Any
) -> tuple[ModelOutcome, list[str]]:
    """What comes of one model, and the notices; `left`: what its run said of it."""
    from plansmith.flows.fleet import awaiting
    from plansmith.flows.fleet.pool_runs import Dispatch, PoolRuns, WantedRun

    for name in ("read", "start_again", "is_ours", "occupants", "cancel"):  # they are asked as the real ones
        assert set(signature(getattr(StubClient, name)).parameters) == set(
            signature(getattr(PoolRuns, name)).parameters
        )
    monkeypatch.setattr(awaiting, "POLL_SECONDS", 0)
    monkeypatch.setattr(awaiting, "read_outcome", left)
    planned = PlannedModel(model="m", target="local-cpu", file="m.yaml", state="stale", version=3)
    run_request = WantedRun(deployment_of("gpu"), "gpu", "key", "m for local-cpu", (), {})
    item = awaiting.Awaited(planned, run_request, run_in(_state("SCHEDULED")), time.monotonic())
    notices: list[str] = []
    runs: Any = told
    waiting = awaiting.Wait(runs, Dispatch({"": "gpu"}, **dispatch), notices.append)
    (outcome,) = waiting.until_ended([item])
    return outcome, notices


def test_crashing_run_started_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that crashes each time is started three times in all."""
    api = StubClient(*[_state("CRASHED", "killed")] * 3)
    outcome, notices = waited(monkeypatch, api)
    assert api.requests == ["start again"] * 2
    assert (outcome.ended, outcome.version) == ("failed", 3)
    assert outcome.failure is not None
    assert outcome.failure.message.startswith("its run crashed 3 times: killed")
    assert notices[1] == "m for local-cpu: its run crashed (killed); it is started again, 2 of 2"


def test_cancelled_run_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that a person cancels or deletes is interrupted."""
    for states, fragment in (((_state("CANCELLING"), _state("CANCELLED", "by hand")), "by hand"), ((None,), "deleted")):
        api = StubClient(*states)
        outcome, _ = waited(monkeypatch, api)
        assert (outcome.ended, api.requests) == ("interrupted", [])
        assert outcome.failure is not None
        assert fragment in outcome.failure.message


def test_run_waits_for_busy_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run waits its turn while the pool is busy and no longer."""
    api = StubClient(_state("SCHEDULED"), _state("FAILED", "no such module"), ending=True)
    outcome, _ = waited(monkeypatch, api, take_up_seconds=-1)
    assert api.requests == ["is it busy"]
    assert outcome.failure is not None
    assert "its run ended without saying what came of it: no such module" in outcome.failure.message
    api = StubClient(_state("PENDING"))
    outcome, _ = waited(monkeypatch, api, take_up_seconds=-1)
    why = "nobody took its run up for -1 s, and gpu built nothing else"
    assert api.requests == ["is it busy", f"cancel: {why}"]
    assert outcome.failure is not None
    assert why in outcome.failure.message
    assert "prefect worker start --pool gpu" in outcome.failure.message


def test_endless_run_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that never ends is given up."""
    for kind in ("RUNNING", "CANCELLING", "PAUSED"):
        api = StubClient(_state(kind), seconds=60)
        outcome, _ = waited(monkeypatch, api, longest_seconds=59)
        assert api.requests == ["cancel: it was not done 59 s after it had begun"]
        assert outcome.ended == "failed"


def test_waiting_time_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that a run waits before it begins does not count as time that it takes."""
    api = StubClient(*[_state("SCHEDULED"), _state("PENDING")] * 2, _state("FAILED", "at its end"))
    outcome, _ = waited(monkeypatch, api, longest_seconds=1e-9)
    assert outcome.failure is not None
    assert "at its end" in outcome.failure.message


def test_cancelled_foreign_run_restarted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of another fleet that was cancelled is started again once."""
    api = StubClient(_state("CANCELLED", "with its fleet"), _state("CANCELLED", "again"), ours=False)
    outcome, notices = waited(monkeypatch, api)
    assert (outcome.ended, api.requests) == ("interrupted", ["start again"])
    assert outcome.failure is not None
    assert outcome.failure.message == "again"
    assert len(notices) == 1


def test_abandoned_foreign_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of another fleet that is given up goes on."""
    api = StubClient(_state("RUNNING"), ours=False, seconds=60)
    outcome, _ = waited(monkeypatch, api, longest_seconds=59)
    assert (outcome.ended, api.requests) == ("failed", [])
    assert outcome.failure is not None
    assert outcome.failure.message.startswith("it was not done 59 s after it had begun")


def test_exhausted_pool_told_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pool whose places fleets have is told of before a run has waited long."""
    from plansmith.flows.fleet import awaiting

    monkeypatch.setattr(awaiting, "_HELD_UP_SECONDS", -1)
    api = StubClient(_state("SCHEDULED"), fleets=("fleet: a", "refresh: b"))
    outcome, _ = waited(monkeypatch, api)
    assert outcome.failure is not None
    assert "gpu carries out nothing but fleets, which wait themselves: fleet: a, refresh: b" in outcome.failure.message
    assert "--limit" in outcome.failure.message
    api = StubClient(_state("SCHEDULED"), _state("SCHEDULED"), _state("FAILED", "taken up"))
    outcome, _ = waited(monkeypatch, api)
    assert api.requests == ["is it busy"], "without fleets it waits for its time, and does not ask each time"
    assert outcome.failure is not None
    assert "taken up" in outcome.failure.message


def test_odd_answer_fails_one_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An odd answer about one model is its failure, and an API that is away ends the fleet."""
    odd = ValueError("no JSON")
    outcome, _ = waited(monkeypatch, StubClient(odd, odd))
    assert outcome.failure is not None
    assert (outcome.ended, outcome.failure.error) == ("failed", "ValueError")
    for error in (ValueError("odd"), _refusal(404), EnvironmentFault("the worker is older", remedy="x")):
        outcome, _ = waited(monkeypatch, StubClient(_state("COMPLETED")), left=_raising(error))
        assert outcome.ended == "failed"
    away = EnvironmentFault("away", remedy="x", transient=True)
    with pytest.raises(EnvironmentFault, match="away"):
        waited(monkeypatch, StubClient(_state("COMPLETED")), left=_raising(away))
    with pytest.raises(EnvironmentFault, match="away"):
        waited(monkeypatch, StubClient(away))


def _raising(error: Exception) -> Callable[[UUID], Any]:
    def read(run: UUID) -> Any:
        del run
        raise error

    return read


def _refusal(code: int) -> httpx.HTTPStatusError:
    run_request = httpx.Request("GET", "http://127.0.0.1/api")
    return httpx.HTTPStatusError("refused", request=run_request, response=httpx.Response(code, request=run_request))
