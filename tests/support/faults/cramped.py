"""Places with little room: a small file system of their own, or, where none can be mounted, a limit on files."""

from __future__ import annotations

import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cramped:
    """A folder that takes no more than some bytes.

    Args:
        folder: where the room is.
        largest_file: what the process may write into one file while `limited`; None where the file
            system itself is small.
    """

    folder: Path
    largest_file: int | None

    @contextmanager
    def limited(self) -> Iterator[None]:
        """While entered, this process and those that it starts have no more room than that."""
        if self.largest_file is None:
            yield
            return
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.largest_file, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def cramped_folder(folder: Path, size: int) -> Iterator[Cramped]:
    """Make a folder of a size in bytes."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "plansmith-test", str(folder)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True, check=False).returncode:
        yield Cramped(folder, size // 2)
        return
    try:
        yield Cramped(folder, None)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
