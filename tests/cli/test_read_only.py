"""A repository that can be read and not written: everything that only reads works, a compile says so at once."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from plansmith.durable import require_writable
from plansmith.errors import RepositoryError

from .command import CommandLine, check_refusal
from .conftest import Compiled


def test_what_only_reads_works_on_a_repository_that_cannot_be_written(
    compiled: Compiled, run: CommandLine, tmp_path: Path
) -> None:
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


@contextmanager
def read_only(source: Path, folder: Path) -> Iterator[Path]:
    """A copy of a folder where nothing can be written, not even by root where a file system can be mounted."""
    folder.mkdir()
    mounting = shutil.which("mount") is not None
    mount = ["mount", "-t", "tmpfs", "-o", "size=256m", "plansmith-test", str(folder)]
    mounted = mounting and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    copy = shutil.copytree(source, folder / "artifacts", symlinks=True)
    try:
        if mounted:
            subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        else:
            for path in [copy, *(p for p in copy.rglob("*") if p.is_dir() and not p.is_symlink())]:
                path.chmod(0o555)
        assert not _is_writable(copy)
        yield copy
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", folder], check=True)
        else:
            for path in [copy, *(p for p in copy.rglob("*") if p.is_dir() and not p.is_symlink())]:
                path.chmod(0o755)


def _is_writable(folder: Path) -> bool:
    try:
        require_writable(folder)
    except RepositoryError:
        return False
    return True
