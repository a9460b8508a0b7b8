"""A fleet without work pools: planned, and built in the process of its run, one model after another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil
import pytest

from ...support.prefect.fleets import REFRESH, FleetRun, children_of, lay_out, runs_named, state_of, table
from ...support.prefect.prefect_server import PrefectServer
from ...support.prefect.workers import words_of
from ...support.waiting import soon, wait_until

pytestmark = pytest.mark.services


def test_fleet_builds_stale_models(prefect: PrefectServer, tmp_path: Path) -> None:
    """A fleet builds what is stale and a failure stops nothing."""
    lay_out(tmp_path, "mends")
    lay_out(tmp_path, "ajar", shapes={"nothing": "1x8:2x8:4x8"})
    (tmp_path / "specs" / "torn.yaml").write_text("source: [")
    answer = FleetRun(prefect, tmp_path).answer()
    assert answer.ended == {"ajar": "failed", "mends": "published", "torn.yaml": "failed"}
    assert (answer.state, answer.outcomes["ajar"]["failure"]["exit_code"]) == ("FAILED", 2)
    assert answer.message.startswith("3 models: 1 published, 2 failed; ")
    assert answer.message.endswith(": ajar, torn.yaml")
    fleet = _fleet_with(prefect, answer.outcomes["mends"]["run"])
    _check_tables(prefect, fleet)
    _check_children(prefect, fleet, answer.outcomes)
    again = FleetRun(prefect, tmp_path, models=["mends"], flow=REFRESH).answer()
    assert (again.state, again.ended) == ("COMPLETED", {"mends": "fresh"})
    assert len(runs_named(prefect, "mends for local-cpu")) == 1


def _fleet_with(prefect: PrefectServer, address: str) -> str:
    (run,) = prefect.ask("flow_runs/filter", flow_runs={"id": {"any_": [address.rpartition("/")[2]]}})
    (parent,) = prefect.ask("task_runs/filter", task_runs={"id": {"any_": [run["parent_task_run_id"]]}})
    return str(parent["flow_run_id"])


def _check_tables(prefect: PrefectServer, fleet: str) -> None:
    """What a person sees of the fleet's run."""
    artifacts = prefect.artifacts_of(fleet)
    plan, summary = table(artifacts["fleet-plan"]), table(artifacts["fleet-summary"])
    assert [(row["model"], row["state"]) for row in plan] == [
        ("ajar", "stale"),
        ("mends", "stale"),
        ("specs/torn.yaml", "refused"),
    ]
    assert plan[1]["why"] == "there is no version of it yet"
    assert [row["outcome"] for row in summary][:2] == ["failed at export, exit code 2", "published version 1"]
    assert float(artifacts["fleet-progress"]["data"]) == 100
    log = prefect.logs_of(fleet)
    assert "3 models: 2 stale, 1 refused" in log
    assert [line for line in log if line.startswith("ajar for local-cpu: failed at export, exit code 2: shapes: ")]


def _check_children(prefect: PrefectServer, fleet: str, outcomes: dict[str, dict[str, Any]]) -> None:
    """Each model has a run of its own, with its tags, its log and what came of it."""
    children = children_of(prefect, fleet)
    assert set(children) == {"ajar for local-cpu", "mends for local-cpu"}
    (failed,), (good,) = children["ajar for local-cpu"], children["mends for local-cpu"]
    assert (failed["state"]["type"], good["state"]["type"]) == ("FAILED", "COMPLETED")
    assert {"plansmith", "model:mends", "target:local-cpu"} <= set(good["tags"])
    records = {}
    for run, name in ((failed, "ajar"), (good, "mends")):
        (row,) = table(prefect.artifacts_of(run["id"])[f"outcome-{name}-local-cpu"])
        records[name] = json.loads(row["record"])
    assert records["ajar"]["failure"] == outcomes["ajar"]["failure"]
    assert (records["mends"]["ended"], records["mends"]["version"]) == ("published", 1)
    log = "\n".join(prefect.logs_of(failed["id"]))
    assert "Next: its inputs are x" in log
    assert soon(lambda: _published_by(prefect, good["id"]), ["mends"]) == ["mends"]
    assert _published_by(prefect, failed["id"]) == []


