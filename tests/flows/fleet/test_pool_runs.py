"""Which run a fleet waits for, who may end it, and where its paths are; the client is asked as Prefect's own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun, State, StateType, WorkPool
from prefect.client.schemas.responses import DeploymentResponse
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound

from plansmith.config.spec import ModelSpec
from plansmith.errors import EnvironmentFault, UsageError
from plansmith.flows.deploy.deployments import find_deployment
from plansmith.flows.fleet import pool_runs
from plansmith.flows.fleet.awaiting import parameters_of
from plansmith.flows.fleet.pool_runs import PoolRuns, WantedRun

PLANNED = datetime(2026, 1, 1, tzinfo=UTC)
FLEET = uuid4()
POOL = DeploymentResponse(id=uuid4(), name="gpu", flow_id=uuid4(), work_pool_name="gpu", labels={})


class StubClient:
    """A client: what each of its questions is answered with, by the filters that it was asked with."""

    def __init__(self, **answers: Any) -> None:
        self._answers = answers

    def __enter__(self) -> StubClient:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def __getattr__(self, name: str) -> Any:
        real = signature(getattr(SyncPrefectClient, name))

        def ask(*args: Any, **named: Any) -> Any:
            parameters = dict(real.bind(self, *args, **named).arguments)
            del parameters["self"]
            return self._answers[name](**parameters)

        return ask


def runs_at(monkeypatch: pytest.MonkeyPatch, **answers: Any) -> PoolRuns:
    monkeypatch.setattr(pool_runs, "get_client", lambda **_: StubClient(**answers))
    return PoolRuns(FLEET, PLANNED, lambda _: None)


def started(monkeypatch: pytest.MonkeyPatch, fault: Exception | None = None) -> list[str]:
    """The keys of the runs that are started."""
    keys: list[str] = []

    def start(*args: Any, **named: Any) -> FlowRun:
        parameters = signature(run_deployment).bind(*args, **named).arguments
        keys.append(parameters["idempotency_key"])
        if fault is not None:
            raise fault
        return run_in("SCHEDULED", parameters["idempotency_key"])

    monkeypatch.setattr(pool_runs, "run_deployment", start)
    return keys


def run_in(kind: str, key: str = "key:4", updated: float = 60, name: str = "m") -> FlowRun:
    moment: Any = PLANNED + timedelta(seconds=updated)
    state: Any = State(type=StateType[kind])
    return FlowRun(id=uuid4(), flow_id=uuid4(), name=name, state=state, idempotency_key=key, updated=moment)


WANTED = WantedRun(POOL, "gpu", "key", "m", (), {})


@pytest.mark.parametrize(
    ("kind", "updated", "again"),
    [
        ("RUNNING", -60, False),
        ("SCHEDULED", -60, False),
        ("COMPLETED", -60, True),
        ("FAILED", -60, True),
        ("COMPLETED", 60, False),
        ("FAILED", 60, False),
        ("CANCELLING", 60, True),
        ("CANCELLED", 60, True),
        ("CANCELLING", -60, True),
    ],
)
def test_running_run_is_answer(kind: str, updated: float, again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that goes on or has ended since is the answer, and a cancelled one is not."""
    existing, keys = run_in(kind, updated=updated), started(monkeypatch)
    runs = runs_at(monkeypatch, read_flow_runs=lambda **_: [existing])
    answer = runs.find_or_start(WANTED)
    assert keys == (["key:5"] if again else [])
    assert (answer.id == existing.id) is not again


def test_missing_deployment_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deployment that is gone is told in words."""
    started(monkeypatch, ObjectNotFound(http_exc=ValueError("404")))
    with pytest.raises(EnvironmentFault, match="the deployment of compile-model for gpu is there no more") as error:
        runs_at(monkeypatch, read_flow_runs=lambda **_: []).find_or_start(WANTED)
    assert error.value.remedy == "plansmith flows deploy"


def test_server_without_deployments_names_remedies() -> None:
    """A server without deployments is told with both ways to make them."""
    empty: Any = SimpleNamespace(read_deployments=lambda **_: [])
    with pytest.raises(UsageError, match="the Prefect server has no deployment of compile-model") as bare:
        find_deployment(empty, "gpu")
    assert bare.value.remedy == "plansmith flows deploy, or on one machine: plansmith flows serve"


def test_own_run_known_by_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is ours by its parent."""
    child = run_in("RUNNING")

    def read(flow_run_filter: Any) -> list[FlowRun]:
        assert flow_run_filter.id.any_ == [child.id]
        assert flow_run_filter.parent_flow_run_id.any_ == [FLEET]
        return children

    for children in ([], [child]):
        assert runs_at(monkeypatch, read_flow_runs=read).is_ours(child) is bool(children)


