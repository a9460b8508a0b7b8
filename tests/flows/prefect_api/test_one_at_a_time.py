"""A run whose deployment does the same already ends at once and says so; of two that begin together one goes on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from inspect import signature
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.logging import disable_run_logger

from plansmith.flows.prefect_api import one_at_a_time

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
DEPLOYMENT = uuid4()


class Asked:
    """A client whose server has these runs, of which all but the last are found as those that are running."""

    def __init__(self, *runs: FlowRun) -> None:
        self.runs = runs

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def read_flow_run(self, *given: Any, **named: Any) -> FlowRun:
        found: UUID = signature(SyncPrefectClient.read_flow_run).bind(self, *given, **named).arguments["flow_run_id"]
        return next(run for run in self.runs if run.id == found)

    def read_flow_runs(self, *given: Any, **named: Any) -> list[FlowRun]:
        asked = signature(SyncPrefectClient.read_flow_runs).bind(self, *given, **named).arguments
        assert asked["flow_run_filter"].state.type.any_ == [StateType.RUNNING]
        assert asked["deployment_filter"].id.any_ == [DEPLOYMENT]
        return list(self.runs)


def run_of(name: str, seconds: float, number: int = 0, **fields: Any) -> FlowRun:
    moment: Any = BEGAN + timedelta(seconds=seconds)
    state: Any = State(type=StateType.RUNNING, timestamp=moment)
    wanted = {"id": UUID(int=number) if number else uuid4(), "deployment_id": DEPLOYMENT, "parameters": {}, **fields}
    return FlowRun(flow_id=uuid4(), name=name, state=state, **wanted)


def found_for(this: FlowRun, *others: FlowRun) -> str | None:
    client: Any = Asked(*others, this)
    found = one_at_a_time.earlier_run(client, this.id)
    return found.name if found else None


def test_the_run_that_ran_first_goes_on() -> None:
    first, second = run_of("first", 1), run_of("second", 2)
    assert found_for(second, first) == "first"
    assert found_for(first, second) is None
    assert found_for(first) is None


def test_of_two_that_began_at_one_moment_one_alone_goes_on() -> None:
    one, other = run_of("one", 1, number=1), run_of("other", 1, number=2)
    assert (found_for(one, other), found_for(other, one)) == (None, "one")


def test_a_run_that_does_something_else_or_has_no_deployment_goes_on() -> None:
    other = run_of("other", 1, parameters={"model": "a"})
    assert found_for(run_of("this", 2, parameters={"model": "b"}), other) is None
    assert found_for(run_of("this", 2, parameters={"model": "a"}), other) == "other"
    assert found_for(run_of("by hand", 2, deployment_id=None, parameters={"model": "a"}), other) is None


@pytest.mark.parametrize("flow", ["refresh", "verify", "collect"])
def test_a_flow_ends_at_once_and_says_which_run_goes_on(
    flow: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from plansmith.flows.prefect_api.parameters import load_flow

    first, this = run_of("nightly", 1), run_of("by hand", 2)
    monkeypatch.setattr(one_at_a_time, "get_client", lambda **_: Asked(first, this))
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", str(this.id))
    given = {"specs": (str(tmp_path),)} if flow == "refresh" else {}
    function = load_flow(flow).fn  # whose first import sets up logging anew
    with disable_run_logger():
        ended = function(folder=str(tmp_path / "nowhere"), **given)
    assert (ended.type, ended.name) == (StateType.COMPLETED, "Skipped")
    assert ended.message.startswith("skipped: nightly goes on and does the same: ")


def test_of_runs_that_wait_for_an_earlier_one_the_last_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, last = run_of("first", 1), run_of("second", 2), run_of("last", 3)
    server = Asked(first, second, last)
    monkeypatch.setattr(one_at_a_time, "get_client", lambda **_: server)
    # The first one ends while the last one waits.
    monkeypatch.setattr("time.sleep", lambda _: setattr(server, "runs", (last,)))

    def ended(run: FlowRun) -> State[Any] | None:
        monkeypatch.setenv("PREFECT__FLOW_RUN_ID", str(run.id))
        with disable_run_logger():
            return one_at_a_time.superseded()

    state = ended(second)
    assert state is not None
    assert (state.name, state.message) == ("Skipped", "skipped: last waits as well, and does what this run would")
    server.runs = (first, last)
    assert ended(last) is None
    assert len(server.runs) == 1, "it did not wait"
