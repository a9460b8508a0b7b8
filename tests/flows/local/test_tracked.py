"""`plansmith compile --track` is a run that Prefect shows in full, and a compile like any other."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ...support.cli.command import COMMAND, CommandLine, check_refusal, environment
from ...support.prefect.prefect_server import PrefectServer
from ...support.prefect.wire import Wire
from ...support.waiting import wait_until

pytestmark = pytest.mark.services

STEPS = ["fetch", "export", "lower", "compile", "validate", "package", "publish"]


def test_tracked_compile_has_step_tasks(prefect: PrefectServer, run: CommandLine, tiny: str) -> None:
    """A tracked compile is a run with a task for every step."""
    command = ("compile", tiny, "--name", "Shown.1", "--no-check-served", "--publish", "store", "--track", "--json")
    answer = run(*command, **prefect.variables())
    assert answer.status == 0, answer
    assert answer.document["version"] == 1
    assert [step["name"] for step in answer.document["steps"]] == STEPS
    flow_run = prefect.run_named("Shown.1 for local-cpu")
    assert flow_run["state"]["type"] == "COMPLETED"
    assert flow_run["parameters"]["spec"]["source"] == tiny
    assert f"/runs/flow-run/{flow_run['id']}" in answer.stderr
    tasks = prefect.tasks_of(flow_run["id"], len(STEPS))
    assert [task["name"] for task in tasks] == STEPS
    assert {task["state"]["type"] for task in tasks} == {"COMPLETED"}
    _check_artifacts(prefect.artifacts_of(flow_run["id"]), Path(answer.document["model_path"]), run.folder / "store")
    (publication,) = answer.document["publications"]
    assert (publication["place"], publication["version"], publication["aliases"]) == (
        str(run.folder / "store"),
        1,
        ["current"],
    )
    assert [line for line in prefect.logs_of(flow_run["id"]) if f"publish: sending to {run.folder / 'store'}, " in line]
    untracked = run(*[word for word in command if word != "--track"]).document
    assert untracked["unchanged"]
    assert untracked.keys() == answer.document.keys()


def _check_artifacts(artifacts: dict[str, Any], model: Path, store: Path) -> None:
    """The plan, the gate's report, the release and the outcome."""
    assert set(artifacts) == {f"{kind}-shown-1-local-cpu" for kind in ("plan", "validation", "release", "outcome")}
    plan = json.loads(artifacts["plan-shown-1-local-cpu"]["data"])
    assert plan[:2] == [{"step": step, "state": "would run"} for step in ("fetch", "export")]
    assert plan[-2] == {"step": "check_served", "state": "left out"}
    assert plan[-1]["state"].endswith(f", and go to {store}")
    rows = json.loads(artifacts["validation-shown-1-local-cpu"]["data"])
    assert {row["case"] for row in rows} >= {"opt", "max"}
    assert {row["verdict"] for row in rows} == {"passed"}
    assert (model / "report.html").as_uri() in artifacts["release-shown-1-local-cpu"]["data"]
    assert (model / "report.html").is_file()


def test_refusing_gate_fails_run(prefect: PrefectServer, run: CommandLine, bert: Path) -> None:
    """A gate that refuses fails the run and shows what it saw, also from the cache."""
    (run.folder / "strict.yaml").write_text(
        f"source: hf:{bert}\nname: strict\ncheck_served: false\ntolerances:\n"
        "  logits: {max_relative: 0, quantile_relative: 0, min_cosine: 1}\n"
    )
    answer = run("compile", "strict.yaml", "--track", "--json", **prefect.variables())
    check_refusal(answer, 5, ("strict · validate: the engine differs from the model",))
    first = prefect.run_named("strict for local-cpu")
    assert first["state"]["type"] == "FAILED"
    assert "nothing was published" in first["state"]["message"]
    _check_refused_by_the_gate(prefect, first["id"], 5)
    assert run("compile", "strict.yaml", "--track", **prefect.variables()).status == 5
    named = prefect.ask("flow_runs/filter", flow_runs={"name": {"any_": ["strict for local-cpu"]}})
    (again,) = [flow_run["id"] for flow_run in named if flow_run["id"] != first["id"]]
    _check_refused_by_the_gate(prefect, again, 5)
    plan = json.loads(prefect.artifacts_of(again)["plan-strict-local-cpu"]["data"])
    assert [row["step"] for row in plan] == ["validate"]
    assert plan[0]["state"].startswith("will be refused: the engine differs")
    assert len(run("history", "strict", "--json").document["runs"]) == 2


