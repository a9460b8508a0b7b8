"""A command that is killed leaves nothing half-made to be seen, and the same command, typed again, goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from ..support.cli.command import CommandLine, environment
from ..support.faults.wholeness import cache_problems, repository_problems, staging_problems, store_of
from ..support.models.graphs import save_product
from ..support.stores.releases import MODEL, make_release

ROOT = Path(__file__).parents[2]
WHOLE = "  all as it was published\n"


def kill(terminal: CommandLine, pattern: str, *arguments: str) -> str:
    """Run a command that is killed just before it changes a path of this pattern; what it had said."""
    command = [sys.executable, "-m", "tests.journeys.killed_command", pattern, *arguments]
    done = subprocess.run(
        command,
        cwd=terminal.folder,
        env=environment(PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done
    return done.stderr


def test_killed_compile_goes_on(terminal: CommandLine) -> None:
    """Killed at the cache, and again at the repository, a compile does no finished step twice and publishes once."""
    save_product(terminal.folder)
    command = ("compile", "onnx:net.onnx", "--shapes", "x=1x3x64:2x3x64:4x3x64", "--no-check-served")
    artifacts = terminal.folder / "artifacts"
    repository = artifacts / "repository"
    kill(terminal, "cache/validate/*", *command)
    assert cache_problems(artifacts / "cache") == []
    assert not repository.exists()

    output = kill(terminal, "repository/net", *command)
    lines = {line.split()[0]: line.split()[1] for line in output.splitlines() if not line.startswith("plansmith: ")}
    assert (lines["export"], lines["compile"]) == ("cached", "cached")
    assert lines["validate"] != "cached"
    assert repository_problems(repository) == []
    assert not (repository / "net").exists()

    done = terminal.document(*command)
    assert done["version"] == 1
    assert [step["name"] for step in done["steps"] if not step["cached"]] in ([], ["publish"])
    assert sorted(path.name for path in (repository / "net").iterdir()) == ["1", "config.pbtxt"]
    left = [staging_problems(folder / "staging") for folder in (artifacts / "cache", store_of(repository))]
    assert (repository_problems(repository), left) == ([], [[], []])


def test_killed_folder_publication_goes_on(terminal: CommandLine) -> None:
    """Killed before the entry that makes a release visible, a publication shows nothing, and sends nothing twice."""
    make_release(terminal.folder / "artifacts" / "repository", 1)
    kill(terminal, "store/models/*", "publish", MODEL, "store", "--quiet")
    assert terminal.document("versions", "--store", "store")["models"] == []
    published = terminal.document("publish", MODEL, "store")
    assert (published["version"], published["unchanged"], published["sent_bytes"]) == (1, False, 0)
    assert terminal.text("verify", "--store", "store").endswith(WHOLE)
