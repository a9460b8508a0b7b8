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

from plansmith.flows.prefect_api import cancelling

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
DEPLOYMENT = uuid4()


class StubClient:
    """A client whose server has these runs, of which all but the last are found as those that are running."""

    def __init__(self, *runs: FlowRun) -> None:
        self.runs = runs

    def __enter__(self) -> StubClient:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def read_flow_run(self, *args: Any, **named: Any) -> FlowRun:
        run_id: UUID = signature(SyncPrefectClient.read_flow_run).bind(self, *args, **named).arguments["flow_run_id"]
        return next(run for run in self.runs if run.id == run_id)

    def read_flow_runs(self, *args: Any, **named: Any) -> list[FlowRun]:
        parameters = signature(SyncPrefectClient.read_flow_runs).bind(self, *args, **named).arguments
        assert parameters["flow_run_filter"].state.type.any_ == [StateType.RUNNING]
        assert parameters["deployment_filter"].id.any_ == [DEPLOYMENT]
        return list(self.runs)


def run_of(name: str, seconds: float, number: int = 0, **fields: Any) -> FlowRun:
    moment: Any = BEGAN + timedelta(seconds=seconds)
    state: Any = State(type=StateType.RUNNING, timestamp=moment)
    values = {"id": UUID(int=number) if number else uuid4(), "deployment_id": DEPLOYMENT, "parameters": {}, **fields}
    return FlowRun(flow_id=uuid4(), name=name, state=state, **values)


def found_for(this: FlowRun, *others: FlowRun) -> str | None:
    client: Any = StubClient(*others, this)
    earlier = cancelling.earlier_run(client, this.id)
    return earlier.name if earlier else None


def test_earliest_run_goes_on() -> None:
    """The run that ran first goes on."""
    first, second = run_of("first", 1), run_of("second", 2)
    assert found_for(second, first) == "first"
    assert found_for(first, second) is None
    assert found_for(first) is None


def test_simultaneous_runs_leave_one() -> None:
    """Of two runs that began at one moment, only one goes on."""
    first, second = run_of("one", 1, number=1), run_of("other", 1, number=2)
    assert (found_for(first, second), found_for(second, first)) == (None, "one")


def test_unrelated_run_goes_on() -> None:
    """A run that does something else or has no deployment goes on."""
    earlier = run_of("other", 1, parameters={"model": "a"})
    assert found_for(run_of("this", 2, parameters={"model": "b"}), earlier) is None
    assert found_for(run_of("this", 2, parameters={"model": "a"}), earlier) == "other"
    assert found_for(run_of("by hand", 2, deployment_id=None, parameters={"model": "a"}), earlier) is None


@pytest.mark.parametrize("flow", ["refresh", "verify", "collect"])
def test_flow_ends_naming_other_run(flow: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A flow ends at once and says which run goes on."""
    from plansmith.flows.prefect_api.api import load_flow

    first, this = run_of("nightly", 1), run_of("by hand", 2)
    monkeypatch.setattr(cancelling, "get_client", lambda **_: StubClient(first, this))
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", str(this.id))
    options = {"specs": (str(tmp_path),)} if flow == "refresh" else {}
    function = load_flow(flow).fn  # whose first import sets up logging anew
    with disable_run_logger():
        ended = function(folder=str(tmp_path / "nowhere"), **options)
    assert (ended.type, ended.name) == (StateType.COMPLETED, "Skipped")
    assert ended.message.startswith("skipped: nightly goes on and does the same: ")


def test_last_waiting_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of runs that wait for an earlier one, the last goes on."""
    first, second, last = run_of("first", 1), run_of("second", 2), run_of("last", 3)
    server = StubClient(first, second, last)
    monkeypatch.setattr(cancelling, "get_client", lambda **_: server)
    # The first one ends while the last one waits.
    monkeypatch.setattr("time.sleep", lambda _: setattr(server, "runs", (last,)))

    def ended(run: FlowRun) -> State[Any] | None:
        monkeypatch.setenv("PREFECT__FLOW_RUN_ID", str(run.id))
        with disable_run_logger():
            return cancelling.superseded()

    state = ended(second)
    assert state is not None
    assert (state.name, state.message) == ("Skipped", "skipped: last waits as well, and does what this run would")
    server.runs = (first, last)
    assert ended(last) is None
    assert len(server.runs) == 1, "it did not wait"