def _published_by(prefect: PrefectServer, run: str) -> list[str]:
    """The models that a run told the server's automations of."""
    event_filter = {"event": {"name": ["plansmith.release.published"]}, "related": {"id": [f"prefect.flow-run.{run}"]}}
    return [event["payload"]["model"] for event in prefect.ask("events/filter", filter=event_filter)["events"]]


def test_dead_child_ends_own_model(prefect: PrefectServer, tmp_path: Path) -> None:
    """A heavy child that dies and a run that is cancelled end only their own models."""
    lay_out(tmp_path, "a-shot", "b-stopped", "c-built")
    fleet = FleetRun(prefect, tmp_path)
    shot = _halted(fleet, tmp_path, "a-shot")
    (log,) = tmp_path.glob("artifacts/logs/a-shot-*-worker.log")
    with log.open("a") as file:
        file.write("".join(f"word {number}\n" for number in range(100)))
    shot.kill()
    _halted(fleet, tmp_path, "b-stopped")
    (stopped,) = runs_named(prefect, "b-stopped for local-cpu")
    prefect.cancel(stopped["id"])
    answer = fleet.answer()
    assert answer.ended == {"a-shot": "failed", "b-stopped": "interrupted", "c-built": "published"}
    assert answer.outcomes["a-shot"]["failure"]["exit_code"] == 9
    assert state_of(prefect, stopped["id"]) == "CANCELLED"
    _check_tail(prefect, runs_named(prefect, "a-shot for local-cpu")[0]["id"], log)


def _check_tail(prefect: PrefectServer, run: str, log: Path) -> None:
    """The run's log holds the last lines of a tool's, and says where the whole is."""
    lines = prefect.logs_of(run)
    (tail,) = [line for line in lines if line.startswith(f"the last lines of {log}:")]
    assert tail.splitlines()[1:] == [f"word {number}" for number in range(60, 100)]
    assert [line for line in lines if line.endswith(f"Log: {log}")]


def test_killed_fleet_goes_on(prefect: PrefectServer, tmp_path: Path) -> None:
    """A fleet that was killed goes on after what is published."""
    lay_out(tmp_path, "d-first", "e-second")
    fleet = FleetRun(prefect, tmp_path)
    compiling = _halted(fleet, tmp_path, "e-second")
    fleet.kill()
    compiling.resume()
    wait_until(lambda: not compiling.is_running())
    answer = FleetRun(prefect, tmp_path).answer()
    assert (answer.state, answer.ended) == ("COMPLETED", {"d-first": "fresh", "e-second": "published"})


def test_oversized_spec_is_failure(prefect: PrefectServer, tmp_path: Path) -> None:
    """A spec that the server refuses for its size is a failure in words."""
    lay_out(tmp_path, "huge", task="x" * 530_000)
    answer = FleetRun(prefect, tmp_path).answer()
    assert answer.ended == {"huge": "failed"}
    failure = answer.outcomes["huge"]["failure"]
    assert failure["exit_code"] == 2
    assert "the spec is too large for a run of compile-model" in failure["message"]
    assert "524,288 bytes" in failure["message"]
    assert "PREFECT_SERVER_API_MAX_PARAMETER_SIZE" in failure["message"]


def _halted(fleet: FleetRun, folder: Path, model: str) -> psutil.Process:
    """The process that a model is compiled in, once it is; it is stopped, so that the compile is not done too soon."""
    processes: list[psutil.Process] = []

    def is_halted() -> bool:
        assert fleet.process.poll() is None, "the fleet ended"
        if list(folder.glob(f"artifacts/logs/{model}-*-worker.log")):
            children = psutil.Process(fleet.process.pid).children(recursive=True)
            workers = [child for child in children if "plansmith.steps.worker" in words_of(child)]
            # A fork server has the words of those that it forks; it is to go on.
            processes[:] = [
                w for w in workers if "plansmith.system.fork_server" not in words_of(w) or w.parent() in workers
            ]
            for worker in processes:
                worker.suspend()
        return bool(processes)

    wait_until(is_halted, lambda: fleet.log)
    return processes[0]
