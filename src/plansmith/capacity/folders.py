"""The folders of copies on a disk.

Files are copied and not linked: what a backend maps into memory would be there once for all copies otherwise.
"""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from plansmith.copies.release import ModelFolder
from plansmith.errors import EnvironmentFault
from plansmith.formatting import format_bytes

RESERVED_DISK_BYTES = 2**30
"""Of a disk, left to others."""


class DiskFull(Exception):
    """The files of one more copy do not fit; the text says how much is left."""


class CopyFolders:
    """The folders of copies on a disk of this machine.

    Args:
        root: holds them.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._folders: dict[int, list[Path]] = {}

    def write(self, number: int, models: tuple[ModelFolder, ...]) -> None:
        """Write the folders of a copy; nothing where they are there already.

        Raises:
            DiskFull: they do not fit.
            EnvironmentFault: a folder of that name is there already, or cannot be written.
        """
        if number in self._folders:
            return
        size = sum(model.size for model in models)
        free = shutil.disk_usage(self.root).free
        if free - size < RESERVED_DISK_BYTES:
            raise DiskFull(
                f"{format_bytes(free)} are left in {self.root}, a copy takes {format_bytes(size)}, and"
                f" {format_bytes(RESERVED_DISK_BYTES)} are reserved"
            )
        self._folders[number] = []
        try:
            for model in models:
                folder = self.root / model.name
                folder.mkdir()
                self._folders[number].append(folder)
                model.write(folder)
        except OSError as error:
            self.remove(number)
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise DiskFull(f"{self.root}: {error.strerror}") from error
            raise EnvironmentFault(
                f"copies cannot be written to {self.root}: {error.strerror}",
                remedy="see that the folder can be written, and that nothing of that name is in it",
            ) from error

    def remove(self, number: int) -> None:
        """Remove those of a copy; nothing where there are none."""
        for folder in self._folders.pop(number, []):
            shutil.rmtree(folder, ignore_errors=True)
