"""A fleet whose models are built on work pools: each is started once, waited for, and given up in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from ...support.prefect import workers
from ...support.prefect.fleets import FleetRun, children_of, lay_out, runs_named, state_of
from ...support.prefect.prefect_server import PASSWORD, USER, PrefectServer
from ...support.prefect.wire import Wire
from ...support.prefect.workers import PoolWorker
from ...support.waiting import wait_until

pytestmark = pytest.mark.services

POOL, EMPTY = "fleets", "empty"
_FLOWS = ("plansmith.flows.compile_model.compile_model", "plansmith.flows.compile_fleet.compile_fleet")


@pytest.fixture(scope="module")
def worker(prefect: PrefectServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolWorker]:
    """One worker of a pool; another pool has none."""
    workers.make_pool(prefect, EMPTY)
    workers.deploy(prefect, EMPTY, _FLOWS[0])
    with workers.running(prefect, POOL, tmp_path_factory.mktemp("worker"), count=1, limit=4) as started:
        workers.deploy(prefect, POOL, *_FLOWS)
        yield started[0]


@pytest.mark.usefixtures("worker")
def test_model_started_once_by_fleets(prefect: PrefectServer, tmp_path: Path) -> None:
    """Two fleets at once start a model once, and what failed is started by the next."""
    lay_out(tmp_path, "k-good")
    lay_out(tmp_path, "k-wrong", shapes={"nothing": "1x8:2x8:4x8"})
    # What one has built before the other plans is fresh to that one.
    with _paused_queue(prefect):
        fleets = [FleetRun(prefect, tmp_path, pools={"": POOL}) for _ in range(2)]
        wait_until(lambda: all("k-wrong for local-cpu is" in fleet.log for fleet in fleets))
    answers = [fleet.answer() for fleet in fleets]
    assert [answer.ended for answer in answers] == [{"k-good": "published", "k-wrong": "failed"}] * 2
    assert {answer.outcomes["k-wrong"]["failure"]["exit_code"] for answer in answers} == {2}
    assert answers[0].outcomes["k-good"]["run"] == answers[1].outcomes["k-good"]["run"]
    (good,), (wrong,) = runs_named(prefect, "k-good for local-cpu"), runs_named(prefect, "k-wrong for local-cpu")
    assert {"plansmith", "model:k-good", "target:local-cpu"} <= set(good["tags"])
    again = FleetRun(prefect, tmp_path, pools={"": POOL}).answer()
    assert again.ended == {"k-good": "fresh", "k-wrong": "failed"}
    assert len(runs_named(prefect, "k-wrong for local-cpu")) == 2
    assert again.outcomes["k-wrong"]["run"] != answers[0].outcomes["k-wrong"]["run"]
    assert wrong["id"] in answers[0].outcomes["k-wrong"]["run"]


def test_crashed_run_started_again(prefect: PrefectServer, worker: PoolWorker, tmp_path: Path) -> None:
    """A run that crashed is started again, and an API that is away is waited for."""
    lay_out(tmp_path, "l-killed", held=True)
    with Wire(prefect.port) as wire:
        fleet = FleetRun(prefect, tmp_path, port=wire.port, pools={"": POOL})
        _wait_for_heavy(prefect, worker, "l-killed")
        wait_until((tmp_path / "specs" / "held").exists)
        (process,) = worker.runs()
        wire.cut()
        process.kill()
        (tmp_path / "specs" / "go").touch()
        wait_until(lambda: "the Prefect API is away" in fleet.log)
        wait_until(lambda: _states(prefect, "l-killed") == ["CRASHED"])
        wire.mend()
        answer = fleet.answer()
    assert (answer.state, answer.ended) == ("COMPLETED", {"l-killed": "published"})
    assert sorted(_states(prefect, "l-killed")) == ["COMPLETED", "CRASHED"]
    assert "the Prefect API is there again" in fleet.log
    assert "its run crashed" in fleet.log
    assert "it is started again, 1 of 2" in fleet.log


def test_cancelled_fleet_ends_runs(prefect: PrefectServer, worker: PoolWorker, tmp_path: Path) -> None:
    """A cancelled fleet ends the runs that it started."""
    lay_out(tmp_path, "m-one", "m-two", held=True)
    parameters = {"specs": ["specs"], "folder": str(tmp_path), "pools": {"": POOL}}
    fleet = _start(prefect, "compile-fleet", parameters)
    _wait_for_heavy(prefect, worker, "m-one", "m-two")
    prefect.cancel(fleet)
    wait_until(lambda: not worker.run_in_worker())
    wait_until(lambda: state_of(prefect, fleet) == "CANCELLED")
    children = children_of(prefect, fleet)
    assert set(children) == {"m-one for local-cpu", "m-two for local-cpu"}
    wait_until(lambda: [state_of(prefect, run["id"]) for (run,) in children.values()] == ["CANCELLED"] * 2)


def test_cancelled_run_not_restarted(prefect: PrefectServer, worker: PoolWorker, tmp_path: Path) -> None:
    """A run that a person cancels is interrupted and not started again."""
    lay_out(tmp_path, "n-left", held=True)
    fleet = FleetRun(prefect, tmp_path, pools={"": POOL})
    (run,) = _wait_for_heavy(prefect, worker, "n-left")
    prefect.cancel(run)
    answer = fleet.answer()
    assert (answer.state, answer.ended) == ("FAILED", {"n-left": "interrupted"}), (answer.outcomes, fleet.log)
    assert answer.outcomes["n-left"]["failure"]["exit_code"] == 130
    assert len(runs_named(prefect, "n-left for local-cpu")) == 1


@pytest.mark.usefixtures("worker")
def test_unserved_target_is_failure(prefect: PrefectServer, tmp_path: Path) -> None:
    """A target that no worker serves is a failure in words."""
    targets = {"o-nowhere": "local-cpu", "o-empty": "triton-26.05", "o-stuck": "triton-26.04", "o-none": "triton-26.03"}
    for name, target in targets.items():
        lay_out(tmp_path, name, target=target, repository=f"../{name}")
    pools = {"local-cpu": "nowhere", "triton-26.05": EMPTY, "triton-26.04": POOL}
    with _paused_queue(prefect):
        answer = FleetRun(prefect, tmp_path, pools=pools, take_up_seconds=4).answer()
    assert set(answer.ended.values()) == {"failed"}
    messages = {name: outcome["failure"]["message"] for name, outcome in answer.outcomes.items()}
    codes = {name: outcome["failure"]["exit_code"] for name, outcome in answer.outcomes.items()}
    assert codes == {"o-nowhere": 2, "o-empty": 9, "o-stuck": 9, "o-none": 2}
    assert "there is no work pool nowhere; compile-model is deployed to " in messages["o-nowhere"]
    assert not [pool for pool in (EMPTY, POOL) if pool not in messages["o-nowhere"]]
    assert f"no worker polls the work pool {EMPTY}; next: prefect worker start" in messages["o-empty"]
    assert "nobody took its run up for 4 s" in messages["o-stuck"]
    assert "no work pool builds for the target triton-26.03" in messages["o-none"]
    wait_until(lambda: _states(prefect, "o-stuck", "triton-26.04") == ["CANCELLED"])
    assert not runs_named(prefect, "o-empty for triton-26.05")


@contextmanager
def _paused_queue(prefect: PrefectServer) -> Iterator[None]:
    """The queue of the pool gives out no runs while the block lasts."""
    (queue,) = prefect.ask(f"work_pools/{POOL}/queues/filter")

    def pause(paused: bool) -> None:
        url = f"http://127.0.0.1:{prefect.port}/api/work_queues/{queue['id']}"
        # A busy SQLite makes the server answer 503.
        wait_until(lambda: httpx.patch(url, json={"is_paused": paused}, auth=(USER, PASSWORD), timeout=30).is_success)

    pause(True)
    try:
        yield
    finally:
        pause(False)


def _start(prefect: PrefectServer, flow: str, parameters: Mapping[str, object]) -> str:
    names = {"flows": {"name": {"any_": [flow]}}, "deployments": {"name": {"any_": [POOL]}}}
    (deployment,) = prefect.ask("deployments/filter", **names)
    body = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
    return str(prefect.ask(f"deployments/{deployment['id']}/create_flow_run", **body)["id"])


def _states(prefect: PrefectServer, model: str, target: str = "local-cpu") -> list[str]:
    return [run["state"]["type"] for run in runs_named(prefect, f"{model} for {target}")]


def _wait_for_heavy(prefect: PrefectServer, worker: PoolWorker, *models: str) -> list[str]:
    """Wait until models are compiled, in processes of their runs; the ids of these."""
    named = [f"{model} for local-cpu" for model in models]
    wait_until(lambda: len(runs_named(prefect, *named)) == len(models))
    runs = [run["id"] for run in runs_named(prefect, *named)]
    wait_until(lambda: all(worker.heavy_of(run) for run in runs))
    return runs
