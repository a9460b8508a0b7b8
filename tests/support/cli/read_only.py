"""Folders where nothing can be written."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from plansmith.errors import RepositoryError
from plansmith.system.files import require_writable


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