def test_model_is_own_run(prefect: PrefectServer, run: CommandLine, tiny: str) -> None:
    """Each model of a file is a run, and one that fails stops none."""
    (run.folder / "several.yaml").write_text(
        f"defaults: {{check_served: false, source: '{tiny}'}}\n"
        "models:\n- {name: first, shapes: {nothing: 1x8:2x8:4x8}}\n- {name: second}\n"
    )
    answer = run("compile", "several.yaml", "--track", "--json", **prefect.variables())
    assert answer.status == 2
    failed, published = answer.document["models"]
    assert (failed["error"], published["version"]) == ("UsageError", 1)
    states = {name: prefect.run_named(f"{name} for local-cpu")["state"]["type"] for name in ("first", "second")}
    assert states == {"first": "FAILED", "second": "COMPLETED"}


def test_lost_run_is_finished(prefect: PrefectServer, run: CommandLine, tiny: str) -> None:
    """A run that Prefect loses sight of is finished all the same."""
    with Wire(prefect.port) as wire:
        process = subprocess.Popen(
            [*COMMAND, "compile", tiny, "--name", "lost", "--no-check-served", "--track", "--json"],
            cwd=run.folder,
            env=environment(**prefect.variables(port=wire.port)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_until(lambda: any(run.folder.glob("artifacts/logs/lost-*-worker.log")))
        wire.cut()
        stdout, stderr = process.communicate(timeout=600)
    assert process.returncode == 0, stderr
    assert json.loads(stdout)["version"] == 1
    assert "was lost" in stderr
    assert "finished all the same" in stderr
    assert not [line for line in stderr.splitlines() if not line.startswith(("plansmith: ", "  "))]


def test_interrupt_cancels_run(prefect: PrefectServer, run: CommandLine, tiny: str) -> None:
    """An interrupt at the terminal cancels the run."""
    process = subprocess.Popen(
        [*COMMAND, "compile", tiny, "--name", "interrupted", "--no-check-served", "--track"],
        cwd=run.folder,
        env=environment(**prefect.variables()),
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: any(run.folder.glob("artifacts/logs/interrupted-*-worker.log")))
    process.send_signal(signal.SIGINT)
    stderr = process.communicate(timeout=180)[1]
    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert prefect.run_named("interrupted for local-cpu")["state"]["type"] == "CANCELLED"


def test_briefly_absent_hub_asked_again(prefect: PrefectServer, run: CommandLine, bert: Path) -> None:
    """The Hub is asked again when it was not there for a moment."""
    from ...support.servers import hub_server

    with hub_server.running(bert) as hub:
        hub.unavailable = 1
        answer = run(
            *("compile", "hf:org/model", "--name", "again", "--no-check-served", "--track", "--json"),
            **prefect.variables(),
            HF_ENDPOINT=hub.url,
            HF_HUB_OFFLINE="0",
            HF_HOME=str(run.folder / "home"),
        )
    assert answer.status == 0, answer
    tasks = prefect.tasks_of(prefect.run_named("again for local-cpu")["id"], len(STEPS))
    assert [(task["name"], task["run_count"]) for task in tasks][:2] == [("fetch", 2), ("export", 1)]


def test_wrong_login_refused(prefect: PrefectServer, run: CommandLine, tiny: str) -> None:
    """A wrong login is refused with what to type."""
    answer = run("compile", tiny, "--track", "--json", **prefect.variables(login="admin:wrong"))
    check_refusal(answer, 9, ("does not let us in", "prefect config set PREFECT_API_AUTH_STRING"))
    assert "wrong" not in answer.stderr


def _check_refused_by_the_gate(prefect: PrefectServer, run: str, steps: int) -> None:
    tasks = prefect.tasks_of(run, steps)
    assert [task["state"]["type"] for task in tasks] == ["COMPLETED"] * (steps - 1) + ["FAILED"]
    assert {task["run_count"] for task in tasks} == {1}, "an accuracy that was refused is not tried again"
    (report,) = [a for key, a in prefect.artifacts_of(run).items() if key.startswith("validation-")]
    assert any(row["verdict"] != "passed" for row in json.loads(report["data"]))
