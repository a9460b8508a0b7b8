"""What `plansmith compile --track` wants of a Prefect API, said before any work is done."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from plansmith.errors import EnvironmentFault
from plansmith.steps.runner import Listener

from ...support.cli.command import COMMAND, CommandLine, check_refusal, environment
from ...support.prefect.programs import free_port

pytestmark = pytest.mark.slow


@pytest.mark.slow
def test_without_track_prefect_is_not_imported(run: CommandLine, tiny: str) -> None:
    words = ("compile", tiny, "--no-check-served")
    (run.folder / "prefect.py").write_text("open('imported', 'w')\n")
    assert run(*words).status == 0
    assert not list(run.folder.glob("imported"))
    # With a list of all that it imports, once the heavy work is done.
    done = subprocess.run(
        [*COMMAND, *words, "--repository", "another"],
        cwd=run.folder,
        env=environment(PYTHONPROFILEIMPORTTIME="1"),
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "plansmith.steps.compilation" in imported
    assert not {name for name in imported if name.split(".")[0] == "prefect" or name.startswith("plansmith.flows")}


@pytest.mark.slow
def test_no_api_is_refused_with_how_to_start_one(run: CommandLine, tiny: str) -> None:
    answer = run("compile", tiny, "--track", "--json", **_variables(run.folder) | {"PREFECT_API_URL": ""})
    check_refusal(answer, 9, ("no Prefect API is configured", "prefect server start", "prefect config set"))
    assert not list(run.folder.iterdir())


@pytest.mark.slow
def test_an_api_that_is_not_there_is_told_before_any_work(run: CommandLine, tiny: str) -> None:
    answer = run("compile", tiny, "--track", "--json", **_variables(run.folder, free_port()))
    check_refusal(answer, 9, ("cannot be reached", "prefect server start"))
    assert not list(run.folder.iterdir())


@pytest.mark.slow
def test_an_address_that_is_no_api_is_told_with_how_it_ends(run: CommandLine, tiny: str) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        answer = run("compile", tiny, "--track", "--json", **_variables(run.folder, server.server_port))
        server.shutdown()
    check_refusal(answer, 9, ("/api is no Prefect API: it answers with status 404", "/api, such as"))


@pytest.mark.slow
def test_an_api_is_asked_with_the_headers_of_prefects_settings(run: CommandLine, tiny: str) -> None:
    asked: list[str | None] = []

    class Gate(BaseHTTPRequestHandler):
        """Lets in who has a pass, as a proxy before a server does."""

        def do_GET(self) -> None:
            asked.append(self.headers["X-Pass"])
            self.send_error(404 if self.headers["X-Pass"] == "ours" else 403)

        def log_message(self, *words: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Gate) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        variables = _variables(run.folder, server.server_port)
        words = ("compile", tiny, "--track", "--json")
        without = run(*words, **variables)
        answer = run(*words, **variables, PREFECT_CLIENT_CUSTOM_HEADERS='{"X-Pass": "ours"}')
        server.shutdown()
    check_refusal(without, 9, ("does not let us in",))
    check_refusal(answer, 9, ("answers with status 404",))
    assert (asked[0], asked[-1]) == (None, "ours")


@pytest.mark.slow
def test_an_api_that_never_answers_is_given_up(run: CommandLine, tiny: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        answer = run("compile", tiny, "--track", "--json", **_variables(run.folder, port))
    check_refusal(answer, 9, ("cannot be reached", "timed out"))


@pytest.mark.slow
def test_a_prefect_that_is_not_installed_is_named(run: CommandLine, tiny: str) -> None:
    answer = run("compile", tiny, "--track", "--json", PYTHONPATH=_without_prefect(run.folder))
    check_refusal(answer, 9, ("Prefect is not installed", "pip install 'plansmith[flows]'"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), ("give one of SOURCE, --follow and --cancel",)),
        (("hf:org/model", "--follow", "x"), ("give one of SOURCE, --follow and --cancel",)),
        (("--cancel", "x", "--pool", "p"), ("--cancel goes with --json and --quiet alone",)),
        (("--follow", "x", "--precision", "fp16"), ("--follow goes with --json and --quiet alone",)),
        (("wrong.yaml", "--pool", "p"), ("unknown key(s): wrong.yaml:2 'presicion'",)),
        (("what", "--pool", "p"), ("cannot tell what 'what' is",)),
    ],
)
def test_what_is_wrong_with_a_submission_is_told_before_an_api_is_asked(
    words: tuple[str, ...], says: tuple[str, ...], run: CommandLine
) -> None:
    (run.folder / "wrong.yaml").write_text("source: hf:org/model\npresicion: fp16\n")
    answer = run("submit", *words, "--json", **_variables(run.folder) | {"PREFECT_API_URL": ""})
    check_refusal(answer, 2, says)


@pytest.mark.slow
def test_a_submission_needs_an_api_and_prefect(run: CommandLine) -> None:
    words = ("submit", "hf:org/model", "--json")
    without = run(*words, **_variables(run.folder) | {"PREFECT_API_URL": ""})
    check_refusal(without, 9, ("no Prefect API is configured", "prefect server start"))
    assert "--track" not in without.stderr
    check_refusal(run(*words, **_variables(run.folder, free_port())), 9, ("cannot be reached", "prefect server start"))
    wrong = run(*words, **_variables(run.folder) | {"PREFECT_API_URL": "http://[x"})
    check_refusal(wrong, 9, ("Prefect refuses its settings: ", "PREFECT_"))
    check_refusal(run(*words, PYTHONPATH=_without_prefect(run.folder)), 9, ("pip install 'plansmith[flows]'",))


def test_an_api_that_is_well_and_answers_nothing_else_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from plansmith.flows.prefect_api import api

    monkeypatch.setattr(api, "_REQUEST_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/api"
        with (
            temporary_settings({PREFECT_API_URL: url}),
            pytest.raises(EnvironmentFault, match="timed out") as caught,
            api.asking(url, retries=0) as client,
        ):
            client.read_flows(limit=1)
    assert caught.value.transient
    assert "prefect server start" in caught.value.remedy


def test_a_dry_run_is_not_tracked(run: CommandLine, tiny: str) -> None:
    check_refusal(run("compile", tiny, "--track", "--dry-run", "--json"), 2, ("--track", "--dry-run"))


@pytest.mark.slow
def test_an_address_is_shown_without_what_is_secret_in_it(run: CommandLine, tiny: str) -> None:
    variables = _variables(run.folder) | {
        "PREFECT_API_URL": f"http://me:secret@127.0.0.1:{free_port()}/api?token=hidden"
    }
    answer = run("compile", tiny, "--track", "--json", **variables)
    check_refusal(answer, 9, ("the Prefect API at http://127.0.0.1:", "/api cannot be reached"))
    assert not [word for word in ("secret", "hidden") if word in answer.stdout + answer.stderr]


def test_a_run_tells_all_that_a_compile_tells() -> None:
    from plansmith.flows.runs.listening import RunListener

    told = {name for name in vars(Listener) if not name.startswith("_")}
    assert told <= set(vars(RunListener))


def _variables(folder: Path, port: int = 4200) -> dict[str, str]:
    """A client's own home, and an address at which nobody needs to be."""
    return {"PREFECT_HOME": str(folder.parent / "prefect"), "PREFECT_API_URL": f"http://127.0.0.1:{port}/api"}


def _without_prefect(folder: Path) -> str:
    """Where to look for modules, so that there is no Prefect."""
    (folder / "without" / "prefect").mkdir(parents=True)
    (folder / "without" / "prefect" / "__init__.py").write_text("raise ImportError('no prefect here')\n")
    return os.pathsep.join([str(folder / "without"), os.environ.get("PYTHONPATH", "")])
