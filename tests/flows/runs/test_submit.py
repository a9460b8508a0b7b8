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


def test_models_are_compiled_by_a_worker_and_followed_to_their_ends(
    server: PrefectServer, run: CommandLine, tiny: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
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
    said = [line for line in shown if line in logged]
    assert [line.partition(":")[0] for line in said if ": done in" in line or ": cached" in line] == [
        *("fetch", "export", "lower", "compile", "validate", "package", "publish")
    ]
    # Those of the worker and those of the run reach the server one after the other, and not always in their order.
    assert sorted(said) == sorted(line for line in logged if line in set(shown))
    tags = server.ask("flow_runs/filter", flow_runs={"id": {"any_": [right["id"]]}})[0]["tags"]
    assert {"plansmith", "model:right", "target:local-cpu"} <= set(tags)


def test_a_run_is_submitted_to_a_pool_without_workers_and_cancelled_by_its_name(
    server: PrefectServer, run: CommandLine
) -> None:
    submitted = _submit(server, run, "patient")
    assert "no worker polls the work pool idle" in submitted.stderr
    assert "prefect worker start --pool idle" in submitted.stderr
    (told,) = submitted.document["runs"]
    found = server.run_named("patient for local-cpu")
    assert (found["id"], found["state"]["type"]) == (told["id"], "SCHEDULED")
    # A folder that is not here: the worker may have it.
    assert found["parameters"] == {
        "spec": {"source": "hf:/srv/models/bert", "name": "patient", "artifacts": str(run.folder / "artifacts")},
        "folder": str(run.folder),
    }
    cancelled = run("submit", "--cancel", "patient", **server.variables())
    assert (cancelled.status, cancelled.stdout) == (0, "patient for local-cpu cancelled\n")
    assert server.run_named("patient for local-cpu")["state"]["type"] == "CANCELLED"
    again = run("submit", "--cancel", told["id"], **server.variables())
    assert (again.status, again.stdout) == (0, "patient for local-cpu had ended before: cancelled\n")


def test_a_dry_run_sends_nothing_and_says_what_it_would_send(server: PrefectServer, run: CommandLine) -> None:
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
def test_a_pool_that_cannot_be_used_is_refused_with_those_that_can(
    pool: str, says: tuple[str, ...], server: PrefectServer, run: CommandLine
) -> None:
    answer = run("submit", "hf:/srv/models/bert", "--pool", pool, "--json", **server.variables())
    check_refusal(answer, 2, says)


def test_a_run_that_nobody_knows_is_refused(server: PrefectServer, run: CommandLine) -> None:
    for what, called in {"--follow": "nobody", "--cancel": "6f1d2c3e-4b5a-4978-8796-a5b4c3d2e1f0"}.items():
        check_refusal(run("submit", what, called, "--json", **server.variables()), 2, (f"no flow run {called}",))


def test_a_login_or_a_token_that_the_server_wants_is_named(server: PrefectServer, run: CommandLine) -> None:
    words = ("submit", "hf:/srv/models/bert", "--pool", IDLE, "--json")
    wrong = run(*words, **server.variables(login="admin:wrong"))
    check_refusal(wrong, 9, ("does not let us in", "prefect config set PREFECT_API_AUTH_STRING"))
    without = run(*words, **server.variables(), PREFECT_CLIENT_CSRF_SUPPORT_ENABLED="false")
    check_refusal(without, 9, ("wants a CSRF token", "prefect config unset PREFECT_CLIENT_CSRF_SUPPORT_ENABLED"))


def test_a_log_is_followed_over_a_restart_of_the_server_each_line_once_and_in_order(
    server: PrefectServer, run: CommandLine
) -> None:
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


def test_runs_that_end_in_other_ways_are_told_and_give_the_exit_code(server: PrefectServer, run: CommandLine) -> None:
    names = ("cancelled", "crashed", "failed")
    runs = {name: _submitted(server, name) for name in names}
    for name, found in runs.items():
        _set(server, found, "PENDING")
        _set(server, found, "RUNNING")
        _set(server, found, name.upper(), message="the worker was lost" if name == "crashed" else "")
    words = [word for found in runs.values() for word in ("--follow", found)]
    answer = run("submit", *words, "--json", **server.variables())
    assert [one["state"] for one in answer.document["runs"]] == ["CANCELLED", "CRASHED", "FAILED"]
    assert [one["exit_code"] for one in answer.document["runs"]] == [130, 9, 9]
    assert answer.status == 130
    assert "crashed for local-cpu: its run crashed: the worker was lost\nNext: submit it again" in answer.stderr


def test_an_interrupt_leaves_the_run_and_says_how_to_go_on(server: PrefectServer, run: CommandLine) -> None:
    followed = _submitted(server, "left")
    with _started(server, run, "--follow", followed) as process:
        _wait_for("waiting", process, run)
        process.send_signal(signal.SIGINT)
        answer = _end_of(process, run)
    assert answer.status == 130
    says = ("goes on", f"plansmith submit --follow {followed}", f"plansmith submit --cancel {followed}")
    assert not [words for words in says if words not in answer.stderr], answer
    assert "Traceback" not in answer.stderr
    assert answer.document["runs"][0]["id"] == followed
    assert server.run_named("left for local-cpu")["state"]["type"] == "SCHEDULED"
    assert run("submit", "--cancel", followed, "--json", **server.variables()).document["runs"][0]["exit_code"] == 130


def _submit(server: PrefectServer, run: CommandLine, name: str) -> Any:
    words = ("submit", "hf:/srv/models/bert", "--name", name, "--pool", IDLE, "--no-wait", "--json")
    answer = run(*words, **server.variables())
    assert answer.status == 0, answer
    return answer


def _submitted(server: PrefectServer, name: str) -> str:
    """A run as `_submit` asks for one, through the API."""
    (deployment,) = server.ask("deployments/filter", deployments={"name": {"any_": [IDLE]}})
    wanted = {"parameters": {"spec": {"source": "hf:x"}}, "state": {"type": "SCHEDULED"}}
    made = server.ask(f"deployments/{deployment['id']}/create_flow_run", name=f"{name} for local-cpu", **wanted)
    return str(made["id"])


@contextmanager
def _started(server: PrefectServer, run: CommandLine, *words: str) -> Iterator[subprocess.Popen[str]]:
    """`plansmith submit`, going on; it ends with the block."""
    command, variables = [*COMMAND, "submit", *words, "--json"], environment(**server.variables())
    where: dict[str, Any] = {"cwd": run.folder, "env": variables, "stdout": subprocess.PIPE, "text": True}
    with (run.folder / "said").open("w") as said, subprocess.Popen(command, stderr=said, **where) as process:
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
    while words not in (said := (run.folder / "said").read_text()):
        assert process.poll() is None, said
        assert time.monotonic() < deadline, said
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
