"""Content-addressed outputs of finished steps.

`<root>/<step>/<key>/` holds a step's files and `entry.json`: its record, the digest of every file, and one
of them all.
The key covers everything that the step's result depends on, so an entry is never updated, only made,
verified and removed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.digest import Digester, digest_of, digest_of_files
from plansmith.durable import fsync_tree, locked, make_folder, move_into_place, remove_folder, staging_folder, sweep
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
        notice: told in one line when an entry is damaged.
    """

    def __init__(self, root: Path, digester: Digester, notice: Callable[[str], None] = lambda _: None) -> None:
        self._root = root
        self._digester = digester
        self._notice = notice

    def lookup(self, step: str, key: str) -> Entry | None:
        """The entry of a key, or None; a damaged one is told to `notice` and left for `publish` to replace."""
        folder = self._root / step / key
        if not folder.exists():
            return None
        entry = _read_entry(folder)
        damaged = ENTRY_FILE if entry is None else next((f.path for f in entry.files if self._differs(folder, f)), None)
        if damaged is None:
            return entry
        self._notice(f"cache entry {step}/{key[:12]} is damaged ({damaged}): building it again")
        return None

    @contextmanager
    def exclusive(self, step: str, key: str) -> Iterator[None]:
        """While held, no other process builds this key: it waits, then finds the entry."""
        sweep(self._root / "staging")
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
        folder = self._root / step / key
        entry = Entry(folder, record, files)
        if _read_entry(folder) == entry and not any(self._differs(folder, file) for file in files):
            return entry  # others may be reading it
        document = {"digest": entry.digest, "record": record, "files": [f.model_dump() for f in files]}
        (staged / ENTRY_FILE).write_text(json.dumps(document, indent=1))
        for path in (staged / ENTRY_FILE, *(staged / file.path for file in files)):
            path.chmod(0o444)
        fsync_tree(staged)
        make_folder(folder.parent)
        self.remove(folder)
        move_into_place(staged, folder)
        return entry

    def remove(self, folder: Path) -> None:
        """Take an entry away: out of sight in one rename, then off the disk."""
        remove_folder(folder, self._root / "staging")

    def _differs(self, folder: Path, file: FileEntry) -> bool:
        path = folder / file.path
        return not path.is_file() or path.stat().st_size != file.bytes or self._digester.file(path) != file.sha256


def _read_entry(folder: Path) -> Entry | None:
    """What an entry says about itself; None where that is damaged."""
    try:
        fields = json.loads((folder / ENTRY_FILE).read_text())
        entry = Entry(folder, fields["record"], tuple(FileEntry(**f) for f in fields["files"]))
        return entry if entry.digest == fields["digest"] else None
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None