def occupied(monkeypatch: pytest.MonkeyPatch, *, limit: int | None, others: int = 0, here: bool = True) -> PoolRuns:
    """A pool with this fleet in it, or elsewhere, another fleet, and other runs."""
    fleets = [run_in("RUNNING", name="fleet: this"), run_in("RUNNING", name="fleet: that")]
    fleets[0].id = FLEET if here else uuid4()

    def read(flow_run_filter: Any, work_pool_filter: Any, flow_filter: Any = None) -> list[FlowRun]:
        assert flow_run_filter.state.type.any_ == [StateType.RUNNING]
        assert work_pool_filter.name.any_ == ["gpu"]
        if flow_filter is not None:
            assert flow_filter.name.any_ == ["compile-fleet", "refresh"]
            return fleets
        return [*fleets, *(run_in("RUNNING") for _ in range(others))]

    pool = WorkPool(name="gpu", type="process", concurrency_limit=limit, default_queue_id=uuid4())
    return runs_at(
        monkeypatch,
        read_flow_runs=read,
        read_deployments=lambda **_: [POOL],
        read_work_pool=lambda **_: pool,
        read_workers_for_work_pool=lambda **_: ["a worker"],
    )


def test_exhausted_pool_refused_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool whose places fleets have is refused before anything is started."""
    for limit in (None, 0, 3):
        assert occupied(monkeypatch, limit=limit).deployment("gpu") is POOL
    assert occupied(monkeypatch, limit=2, here=False).deployment("gpu") is POOL
    with pytest.raises(EnvironmentFault, match=r"carries out 2 runs at a time, and fleets wait in all of them") as full:
        occupied(monkeypatch, limit=2).deployment("gpu")
    assert "fleet: that, fleet: this" in full.value.message
    assert "prefect work-pool set-concurrency-limit gpu 3" in str(full.value.remedy)


def test_pool_place_holders_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The holders of the places of a pool are told."""
    alone = occupied(monkeypatch, limit=None).occupants(POOL)
    assert (alone.ending, alone.fleets) == (False, ("fleet: that", "fleet: this"))
    assert occupied(monkeypatch, limit=None, others=1).occupants(POOL).ending
    assert occupied(monkeypatch, limit=None, here=False).occupants(POOL).fleets == ()


def test_fleet_places_follow_pool_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Places in a fleet's folder are in the pool's, unless the fleet was given another."""
    monkeypatch.chdir(tmp_path)
    spec = ModelSpec(source="onnx:m.onnx", repository="models")
    default_parameters = parameters_of(spec, tmp_path / "specs", ".")
    assert default_parameters == {
        "spec": {"source": "onnx:m.onnx", "repository": "models"},
        "folder": "specs",
        "directory": ".",
    }
    below = parameters_of(spec, tmp_path / "specs", "sub")
    assert (below["folder"], below["directory"]) == ("sub/specs", "sub")
    explicit_parameters = parameters_of(spec, tmp_path / "specs", str(tmp_path))
    assert (explicit_parameters["folder"], explicit_parameters["directory"]) == (str(tmp_path / "specs"), str(tmp_path))
    assert parameters_of(spec, Path("/elsewhere"), ".")["folder"] == "/elsewhere"


def test_compile_has_own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compile has its own folders where its run works."""
    from plansmith.flows import compile_model

    calls: list[tuple[str, str, Path]] = []

    class Noted(Exception):
        """What the compile was made with is known."""

    def note(spec: ModelSpec, *, relative_to: Path, listener: Any) -> Any:
        del listener
        calls.append((spec.artifacts, spec.repository, relative_to))
        raise Noted

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compile_model, "Compilation", note)
    monkeypatch.setattr(compile_model, "RunListener", Silent)
    monkeypatch.setattr(compile_model, "outcome_of", lambda *_: None)
    spec = ModelSpec(source="onnx:m.onnx", repository="models")
    for directory in (".", ""):
        with pytest.raises(Noted):
            compile_model.compile_model.fn(spec, "specs", directory)
    specs = tmp_path / "specs"
    assert calls == [
        (str(tmp_path / "artifacts"), str(tmp_path / "models"), specs),
        (str(specs / "artifacts"), str(specs / "models"), specs),
    ]


class Silent:
    """Told how a compile goes, says nothing."""

    def __init__(self, *_: Any) -> None:
        return

    def __getattr__(self, name: str) -> Any:
        from plansmith.flows.runs.listening import RunListener

        assert hasattr(RunListener, name)
        return lambda *_, **__: None
