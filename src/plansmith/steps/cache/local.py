"""Local step cache: content-addressed outputs of finished steps.

`<root>/<step>/<key>/` holds a step's files and `entry.json`: its record, the digest of every file, and one
of them all.
The key covers everything that the step's result depends on, so an entry is never updated, only made,
verified and removed. The time of `entry.json` is that of the entry's last use.

A compile holds a shared lock on the whole cache from its first look to its end; whoever collects entries
holds it alone.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.records.model import FileEntry
from plansmith.system.digest import Digester, digest_of, digest_of_files
from plansmith.system.files import (
    LOCKS,
    STAGING,
    Waiting,
    fsync_path,
    fsync_tree,
    locked,
    locked_to_look,
    make_folder,
    move_into_place,
    remove_folder,
    staging_folder,
    sweep,
)

ENTRY_FILE = "entry.json"

_READ_ONLY = 0o444


@dataclass(frozen=True)
class CacheEntry:
    """Cache entry of a finished step: its folder, its record as JSON fields, and the digest of both."""

    folder: Path
    record: dict[str, Any]
    files: tuple[FileEntry, ...]

    @property
    def digest(self) -> str:
        """The identity of the output, whatever key it was stored under."""
        return digest_of([self.record, digest_of_files(self.files)])


class StageCache:
    """Local stage cache below one artifacts folder; safe to share between processes.

    Args:
        root: the folder of the cache; made when first needed.
        digester: hashes the files of entries.
        notice: told in one line when an entry is damaged.
    """

    def __init__(self, root: Path, digester: Digester, notice: Callable[[str], None] = lambda _: None) -> None:
        self._root = root
        self._digester = digester
        self._notice = notice

    def lookup(self, step: str, key: str, *, touch: bool = False) -> CacheEntry | None:
        """Return the entry of a key, or None; a damaged one is reported to `notice` and left for `publish` to replace.

        Args:
            step: the step's name.
            key: the key.
            touch: note that the entry was used now.
        """
        folder = self._root / step / key
        if not folder.exists():
            return None
        entry = _read_entry(folder)
        damaged = self._damage(entry)
        if damaged is not None:
            self._notice(f"cache entry {step}/{key[:12]} is damaged ({damaged}): building it again")
            return None
        if touch:
            with suppress(OSError):  # another user's cache: the entry is as good, and only looks older
                os.utime(folder / ENTRY_FILE)
        return entry

    def damage(self, folder: Path) -> str | None:
        """Return the first missing or altered file of an entry; None if it is intact."""
        return self._damage(_read_entry(folder))

    def has(self, path: Path, file: FileEntry) -> bool:
        """Whether a file exists unchanged."""
        try:
            return path.is_file() and path.stat().st_size == file.bytes and self._digester.file(path) == file.sha256
        except (FileNotFoundError, NotADirectoryError):  # another process takes the entry away
            return False

    def folders(self) -> list[Path]:
        """Return the folders of all entries, intact or not, sorted."""
        places = set(self._root.glob("*/*")) if self._root.is_dir() else set()
        return sorted(p for p in places if p.parent.name not in {STAGING, LOCKS} and p.is_dir())

    def unused_locks(self) -> list[Path]:
        """Return the locks of keys without an entry; surely unused only while the cache is locked exclusively."""
        names = {f"{folder.parent.name}-{folder.name}" for folder in self.folders()}
        return sorted(p for p in (self._root / LOCKS).glob("*-*") if p.name not in names)

    def lock(self, waiting: Waiting, *, alone: bool = False) -> AbstractContextManager[None]:
        """Lock the cache against collection of entries; with `alone`, exclusively."""
        return locked(self._root / LOCKS / "cache", waiting, shared=not alone)

    def held_to_look(self, waiting: Waiting) -> AbstractContextManager[None]:
        """As `lock`, for users without write permission."""
        return locked_to_look(self._root / LOCKS / "cache", waiting)

    @contextmanager
    def exclusive(self, step: str, key: str, waiting: Waiting = lambda _: None) -> Iterator[None]:
        """Lock a key: other processes wait to build it, then find the entry."""
        sweep(self._root / STAGING)
        with locked(self._root / LOCKS / f"{step}-{key}", waiting):
            yield

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """Yield a staging folder to build an entry in; call `publish` with it before leaving."""
        with staging_folder(self._root / STAGING) as folder:
            yield folder

    def publish(
        self, step: str, key: str, staged: Path, record: dict[str, Any], hashed_files: Sequence[FileEntry] = ()
    ) -> CacheEntry:
        """Move a staging folder into the cache as the entry of a key, replacing an existing one.

        Args:
            step: the step's name.
            key: the key.
            staged: the folder.
            record: of the step, as JSON fields.
            hashed_files: files of the folder that were hashed as they were written, and are not hashed again.
        """
        for path in staged.rglob("*"):
            if path.is_file() and stat.S_IMODE(path.stat().st_mode) != _READ_ONLY:
                path.chmod(_READ_ONLY)  # before it is hashed: the digester notices every change
        for file in hashed_files:
            self._digester.note(staged / file.path, file.sha256)
        files = self._digester.entries(staged)
        folder = self._root / step / key
        entry = CacheEntry(folder, record, files)
        if _read_entry(folder) == entry and all(self.has(folder / file.path, file) for file in files):
            fsync_path(folder.parent)  # who made it may have been killed before this
            return entry  # others may be reading it
        document = {"digest": entry.digest, "record": record, "files": [f.model_dump() for f in files]}
        (staged / ENTRY_FILE).write_text(json.dumps(document, indent=1))
        (staged / ENTRY_FILE).chmod(_READ_ONLY)
        fsync_tree(staged)
        make_folder(folder.parent)
        self.remove(folder)
        move_into_place(staged, folder)
        return entry

    def remove(self, folder: Path) -> None:
        """Delete an entry: hidden by one rename, then deleted from the disk."""
        remove_folder(folder, self._root / STAGING)

    def _damage(self, entry: CacheEntry | None) -> str | None:
        if entry is None:
            return ENTRY_FILE
        return next((file.path for file in entry.files if not self.has(entry.folder / file.path, file)), None)


def _read_entry(folder: Path) -> CacheEntry | None:
    """Read the metadata of a cache entry; None if it is damaged."""
    try:
        fields = json.loads((folder / ENTRY_FILE).read_text())
        entry = CacheEntry(folder, fields["record"], tuple(FileEntry(**f) for f in fields["files"]))
        return entry if entry.digest == fields["digest"] else None
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None
