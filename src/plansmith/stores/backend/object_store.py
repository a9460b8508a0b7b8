"""Object store interface: objects under keys, in a folder or in S3, and the guarantees of a backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from plansmith.records.model import Record
from plansmith.system.aws.bucket import Document, ObjectMetadata

Moved = Callable[[int], None]
"""Told of bytes that were sent or fetched since it was told last; may be called from several threads."""


def untold(_bytes: int) -> None:
    """Ignore the reported bytes: a no-op progress callback."""


class KeyTaken(Exception):
    """Conflict: the key already holds a different object."""


class Changed(Exception):
    """Conflict: the object under the key was changed or deleted since it was read."""


class Abilities(Record):
    """Abilities of a server, as probed; a folder has all of them.

    `create_once`: it refuses to write a key that is there (If-None-Match); `swap`: it refuses to replace an object that
    changed meanwhile (If-Match); `safe_in_race`: of several that write at once, one is told that it did; `checksums`:
    it refuses contents that do not have the SHA-256 sent along, and tells it later. `probed`: when, ISO 8601 in UTC.
    """

    create_once: bool
    swap: bool
    safe_in_race: bool
    checksums: bool
    server: str = ""
    probed: str = ""

    @property
    def is_conditional(self) -> bool:
        """Whether conditional writes alone keep publishers apart."""
        return self.create_once and self.swap and self.safe_in_race

    @property
    def is_known(self) -> bool:
        """Whether the abilities were probed, or follow from the kind of store."""
        return self.is_conditional or bool(self.probed)

    @property
    def shortcoming(self) -> str:
        """Warning about the server for the user; empty if it was not probed or is reliable."""
        if self.is_conditional or not self.is_known:
            return ""
        lacks = [
            description
            for has, description in (
                (self.create_once, "does not refuse to overwrite what is there"),
                (self.swap, "does not refuse to replace what changed meanwhile"),
                (self.safe_in_race or not (self.create_once and self.swap), "lets several win who write at once"),
            )
            if not has
        ]
        return f"the server {', '.join(lacks)}: publishers wait for each other, one at a time"


UNKNOWN = Abilities(create_once=False, swap=False, safe_in_race=False, checksums=False)
"""Of a server that was not asked yet: nothing is taken for granted."""


class Objects(Protocol):
    """Object storage interface of one store; keys are relative to its root, with / between their parts.

    All methods raise RepositoryError for what the store refuses and EnvironmentFault for one that cannot be reached;
    what fails in passing was tried again before. Every content that is written or read was compared with its digest.
    """

    place: str
    """The root, as a person may read it: no credentials."""

    typed: str
    """What a person types behind `--store` for it: the root, and the options that it is reached by."""

    abilities: Abilities
    """What the root can do; UNKNOWN until `Store` has read it in the marker of a store whose server was asked, and
    still where that was another server. Where
    conditional writes are not safe, `create` and `swap` look first and then write, and may only be called by whoever
    has the turn (`documents.change` sees to that)."""

    def find(self, key: str) -> ObjectMetadata | None:
        """Return the metadata of the object under a key."""
        ...

    def below(self, prefix: str) -> Iterator[ObjectMetadata]:
        """Yield all objects whose keys have a prefix, sorted by key."""
        ...

    def read(self, key: str) -> Document | None:
        """Read a small object."""
        ...

    def create(self, key: str, content: bytes) -> str:
        """Write a small object if the key is free, and return its tag.

        No two writers may write equal contents: of what is there and equal, it is taken that this one wrote it.

        Raises:
            Taken: there is another.
        """
        ...

    def swap(self, key: str, content: bytes, tag: str) -> str:
        """Compare and swap: replace a small object that still has this tag, and return the new tag.

        Contents as for `create`.

        Raises:
            Changed: it is another, or gone.
        """
        ...

    def put(self, key: str, content: bytes) -> None:
        """Write a small object, overwriting any other."""
        ...

    def send(self, path: Path, key: str, sha256: str, moved: Moved = untold) -> None:
        """Upload a file atomically; parts already sent by an interrupted call are not sent again.

        Args:
            path: the file.
            key: where it goes.
            sha256: the digest of its content, stored with it.
            moved: told of the bytes on their way.
        """
        ...

    def fetch(self, key: str, path: Path, sha256: str, moved: Moved = untold) -> None:
        """Download an object's content to a file, and verify its digest.

        Raises:
            RepositoryError: there is no such object, or it is damaged; no file is left then.
        """
        ...

    def sha256(self, key: str, moved: Moved = untold) -> str:
        """Read every byte of an object's content and return its SHA-256; `moved` receives the number of bytes read."""
        ...

    def copy(self, source: str, key: str) -> None:
        """Copy an object to another key without sending it; with the same key, renew its age."""
        ...

    def remove(self, keys: Iterable[str]) -> None:
        """Delete objects; missing ones are no error."""
        ...

    def flush(self, keys: Iterable[str]) -> None:
        """Make sure that objects which were found survive a power cut: a killed process may just have written them."""
        ...

    def give_up(self, before: float) -> int:
        """Abort uploads started before a time, by the store's clock, and never completed.

        Return the number of files.
        """
        ...

    def probed(self) -> Abilities:
        """Probe the root's abilities now; temporary objects are written below `probe/` and deleted."""
        ...

    def now(self) -> float:
        """Return the time in seconds since 1970 by the store's clock."""
        ...
