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
def test_untracked_compile_skips_prefect(run: CommandLine, tiny: str) -> None:
    """Without --track, Prefect is not imported."""
    command = ("compile", tiny, "--no-check-served")
    (run.folder / "prefect.py").write_text("open('imported', 'w')\n")
    assert run(*command).status == 0
    assert not list(run.folder.glob("imported"))
    # With a list of all that it imports, once the heavy work is done.
    done = subprocess.run(
        [*COMMAND, *command, "--repository", "another"],
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
def test_missing_api_names_start(run: CommandLine, tiny: str) -> None:
    """Having no API is refused with how to start one."""
    answer = run("compile", tiny, "--track", "--json", **_variables(run.folder) | {"PREFECT_API_URL": ""})
    check_refusal(answer, 9, ("no Prefect API is configured", "prefect server start", "prefect config set"))
    assert not list(run.folder.iterdir())


@pytest.mark.slow
def test_absent_api_told_early(run: CommandLine, tiny: str) -> None:
    """An API that is not there is told before any work."""
    answer = run("compile", tiny, "--track", "--json", **_variables(run.folder, free_port()))
    check_refusal(answer, 9, ("cannot be reached", "prefect server start"))
    assert not list(run.folder.iterdir())


@pytest.mark.slow
def test_non_api_address_told_with_end(run: CommandLine, tiny: str) -> None:
    """An address that is no API is told with how it ends."""
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        answer = run("compile", tiny, "--track", "--json", **_variables(run.folder, server.server_port))
        server.shutdown()
    check_refusal(answer, 9, ("/api is no Prefect API: it answers with status 404", "/api, such as"))


@pytest.mark.slow
def test_api_asked_with_settings_headers(run: CommandLine, tiny: str) -> None:
    """An API is asked with the headers of Prefect's settings."""
    values: list[str | None] = []

    class Gate(BaseHTTPRequestHandler):
        """Lets in who has a pass, as a proxy before a server does."""

        def do_GET(self) -> None:
            values.append(self.headers["X-Pass"])
            self.send_error(404 if self.headers["X-Pass"] == "ours" else 403)

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Gate) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        variables = _variables(run.folder, server.server_port)
        arguments = ("compile", tiny, "--track", "--json")
        without = run(*arguments, **variables)
        answer = run(*arguments, **variables, PREFECT_CLIENT_CUSTOM_HEADERS='{"X-Pass": "ours"}')
        server.shutdown()
    check_refusal(without, 9, ("does not let us in",))
    check_refusal(answer, 9, ("answers with status 404",))
    assert (values[0], values[-1]) == (None, "ours")


@pytest.mark.slow
def test_silent_api_given_up(run: CommandLine, tiny: str) -> None:
    """An API that never answers is given up."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        answer = run("compile", tiny, "--track", "--json", **_variables(run.folder, port))
    check_refusal(answer, 9, ("cannot be reached", "timed out"))


@pytest.mark.slow
def test_missing_prefect_is_named(run: CommandLine, tiny: str) -> None:
    """A Prefect that is not installed is named."""
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
        (("wrong.yaml", "--pool", "p"), ("unknown key: wrong.yaml:2 'presicion'",)),
        (("what", "--pool", "p"), ("cannot tell what 'what' is",)),
    ],
)
def test_submission_mistake_precedes_api(words: tuple[str, ...], says: tuple[str, ...], run: CommandLine) -> None:
    """What is wrong with a submission is told before an API is asked."""
    (run.folder / "wrong.yaml").write_text("source: hf:org/model\npresicion: fp16\n")
    answer = run("submit", *words, "--json", **_variables(run.folder) | {"PREFECT_API_URL": ""})
    check_refusal(answer, 2, says)


@pytest.mark.slow
def test_submission_needs_api_and_prefect(run: CommandLine) -> None:
    """A submission needs an API and Prefect."""
    command = ("submit", "hf:org/model", "--json")
    without = run(*command, **_variables(run.folder) | {"PREFECT_API_URL": ""})
    check_refusal(without, 9, ("no Prefect API is configured", "prefect server start"))
    assert "--track" not in without.stderr
    check_refusal(
        run(*command, **_variables(run.folder, free_port())), 9, ("cannot be reached", "prefect server start")
    )
    wrong = run(*command, **_variables(run.folder) | {"PREFECT_API_URL": "http://[x"})
    check_refusal(wrong, 9, ("Prefect refuses its settings: ", "PREFECT_"))
    check_refusal(run(*command, PYTHONPATH=_without_prefect(run.folder)), 9, ("pip install 'plansmith[flows]'",))


def test_healthy_but_useless_api_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """An API that is well but answers nothing else is given up."""
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


def test_dry_run_not_tracked(run: CommandLine, tiny: str) -> None:
    """A dry run is not tracked."""
    check_refusal(run("compile", tiny, "--track", "--dry-run", "--json"), 2, ("--track", "--dry-run"))


@pytest.mark.slow
def test_shown_address_hides_secrets(run: CommandLine, tiny: str) -> None:
    """An address is shown without what is secret in it."""
    variables = _variables(run.folder) | {
        "PREFECT_API_URL": f"http://me:secret@127.0.0.1:{free_port()}/api?token=hidden"
    }
    answer = run("compile", tiny, "--track", "--json", **variables)
    check_refusal(answer, 9, ("the Prefect API at http://127.0.0.1:", "/api cannot be reached"))
    assert not [word for word in ("secret", "hidden") if word in answer.stdout + answer.stderr]


def test_run_tells_compile_facts() -> None:
    """A run tells all that a compile tells."""
    from plansmith.flows.runs.listening import RunListener

    methods = {name for name in vars(Listener) if not name.startswith("_")}
    assert methods <= set(vars(RunListener))


def _variables(folder: Path, port: int = 4200) -> dict[str, str]:
    """A client's own home, and an address at which nobody needs to be."""
    return {"PREFECT_HOME": str(folder.parent / "prefect"), "PREFECT_API_URL": f"http://127.0.0.1:{port}/api"}


def _without_prefect(folder: Path) -> str:
    """Where to look for modules, so that there is no Prefect."""
    (folder / "without" / "prefect").mkdir(parents=True)
    (folder / "without" / "prefect" / "__init__.py").write_text("raise ImportError('no prefect here')\n")
    return os.pathsep.join([str(folder / "without"), os.environ.get("PYTHONPATH", "")])
