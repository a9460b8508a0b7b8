"""What `plansmith compile --track` wants of a Prefect API, said before any work is done."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from plansmith.stages import Listener

from ..cli.command import COMMAND, CommandLine, check_refusal, environment
from .prefect_server import free_port


def test_without_track_prefect_is_not_imported(run: CommandLine, bert: Path) -> None:
    words = ("compile", f"hf:{bert}", "--no-check-served")
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
    assert "plansmith.steps" in imported
    assert not {name for name in imported if name.split(".")[0] == "prefect" or name.startswith("plansmith.flows")}


def test_no_api_is_refused_with_how_to_start_one(run: CommandLine, bert: Path) -> None:
    answer = run("compile", f"hf:{bert}", "--track", "--json", **_variables(run.folder) | {"PREFECT_API_URL": ""})
    check_refusal(answer, 9, ("no Prefect API is configured", "prefect server start", "prefect config set"))
    assert not list(run.folder.iterdir())


def test_an_api_that_is_not_there_is_told_before_any_work(run: CommandLine, bert: Path) -> None:
    answer = run("compile", f"hf:{bert}", "--track", "--json", **_variables(run.folder, free_port()))
    check_refusal(answer, 9, ("cannot be reached", "prefect server start"))
    assert not list(run.folder.iterdir())


def test_an_address_that_is_no_api_is_told_with_how_it_ends(run: CommandLine, bert: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        answer = run("compile", f"hf:{bert}", "--track", "--json", **_variables(run.folder, server.server_port))
        server.shutdown()
    check_refusal(answer, 9, ("/api is no Prefect API: it answers with status 404", "/api, such as"))


def test_an_api_that_never_answers_is_given_up(run: CommandLine, bert: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        answer = run("compile", f"hf:{bert}", "--track", "--json", **_variables(run.folder, port))
    check_refusal(answer, 9, ("cannot be reached", "timed out"))


def test_a_prefect_that_is_not_installed_is_named(run: CommandLine, bert: Path) -> None:
    (run.folder / "without" / "prefect").mkdir(parents=True)
    (run.folder / "without" / "prefect" / "__init__.py").write_text("raise ImportError('no prefect here')\n")
    path = os.pathsep.join([str(run.folder / "without"), os.environ.get("PYTHONPATH", "")])
    answer = run("compile", f"hf:{bert}", "--track", "--json", PYTHONPATH=path)
    check_refusal(answer, 9, ("Prefect is not installed", "pip install 'plansmith[flows]'"))


def test_a_dry_run_is_not_tracked(run: CommandLine, bert: Path) -> None:
    check_refusal(run("compile", f"hf:{bert}", "--track", "--dry-run", "--json"), 2, ("--track", "--dry-run"))


def test_an_address_is_shown_without_what_is_secret_in_it(run: CommandLine, bert: Path) -> None:
    variables = _variables(run.folder) | {
        "PREFECT_API_URL": f"http://me:secret@127.0.0.1:{free_port()}/api?token=hidden"
    }
    answer = run("compile", f"hf:{bert}", "--track", "--json", **variables)
    check_refusal(answer, 9, ("the Prefect API at http://127.0.0.1:", "/api cannot be reached"))
    assert not [word for word in ("secret", "hidden") if word in answer.stdout + answer.stderr]


def test_a_run_tells_all_that_a_compile_tells() -> None:
    from plansmith.flows.compile_model import RunListener

    told = {name for name in vars(Listener) if not name.startswith("_")}
    assert told <= set(vars(RunListener))


def _variables(folder: Path, port: int = 4200) -> dict[str, str]:
    """A client's own home, and an address at which nobody needs to be."""
    return {"PREFECT_HOME": str(folder.parent / "prefect"), "PREFECT_API_URL": f"http://127.0.0.1:{port}/api"}
