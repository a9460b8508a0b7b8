"""What was compiled here, whatever came of it, and what there is of a model."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from plansmith.steps.provenance.history import HISTORY

from ...support.cli.command import COMMAND, CommandLine, check_refusal, environment, listing
from ..conftest import Compiled

pytestmark = pytest.mark.slow


def test_run_noted_with_verdict(compiled: Compiled) -> None:
    """A run is noted with what it was made from and its verdict."""
    answer = CommandLine(compiled.folder)("history", "--json")
    assert (answer.status, answer.stderr) == (0, "")
    run = answer.document["runs"][-1]
    manifest = json.loads((compiled.release / "manifest.json").read_text())
    assert (run["model"], run["outcome"], run["version"], run["verdict"]) == ("tiny", "published", 1, "passed")
    assert (run["source"], run["source_digest"]) == (manifest["spec"]["source"], manifest["source"]["digest"])
    assert (run["engine"], run["precision"], run["target"]) == ("onnxruntime", "fp32", "local-cpu")
    assert run["largest_error"] == max(row["max_relative"] for row in manifest["validation"]["comparisons"])
    assert run["steps"] == compiled.document["steps"]
    assert Path(run["log"]).is_file()


def test_last_run_comes_first(finished: Compiled, run: CommandLine) -> None:
    """Unchanged and failed runs are noted and the last one comes first."""
    assert run(*finished.command).status == 0
    assert run("compile", "hf:nobody/nothing", "--name", "other", "--no-check-served").status == 9
    head, failed, why, unchanged, published = run("history").stdout.splitlines()
    assert head.startswith("WHEN (UTC)")
    assert "other  failed in fetch" in failed
    assert failed.endswith("hf:nobody/nothing")
    assert why.startswith("    EnvironmentFault (exit code 9): ")
    assert "unchanged 1" in unchanged
    assert "published 1" in published
    assert [row["model"] for row in run("history", "tiny", "--json").document["runs"]] == ["tiny", "tiny"]
    assert [row["model"] for row in run("history", "--failed", "--json").document["runs"]] == ["other"]
    assert [row["model"] for row in run("history", "--limit", "1", "--json").document["runs"]] == ["other"]


def test_dry_run_not_noted(finished: Compiled, run: CommandLine) -> None:
    """A dry run is not noted."""
    before = listing(finished.folder, folder_times=True)
    assert run(*finished.command, "--dry-run").status == 0
    assert listing(finished.folder, folder_times=True) == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_run_noted_with_step(
    number: signal.Signals, code: int, finished: Compiled, run: CommandLine
) -> None:
    """An interrupted run is noted with the step that it was in."""
    shutil.rmtree(finished.folder / "artifacts" / "cache")
    command = [*COMMAND, *finished.command]
    logs = finished.folder / "artifacts" / "logs"
    before = set(logs.iterdir())
    with subprocess.Popen(
        command, cwd=finished.folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        while set(logs.iterdir()) == before:
            assert process.poll() is None
        os.kill(process.pid, number)
        assert process.wait() == code
    last = run("history", "--json").document["runs"][0]
    assert (last["outcome"], last["failure"]["step"], last["failure"]["exit_code"]) == ("interrupted", "export", code)
    assert "interrupted in export" in run("history").stdout.splitlines()[1]


def test_unwritable_history_fails_nothing(finished: Compiled, run: CommandLine) -> None:
    """A history that cannot be written is one notice and fails nothing."""
    history = finished.folder / "artifacts" / HISTORY
    shutil.rmtree(history)
    history.write_text("in the way")
    answer = run(*finished.command, "--json", "--quiet")
    assert (answer.status, answer.document["unchanged"]) == (0, True)
    *_, notice = answer.stderr.splitlines()
    assert notice.startswith("plansmith: this run is missing in the history: ")
    assert "no such run" in run("history").stdout


def test_show_names_versions(finished: Compiled, run: CommandLine) -> None:
    """Show names the versions, the one that serves, and the newest in full."""
    answer = run("show", "tiny")
    assert (answer.status, answer.stderr) == (0, "")
    lines = answer.stdout.splitlines()
    assert lines[0] == "tiny: 1 version"
    assert lines[2].split()[0] == "1"
    assert lines[2].endswith("passed  serves")
    assert "model: tiny, version 1" in lines
    document = run("show", "tiny@1", "--json").document
    assert (document["model"], document["serves"]) == ("tiny", 1)
    assert document["release"] == run("inspect", document["release"]["release"], "--json").document
    assert finished.document["version"] == 1


@pytest.mark.parametrize(
    ("words", "says"), [("other", ("has no model 'other'", "choose from: tiny")), ("tiny@9", ("its versions: 1",))]
)
def test_show_refuses_missing_model(words: str, says: tuple[str, ...], compiled: Compiled) -> None:
    """Show refuses what is not there and names what is."""
    check_refusal(CommandLine(compiled.folder)("show", words, "--json"), 7, says)
