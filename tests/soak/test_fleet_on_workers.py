"""Six models on three workers, one of which dies with all that it does: each ends in one version or one failure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ..support.faults.compiles import write_tiny_bert
from ..support.faults.wholeness import release_numbers, shown_versions
from ..support.prefect.compiled import problems, records
from ..support.prefect.fleets import hold, write_graph
from ..support.prefect.team import BEGUN_SECONDS, FINAL, POOL, SILENT_SECONDS, Team
from ..support.prefect.workers import PoolWorker
from ..support.waiting import wait_until

pytestmark = [pytest.mark.services, pytest.mark.xdist_group("soak-fleet")]

HELD = ("held-1", "held-2")
"""They are at work when a worker dies: there are two, so that one of them is not beside the run of the fleet."""
REFUSED = "refused"
GRAPHS = {"held-1": 0, "held-2": 1, "plain-1": 2, "plain-2": 2, "plain-3": 2, REFUSED: 3}
NAMES = tuple(GRAPHS)
_REFUSAL = "failed at validate, exit code 5"
_FLEET_SECONDS = 1200
_SOME = 2


def test_fleet_survives_dead_worker(crew: Team, tmp_path: Path) -> None:
    """A fleet of six is finished though a worker dies."""
    _write_fleet(tmp_path)
    fleet = _start(crew, tmp_path)
    victim, lost = _midway(crew, fleet, tmp_path)
    victim.kill_machine()
    (tmp_path / "specs" / "go").touch()
    try:
        assert crew.ended(fleet, _FLEET_SECONDS) == "FAILED", "the gate refuses one of the models"
    finally:
        victim.start()
    assert problems(tmp_path) == []
    _check_versions(tmp_path)
    _check_built_once(tmp_path)
    _check_runs(crew, fleet, lost)
    # All that is left to do is what failed.
    again = _start(crew, tmp_path)
    crew.ended(again, _FLEET_SECONDS)
    assert _outcomes(crew, again) == {name: _REFUSAL if name == REFUSED else "fresh, version 1" for name in NAMES}
    assert len(_children(crew, again)) == 1
    _check_versions(tmp_path)


def _start(crew: Team, folder: Path) -> str:
    return crew.start("compile-fleet", {"specs": [str(folder / "specs")], "folder": str(folder), "pools": {"": POOL}})


def _midway(crew: Team, fleet: str, folder: Path) -> tuple[PoolWorker, set[str]]:
    """Wait until some models are published: a worker that builds others, without the run of the fleet, and its runs."""
    matches: list[tuple[PoolWorker, set[str]]] = []

    def is_midway() -> bool:
        assert crew.run(fleet)["state"]["type"] not in FINAL, "it ended before anybody could be killed"
        if len(_published(folder)) < _SOME or not (folder / "specs" / "held").exists():
            return False
        for worker in crew.workers:
            runs = worker.run_ids()
            begun = all(crew.run(run)["state"]["type"] == "RUNNING" for run in runs)
            if begun and fleet not in runs and _blocked_runs(crew) & worker.run_ids(run_in_worker=True):
                matches.append((worker, runs))
        return bool(matches)

    wait_until(is_midway, lambda: str(crew.run(fleet)["state"]), _FLEET_SECONDS)
    return matches[0]


def _blocked_runs(crew: Team) -> set[str]:
    """The runs of the models that are at work until they may go on."""
    names = [f"{name} for local-cpu" for name in HELD]
    return {run["id"] for run in crew.server.ask("flow_runs/filter", flow_runs={"name": {"any_": names}})}


def _published(folder: Path) -> list[str]:
    return [record.model for record in records(folder) if record.outcome == "published"]


def _check_versions(folder: Path) -> None:
    """One version of each model but the refused one, published once, and that refused."""
    root = folder / "artifacts" / "repository"
    assert len(_published(folder)) == len(set(_published(folder)))
    for name in set(NAMES) - {REFUSED}:
        assert (release_numbers(root, name), shown_versions(root, name)) == ((1,), (1,)), name
    assert release_numbers(root, REFUSED) == ()
    failures = {record.failure.step for record in records(folder) if record.model == REFUSED and record.failure}
    assert failures == {"validate"}


def _check_built_once(folder: Path) -> None:
    """No two runs did the same work, whichever machines they were on; a killed one leaves no record."""
    for step in ("fetch", "export", "compile"):
        built = [
            record.source
            for record in records(folder)
            for entry in record.steps
            if entry.name == step and not entry.cached
        ]
        assert len(built) == len(set(built)), step


def _check_runs(crew: Team, fleet: str, lost: set[str]) -> None:
    """Each model has a run, and those of the dead worker were noticed and started again."""
    runs = _children(crew, fleet)
    crashed = {str(run["id"]): str(run["state"]["message"]) for run in runs if run["state"]["type"] == "CRASHED"}
    # One of them may have come to its end just before the kill; what was just taken up then has no process yet.
    ended = {str(run["id"]) for run in runs if run["state"]["type"] == "COMPLETED"}
    assert crashed
    assert lost <= crashed.keys() | ended
    noticed = (f"no heartbeat for {SILENT_SECONDS} s", f"did not begin within {BEGUN_SECONDS} s")
    assert all(any(fragment in message for fragment in noticed) for message in crashed.values())
    # Who was killed after it had left what came of it has no need of another run.
    done = [run for run in crashed if any(key.startswith("outcome-") for key in crew.server.artifacts_of(run))]
    assert len(runs) == len(NAMES) + len(crashed) - len(done)
    log = crew.server.logs_of(fleet)
    assert not [message for message in log if "Traceback" in message]
    # Who was killed after it had published is found unchanged by the run that is started again.
    outcomes = _outcomes(crew, fleet)
    assert outcomes.pop(REFUSED) == _REFUSAL
    assert outcomes.keys() == set(NAMES) - {REFUSED}
    assert set(outcomes.values()) <= {"published version 1", "unchanged, version 1"}


def _children(crew: Team, fleet: str) -> list[dict[str, Any]]:
    runs = crew.server.ask("flow_runs/filter", flow_runs={"parent_flow_run_id": {"any_": [fleet]}})
    assert isinstance(runs, list)
    return runs


def _outcomes(crew: Team, fleet: str) -> dict[str, str]:
    """What came of each model, as the table says that the run shows."""
    rows = json.loads(crew.server.artifacts_of(fleet)["fleet-summary"]["data"])
    return {row["model"]: row["outcome"] for row in rows}


def _write_fleet(folder: Path) -> None:
    """Six specs of four models in one repository; two compiles wait for a `go`, and the gate refuses the last."""
    specs = folder / "specs"
    specs.mkdir()
    for name, number in GRAPHS.items():
        write_graph(folder / f"{number}.onnx", number)
        spec: dict[str, Any] = {"source": f"onnx:{folder}/{number}.onnx", "name": name, "check_served": False}
        spec |= {"artifacts": str(folder / "artifacts"), **(hold(specs) if name in HELD else {})}
        if name == REFUSED:
            nothing = {"max_relative": 0, "quantile_relative": 0, "min_cosine": 1}
            spec |= {"source": f"hf:{write_tiny_bert(folder / 'bert')}", "random_weights": True}
            spec |= {"tolerances": {"last_hidden_state": nothing, "pooler_output": nothing}}
        (specs / f"{name}.yaml").write_text(json.dumps(spec))  # which is YAML, too
