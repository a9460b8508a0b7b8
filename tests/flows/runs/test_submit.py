"""`plansmith submit`: a run on a worker of Prefect, followed to its end; the server wants a login and CSRF tokens."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ...support.cli.command import COMMAND, Answer, CommandLine, check_refusal, environment
from ...support.prefect import prefect_server, workers
from ...support.prefect.prefect_server import PrefectServer

pytestmark = pytest.mark.services

FLOW = "plansmith.flows.compile_model.compile_model"
IDLE = "idle"
"""A work pool that no worker polls: what its runs do, the tests say."""

DEADLINE_SECONDS = 300


@pytest.fixture(scope="module")
def server(prefect_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    """A server of this module's own, which may be killed, with a deployment on an idle pool."""
    with prefect_server.running(tmp_path_factory.mktemp("server"), prefect_database, csrf=True) as started:
        workers.make_pool(started, IDLE)
        workers.make_pool(started, "bare")
        workers.deploy(started, IDLE, FLOW)
        yield started


def test_submitted_models_followed_to_end(
    server: PrefectServer, run: CommandLine, tiny: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Models are compiled by a worker and followed to their ends."""
    (run.folder / "several.yaml").write_text(
        f"defaults: {{check_served: false, source: '{tiny}', artifacts: made}}\n"
        "models:\n- {name: wrong, shapes: {nothing: 1x8:2x8:4x8}}\n- {name: right}\n"
    )
    with workers.running(server, "busy", tmp_path_factory.mktemp("workers"), count=1):
        workers.deploy(server, "busy", FLOW)
        with _started(server, run, "several.yaml", "--pool", "busy") as process:
            answer = _end_of(process, run)
    assert answer.status == 2, answer
    wrong, right = answer.document["runs"]
    assert (wrong["state"], wrong["error"]["error"], wrong["exit_code"]) == ("FAILED", "UsageError", 2)
    assert wrong["error"]["remedy"]
    assert f"plansmith: wrong · {wrong['error']['step']}: " in answer.stderr
    assert (right["state"], right["outcome"]["ended"], right["outcome"]["version"]) == ("COMPLETED", "published", 1)
    assert (run.folder / "made" / "repository" / "right").is_dir()
    assert f"right for local-cpu ({right['address']}), submitted to busy" in answer.stderr
    prefix = "  right for local-cpu  "
    shown = [line.removeprefix(prefix) for line in answer.stderr.splitlines() if line.startswith(prefix)]
    logged = [line for text in server.logs_of(right["id"]) for line in text.splitlines()]
    lines = [line for line in shown if line in logged]
    assert [line.partition(":")[0] for line in lines if ": done in" in line or ": cached" in line] == [
        *("fetch", "export", "lower", "compile", "validate", "package", "publish")
    ]
    # Those of the worker and those of the run reach the server one after the other, and not always in their order.
    assert sorted(lines) == sorted(line for line in logged if line in set(shown))
    tags = server.ask("flow_runs/filter", flow_runs={"id": {"any_": [right["id"]]}})[0]["tags"]
    assert {"plansmith", "model:right", "target:local-cpu"} <= set(tags)


def test_submitted_run_can_be_cancelled(server: PrefectServer, run: CommandLine) -> None:
    """A run is submitted to a pool without workers and cancelled by its name."""
    submitted = _submit(server, run, "patient")
    assert "no worker polls the work pool idle" in submitted.stderr
    assert "prefect worker start --pool idle" in submitted.stderr
    (submission,) = submitted.document["runs"]
    flow_run = server.run_named("patient for local-cpu")
    assert (flow_run["id"], flow_run["state"]["type"]) == (submission["id"], "SCHEDULED")
    # A folder that is not here: the worker may have it.
    assert flow_run["parameters"] == {
        "spec": {"source": "hf:/srv/models/bert", "name": "patient", "artifacts": str(run.folder / "artifacts")},
        "folder": str(run.folder),
    }
    cancelled = run("submit", "--cancel", "patient", **server.variables())
    assert (cancelled.status, cancelled.stdout) == (0, "patient for local-cpu cancelled\n")
    assert server.run_named("patient for local-cpu")["state"]["type"] == "CANCELLED"
    again = run("submit", "--cancel", submission["id"], **server.variables())
    assert (again.status, again.stdout) == (0, "patient for local-cpu had ended before: cancelled\n")


def test_dry_run_sends_nothing(server: PrefectServer, run: CommandLine) -> None:
    """A dry run sends nothing and says what it would send."""
    answer = run(
        *("submit", "hf:/srv/models/bert", "--name", "dry", "--pool", IDLE, "--dry-run", "--json"), **server.variables()
    )
    assert answer.status == 0, answer
    assert answer.document["deployment"] == "compile-model/idle"
    assert answer.document["runs"][0]["parameters"]["spec"]["source"] == "hf:/srv/models/bert"
    assert not server.ask("flow_runs/filter", flow_runs={"name": {"any_": ["dry for local-cpu"]}})


@pytest.mark.parametrize(
    ("pool", "says"),
    [
        ("none", ("there is no work pool none", "compile-model is deployed to", "idle", "plansmith flows deploy")),
        ("bare", ("not deployed to the work pool bare", "idle", "plansmith flows deploy")),
    ],
)
def test_unusable_pool_refused(pool: str, says: tuple[str, ...], server: PrefectServer, run: CommandLine) -> None:
    """A pool that cannot be used is refused with those that can."""
    answer = run("submit", "hf:/srv/models/bert", "--pool", pool, "--json", **server.variables())
    check_refusal(answer, 2, says)


def test_unknown_run_refused(server: PrefectServer, run: CommandLine) -> None:
    """A run that nobody knows is refused."""
    for option, called in {"--follow": "nobody", "--cancel": "6f1d2c3e-4b5a-4978-8796-a5b4c3d2e1f0"}.items():
        check_refusal(run("submit", option, called, "--json", **server.variables()), 2, (f"no flow run {called}",))


def test_missing_login_is_named(server: PrefectServer, run: CommandLine) -> None:
    """A login or a token that the server wants is named."""
    command = ("submit", "hf:/srv/models/bert", "--pool", IDLE, "--json")
    wrong = run(*command, **server.variables(login="admin:wrong"))
    check_refusal(wrong, 9, ("does not let us in", "prefect config set PREFECT_API_AUTH_STRING"))
    without = run(*command, **server.variables(), PREFECT_CLIENT_CSRF_SUPPORT_ENABLED="false")
    check_refusal(without, 9, ("wants a CSRF token", "prefect config unset PREFECT_CLIENT_CSRF_SUPPORT_ENABLED"))


def test_log_followed_over_server_restart(server: PrefectServer, run: CommandLine) -> None:
    """A log is followed across a restart of the server, each line once and in order."""
    followed = _submitted(server, "long")
    with _started(server, run, "--follow", followed) as process:
        _set(server, followed, "PENDING")
        _set(server, followed, "RUNNING")
        # More lines than the server gives at once, several of them at one moment.
        _log(server, followed, [(f"line {number:03}", number // 4 * 0.001) for number in range(450)])
        _wait_for("line 449", process, run)
        server.kill()
        _wait_for("asking again", process, run)
        server.start()
        _wait_for("there again", process, run)
        _log(server, followed, [("after the restart", 1.0)])
        _set(server, followed, "COMPLETED")
        answer = _end_of(process, run)
    lines = [line.strip() for line in answer.stderr.splitlines()]
    assert [line for line in lines if line.startswith("line ")] == [f"line {number:03}" for number in range(450)]
    assert answer.status == 0, answer
    assert answer.document["runs"][0]["state"] == "COMPLETED"


def test_other_endings_give_exit_code(server: PrefectServer, run: CommandLine) -> None:
    """Runs that end in other ways are told and give the exit code."""
    names = ("cancelled", "crashed", "failed")
    runs = {name: _submitted(server, name) for name in names}
    for name, run_id in runs.items():
        _set(server, run_id, "PENDING")
        _set(server, run_id, "RUNNING")
        _set(server, run_id, name.upper(), message="the worker was lost" if name == "crashed" else "")
    arguments = [word for run_id in runs.values() for word in ("--follow", run_id)]
    answer = run("submit", *arguments, "--json", **server.variables())
    assert [row["state"] for row in answer.document["runs"]] == ["CANCELLED", "CRASHED", "FAILED"]
    assert [row["exit_code"] for row in answer.document["runs"]] == [130, 9, 9]
    assert answer.status == 130
    assert "crashed for local-cpu: its run crashed: the worker was lost\nNext: submit it again" in answer.stderr


def test_interrupt_leaves_the_run(server: PrefectServer, run: CommandLine) -> None:
    """An interrupt leaves the run as it is and says how to go on."""
    followed = _submitted(server, "left")
    with _started(server, run, "--follow", followed) as process:
        _wait_for("waiting", process, run)
        process.send_signal(signal.SIGINT)
        answer = _end_of(process, run)
    assert answer.status == 130
    says = ("goes on", f"plansmith submit --follow {followed}", f"plansmith submit --cancel {followed}")
    assert not [fragment for fragment in says if fragment not in answer.stderr], answer
    assert "Traceback" not in answer.stderr
    assert answer.document["runs"][0]["id"] == followed
    assert server.run_named("left for local-cpu")["state"]["type"] == "SCHEDULED"
    assert run("submit", "--cancel", followed, "--json", **server.variables()).document["runs"][0]["exit_code"] == 130


def _submit(server: PrefectServer, run: CommandLine, name: str) -> Any:
    command = ("submit", "hf:/srv/models/bert", "--name", name, "--pool", IDLE, "--no-wait", "--json")
    answer = run(*command, **server.variables())
    assert answer.status == 0, answer
    return answer


def _submitted(server: PrefectServer, name: str) -> str:
    """A run as `_submit` asks for one, through the API."""
    (deployment,) = server.ask("deployments/filter", deployments={"name": {"any_": [IDLE]}})
    body = {"parameters": {"spec": {"source": "hf:x"}}, "state": {"type": "SCHEDULED"}}
    flow_run = server.ask(f"deployments/{deployment['id']}/create_flow_run", name=f"{name} for local-cpu", **body)
    return str(flow_run["id"])


@contextmanager
def _started(server: PrefectServer, run: CommandLine, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`plansmith submit`, going on; it ends with the block."""
    command, variables = [*COMMAND, "submit", *arguments, "--json"], environment(**server.variables())
    where: dict[str, Any] = {"cwd": run.folder, "env": variables, "stdout": subprocess.PIPE, "text": True}
    with (run.folder / "said").open("w") as log, subprocess.Popen(command, stderr=log, **where) as process:
        try:
            yield process
        finally:
            process.kill()


def _end_of(process: subprocess.Popen[str], run: CommandLine) -> Answer:
    stdout, _ = process.communicate(timeout=DEADLINE_SECONDS)
    return Answer(process.returncode, stdout, (run.folder / "said").read_text())


def _wait_for(words: str, process: subprocess.Popen[str], run: CommandLine) -> None:
    """Wait until a process has said something."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while words not in (text := (run.folder / "said").read_text()):
        assert process.poll() is None, text
        assert time.monotonic() < deadline, text
        time.sleep(0.1)


def _set(server: PrefectServer, run: str, state: str, message: str = "") -> None:
    """What a worker or the run itself tells the server."""
    server.ask(f"flow_runs/{run}/set_state", state={"type": state, "message": message}, force=True)


def _log(server: PrefectServer, run: str, lines: list[tuple[str, float]]) -> None:
    began = datetime.now(UTC)
    server.ask(
        "logs/",
        [
            {
                "name": "prefect.flow_runs",
                "level": 20,
                "message": text,
                "timestamp": (began + timedelta(seconds=seconds)).isoformat(),
                "flow_run_id": run,
            }
            for text, seconds in lines
        ],
    )
