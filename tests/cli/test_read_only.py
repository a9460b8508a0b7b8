"""A repository that can be read and not written: everything that only reads works, a compile says so at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..support.cli.command import CommandLine, check_refusal
from ..support.cli.read_only import read_only
from .conftest import Compiled

pytestmark = pytest.mark.slow


def test_reading_works_on_read_only(compiled: Compiled, run: CommandLine, tmp_path: Path) -> None:
    """What only reads works on a repository that cannot be written to."""
    with read_only(compiled.folder / "artifacts", tmp_path / "mounted") as artifacts:
        place = ("--repository", artifacts / "repository")
        assert run("show", "tiny", *place).stdout.startswith("tiny: 1 version")
        assert ": passed" in run("validate", "tiny", *place).stdout
        assert "tiny" in run("inspect", artifacts / "repository").stdout
        assert run("history", "--artifacts", artifacts, "--json").document["runs"]
        assert run("gc", "--artifacts", artifacts, "--dry-run").status == 0
        plan = run(*compiled.command, "--artifacts", artifacts, "--dry-run", "--json").document["plan"]
        assert plan["export"] == "cached"
        for command in (("gc",), compiled.command):
            answer = run(*command, "--artifacts", artifacts, "--json")
            check_refusal(answer, 7, (f"cannot write to {artifacts}", "--artifacts"))
