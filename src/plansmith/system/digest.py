"""Content digests, memoized so that no file is hashed twice.

The memo is a small SQLite file keyed by device, inode, size, modification time and change time: a hard link
shares the entry of its file, and a changed file misses it. A program can set the modification time back, but
nothing can set the change time. A link that is made or removed changes it too, and costs one more reading, unless
`Digester.link` makes it.
What the memo cannot see is a disk that loses bits by itself: what earlier runs left is read again before it is
published.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from plansmith.records.model import FileEntry
from plansmith.system.files import link_or_copy, make_folder

# Device, inode, size, modification time and change time; times in nanoseconds.
_Identity = tuple[int, int, int, int, int]

# A file may change again within the tick of the file system's clock without a trace: wait for the next.
_CLOCK_TICK_NS = 20_000_000


def _identity_of(stat: os.stat_result) -> _Identity:
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def digest_of(value: Any) -> str:
    """Return the SHA-256 of a JSON value in canonical form (sorted keys, no whitespace)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def digest_of_files(files: tuple[FileEntry, ...] | list[FileEntry]) -> str:
    """Return one digest for a set of files: names and contents, independent of order."""
    return digest_of(sorted((f.path, f.sha256) for f in files))


class Digester:
    """File hasher with a cache of digests.

    Args:
        memo: the SQLite file to remember in; created when missing. A memo that cannot be opened or
            written only costs time: the digest is computed instead. A damaged one is made anew.
        read_only: never write the memo.

    Attributes:
        hashed: how many files had to be read so far.
    """

    def __init__(self, memo: Path, *, read_only: bool = False) -> None:
        self.hashed = 0
        self._memo = memo
        self._read_only = read_only
        self._made_anew = False
        self._digests: dict[_Identity, str] = {}
        self._read: set[_Identity] = set()

    def file(self, path: Path, *, foreign: bool = False, afresh: bool = False) -> str:
        """Return the SHA-256 of a file's content, in hexadecimal.

        Args:
            path: the file.
            foreign: it is others' to write, and may change again at once.
            afresh: read it whatever is remembered, unless this object has read it itself.

        Raises:
            OSError: the file cannot be read.
        """
        stat = path.stat()
        if foreign and (age := time.time_ns() - stat.st_ctime_ns) < _CLOCK_TICK_NS:
            time.sleep((_CLOCK_TICK_NS - max(0, age)) / 1e9)
            stat = path.stat()
        identity = _identity_of(stat)
        is_known = not afresh or identity in self._read
        digest = (self._digests.get(identity) or self._recall(identity)) if is_known else None
        if digest is None:
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            self.hashed += 1
            self._read.add(identity)
            self._remember(identity, digest)
        self._digests[identity] = digest
        return digest

    def note(self, path: Path, sha256: str) -> None:
        """Cache the digest of a file that was hashed while it was written and does not change any more."""
        identity = _identity_of(path.stat())
        self._remember(identity, sha256)
        self._digests[identity] = sha256

    def link(self, source: Path, target: Path) -> None:
        """As `link_or_copy`; what is remembered of the file stays so, as its new name changes nothing but the times.

        Raises:
            OSError: as `link_or_copy`.
        """
        before = _identity_of(source.stat())
        digest = self._digests.get(before) or self._recall(before)
        link_or_copy(source, target)
        after = _identity_of(target.stat())
        if digest is not None and after[:-1] == before[:-1]:
            self.note(target, digest)
            if before in self._read:
                self._read.add(after)

    def entries(self, folder: Path, paths: list[Path] | None = None, *, foreign: bool = False) -> tuple[FileEntry, ...]:
        """Return path, size and digest of a folder's files (all below it unless named), sorted by path."""
        files = paths if paths is not None else [p for p in folder.rglob("*") if p.is_file()]
        return tuple(
            FileEntry(
                path=p.relative_to(folder).as_posix(),
                bytes=p.stat().st_size,
                sha256=self.file(p, foreign=foreign),
            )
            for p in sorted(files)
        )

    def entry(self, path: Path, name: str) -> FileEntry:
        """Return size and digest of one of plansmith's own files, under a name."""
        return FileEntry(path=name, bytes=path.stat().st_size, sha256=self.file(path))

    def _connect(self) -> sqlite3.Connection:
        if self._read_only:
            return sqlite3.connect(f"file:{quote(str(self._memo))}?mode=ro", uri=True)
        make_folder(self._memo.parent)
        connection = sqlite3.connect(self._memo, timeout=10)
        connection.execute(
            "CREATE TABLE IF NOT EXISTS files (device INT, inode INT, size INT, mtime INT, ctime INT, sha256 TEXT,"
            " PRIMARY KEY (device, inode)) WITHOUT ROWID"
        )
        return connection

    def _recall(self, identity: _Identity) -> str | None:
        row = self._ask(
            "SELECT sha256 FROM files WHERE device=? AND inode=? AND size=? AND mtime=? AND ctime=?", identity
        )
        return str(row[0]) if row else None

    def _remember(self, identity: _Identity, sha256: str) -> None:
        if not self._read_only:
            self._ask("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)", (*identity, sha256))

    def _ask(self, statement: str, values: tuple[int | str, ...]) -> tuple[Any, ...] | None:
        """Return the first row of a query's result; a damaged memo is deleted and recreated once."""
        try:
            with closing(self._connect()) as connection, connection:
                row: tuple[Any, ...] | None = connection.execute(statement, values).fetchone()
                return row
        except (sqlite3.OperationalError, OSError):  # full, locked, not there, not ours to write
            return None
        except sqlite3.DatabaseError:
            if self._read_only or self._made_anew:
                return None
            self._made_anew = True
            with suppress(OSError):
                self._memo.unlink(missing_ok=True)
            return self._ask(statement, values)
