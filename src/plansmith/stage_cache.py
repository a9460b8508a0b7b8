"""Content-addressed outputs of finished steps.

`<root>/<step>/<key>/` holds a step's files and `entry.json`: its record and the digest of every file.
The key covers everything that the step's result depends on, so an entry is never updated, only made,
verified and removed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.digest import Digester, digest_of, digest_of_files
from plansmith.durable import fsync_tree, locked, move_into_place, staging_folder
from plansmith.types import FileEntry

ENTRY_FILE = "entry.json"


@dataclass(frozen=True)
class Entry:
    """A finished step: its folder, its record as JSON fields, and the digest of both."""

    folder: Path
    record: dict[str, Any]
    files: tuple[FileEntry, ...]

    @property
    def digest(self) -> str:
        """Identifies the output, whatever key led to it."""
        return digest_of([self.record, digest_of_files(self.files)])


class StageCache:
    """The cache below one artifacts folder; safe to share between processes.

    Args:
        root: the folder of the cache; made when first needed.
        digester: hashes the files of entries.
        notice: told in one line when a damaged entry was thrown away.
    """

    def __init__(self, root: Path, digester: Digester, notice: Callable[[str], None] = lambda _: None) -> None:
        self._root = root
        self._digester = digester
        self._notice = notice

    def lookup(self, step: str, key: str) -> Entry | None:
        """The entry of a key, or None; a damaged one is removed, told to `notice` and not returned."""
        folder = self._root / step / key
        try:
            fields = json.loads((folder / ENTRY_FILE).read_text())
            files = tuple(FileEntry(**f) for f in fields["files"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            self._discard(folder, ENTRY_FILE)
            return None
        for file in files:
            path = folder / file.path
            if not path.is_file() or path.stat().st_size != file.bytes or self._digester.file(path) != file.sha256:
                self._discard(folder, file.path)
                return None
        return Entry(folder, fields["record"], files)

    @contextmanager
    def exclusive(self, step: str, key: str) -> Iterator[None]:
        """While held, no other process builds this key: it waits, then finds the entry."""
        with locked(self._root / "locks" / f"{step}-{key}"):
            yield

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """A folder to build an entry in; hand it to `publish` before leaving."""
        with staging_folder(self._root / "staging") as folder:
            yield folder

    def publish(self, step: str, key: str, staged: Path, record: dict[str, Any]) -> Entry:
        """Move a staged folder into the cache as the entry of a key, replacing one that stands there."""
        files = self._digester.entries(staged)
        document = {"record": record, "files": [f.model_dump() for f in files]}
        (staged / ENTRY_FILE).write_text(json.dumps(document, indent=1))
        fsync_tree(staged)
        folder = self._root / step / key
        folder.parent.mkdir(parents=True, exist_ok=True)
        self.remove(folder)
        move_into_place(staged, folder)
        return Entry(folder, record, files)

    def remove(self, folder: Path) -> None:
        """Take an entry away: out of sight in one rename, then off the disk."""
        if folder.exists():
            with staging_folder(self._root / "staging") as bin_folder:
                move_into_place(folder, bin_folder / "removed")
                shutil.rmtree(bin_folder / "removed", ignore_errors=True)

    def _discard(self, folder: Path, damaged: str) -> None:
        self._notice(f"cache entry {folder.parent.name}/{folder.name[:12]} is damaged ({damaged}): building it again")
        self.remove(folder)
