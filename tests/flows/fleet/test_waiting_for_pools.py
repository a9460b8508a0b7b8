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


class Told:
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
        self.asked: list[str] = []
        self._ours = ours
        self._ending, self._fleets = ending, fleets
        self._seconds = seconds

    def read(self, runs: list[UUID]) -> dict[UUID, Any]:
        state = self.states.pop(0)
        if isinstance(state, Exception):
            raise state
        return {} if state is None else {runs[0]: run_in(state, runs[0], self._seconds)}

    def start_again(self, wanted: Any, before: Any) -> FlowRun:
        del wanted, before
        self.asked.append("start again")
        return run_in(_state("SCHEDULED"))

    def is_ours(self, run: Any) -> bool:
        del run
        return self._ours

    def occupants(self, deployment: Any) -> Any:
        from plansmith.flows.fleet.pool_runs import Occupants

        del deployment
        self.asked.append("is it busy")
        return Occupants(self._ending, self._fleets)

    def cancel(self, run: Any, why: str) -> None:
        del run
        self.asked.append(f"cancel: {why}")


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
    monkeypatch: pytest.MonkeyPatch, told: Told, left: Callable[[UUID], Any] = lambda _: None, **dispatch: Any
) -> tuple[ModelOutcome, list[str]]:
    """What comes of one model, and the notices; `left`: what its run said of it."""
    from plansmith.flows.fleet import awaiting
    from plansmith.flows.fleet.pool_runs import Dispatch, PoolRuns, WantedRun

    for name in ("read", "start_again", "is_ours", "occupants", "cancel"):  # they are asked as the real ones
        assert set(signature(getattr(Told, name)).parameters) == set(signature(getattr(PoolRuns, name)).parameters)
    monkeypatch.setattr(awaiting, "POLL_SECONDS", 0)
    monkeypatch.setattr(awaiting, "read_outcome", left)
    planned = PlannedModel(model="m", target="local-cpu", file="m.yaml", state="stale", version=3)
    wanted = WantedRun(deployment_of("gpu"), "gpu", "key", "m for local-cpu", (), {})
    one = awaiting.Awaited(planned, wanted, run_in(_state("SCHEDULED")), time.monotonic())
    notices: list[str] = []
    runs: Any = told
    waiting = awaiting.Wait(runs, Dispatch({"": "gpu"}, **dispatch), notices.append)
    (outcome,) = waiting.until_ended([one])
    return outcome, notices


def test_a_run_that_crashes_each_time_is_started_three_times_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(*[_state("CRASHED", "killed")] * 3)
    outcome, notices = waited(monkeypatch, told)
    assert told.asked == ["start again"] * 2
    assert (outcome.ended, outcome.version) == ("failed", 3)
    assert outcome.failure is not None
    assert outcome.failure.message.startswith("its run crashed 3 times: killed")
    assert notices[1] == "m for local-cpu: its run crashed (killed); it is started again, 2 of 2"


def test_a_run_that_a_person_cancels_or_deletes_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    for states, words in (((_state("CANCELLING"), _state("CANCELLED", "by hand")), "by hand"), ((None,), "deleted")):
        told = Told(*states)
        outcome, _ = waited(monkeypatch, told)
        assert (outcome.ended, told.asked) == ("interrupted", [])
        assert outcome.failure is not None
        assert words in outcome.failure.message


def test_a_run_waits_its_turn_while_the_pool_is_busy_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(_state("SCHEDULED"), _state("FAILED", "no such module"), ending=True)
    outcome, _ = waited(monkeypatch, told, take_up_seconds=-1)
    assert told.asked == ["is it busy"]
    assert outcome.failure is not None
    assert "its run ended without saying what came of it: no such module" in outcome.failure.message
    told = Told(_state("PENDING"))
    outcome, _ = waited(monkeypatch, told, take_up_seconds=-1)
    why = "nobody took its run up for -1 s, and gpu built nothing else"
    assert told.asked == ["is it busy", f"cancel: {why}"]
    assert outcome.failure is not None
    assert why in outcome.failure.message
    assert "prefect worker start --pool gpu" in outcome.failure.message


def test_a_run_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("RUNNING", "CANCELLING", "PAUSED"):
        told = Told(_state(kind), seconds=60)
        outcome, _ = waited(monkeypatch, told, longest_seconds=59)
        assert told.asked == ["cancel: it was not done 59 s after it had begun"]
        assert outcome.ended == "failed"


def test_what_a_run_waits_before_it_begins_is_not_time_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(*[_state("SCHEDULED"), _state("PENDING")] * 2, _state("FAILED", "at its end"))
    outcome, _ = waited(monkeypatch, told, longest_seconds=1e-9)
    assert outcome.failure is not None
    assert "at its end" in outcome.failure.message


def test_a_run_of_another_fleet_that_was_cancelled_is_started_again_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(_state("CANCELLED", "with its fleet"), _state("CANCELLED", "again"), ours=False)
    outcome, notices = waited(monkeypatch, told)
    assert (outcome.ended, told.asked) == ("interrupted", ["start again"])
    assert outcome.failure is not None
    assert outcome.failure.message == "again"
    assert len(notices) == 1


def test_a_run_of_another_fleet_that_is_given_up_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(_state("RUNNING"), ours=False, seconds=60)
    outcome, _ = waited(monkeypatch, told, longest_seconds=59)
    assert (outcome.ended, told.asked) == ("failed", [])
    assert outcome.failure is not None
    assert outcome.failure.message.startswith("it was not done 59 s after it had begun")


def test_a_pool_whose_places_fleets_have_is_told_of_before_a_run_has_waited_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from plansmith.flows.fleet import awaiting

    monkeypatch.setattr(awaiting, "_HELD_UP_SECONDS", -1)
    told = Told(_state("SCHEDULED"), fleets=("fleet: a", "refresh: b"))
    outcome, _ = waited(monkeypatch, told)
    assert outcome.failure is not None
    assert "gpu carries out nothing but fleets, which wait themselves: fleet: a, refresh: b" in outcome.failure.message
    assert "--limit" in outcome.failure.message
    told = Told(_state("SCHEDULED"), _state("SCHEDULED"), _state("FAILED", "taken up"))
    outcome, _ = waited(monkeypatch, told)
    assert told.asked == ["is it busy"], "without fleets it waits for its time, and does not ask each time"
    assert outcome.failure is not None
    assert "taken up" in outcome.failure.message


def test_an_odd_answer_about_one_model_is_its_failure_and_an_api_that_is_away_ends_the_fleet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    odd = ValueError("no JSON")
    outcome, _ = waited(monkeypatch, Told(odd, odd))
    assert outcome.failure is not None
    assert (outcome.ended, outcome.failure.error) == ("failed", "ValueError")
    for error in (ValueError("odd"), _refusal(404), EnvironmentFault("the worker is older", remedy="x")):
        outcome, _ = waited(monkeypatch, Told(_state("COMPLETED")), left=_raising(error))
        assert outcome.ended == "failed"
    away = EnvironmentFault("away", remedy="x", transient=True)
    with pytest.raises(EnvironmentFault, match="away"):
        waited(monkeypatch, Told(_state("COMPLETED")), left=_raising(away))
    with pytest.raises(EnvironmentFault, match="away"):
        waited(monkeypatch, Told(away))


def _raising(error: Exception) -> Callable[[UUID], Any]:
    def read(run: UUID) -> Any:
        del run
        raise error

    return read


def _refusal(code: int) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://127.0.0.1/api")
    return httpx.HTTPStatusError("refused", request=request, response=httpx.Response(code, request=request))
