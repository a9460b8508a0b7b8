"""What a store is made of: objects under keys, in a folder or in S3, and what can be relied on there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from plansmith.records.model import Record
from plansmith.system.aws.s3.objects import Document, Held

Moved = Callable[[int], None]
"""Told of bytes that were sent or fetched since it was told last; may be called from several threads."""


def untold(_bytes: int) -> None:
    """For whoever does not want to know."""


class KeyTaken(Exception):
    """There is an object under the key already, another one than what was to be written."""


class Changed(Exception):
    """The object under the key is not the one any more that was read, or it is gone."""


class Abilities(Record):
    """What a server really does, as seen in a probe; a folder can do all of it.

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
        """Whether it was seen what the server does, or follows from what it is."""
        return self.is_conditional or bool(self.probed)

    @property
    def shortcoming(self) -> str:
        """What a person should know of the server; empty where it was not asked, or can be relied on."""
        if self.is_conditional or not self.is_known:
            return ""
        lacks = [
            words
            for has, words in (
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
    """The objects of one store; keys are relative to its root, with / between their parts.

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

    def find(self, key: str) -> Held | None:
        """What is there under a key."""
        ...

    def below(self, prefix: str) -> Iterator[Held]:
        """All objects whose keys begin so, sorted by key."""
        ...

    def read(self, key: str) -> Document | None:
        """A small object."""
        ...

    def create(self, key: str, content: bytes) -> str:
        """Write a small object where there is none; its tag.

        No two writers may write equal contents: of what is there and equal, it is taken that this one wrote it.

        Raises:
            Taken: there is another.
        """
        ...

    def swap(self, key: str, content: bytes, tag: str) -> str:
        """Replace a small object that is still the one of this tag; the new tag. Contents as for `create`.

        Raises:
            Changed: it is another, or gone.
        """
        ...

    def put(self, key: str, content: bytes) -> None:
        """Write a small object, whatever is there."""
        ...

    def send(self, path: Path, key: str, sha256: str, moved: Moved = untold) -> None:
        """Write a file; it appears whole, and what an interrupted call sent of it is not sent again.

        Args:
            path: the file.
            key: where it goes.
            sha256: the digest of its content, stored with it.
            moved: told of the bytes on their way.
        """
        ...

    def fetch(self, key: str, path: Path, sha256: str, moved: Moved = untold) -> None:
        """Write an object's content to a file, which is as its digest says.

        Raises:
            RepositoryError: there is no such object, or it is damaged; no file is left then.
        """
        ...

    def sha256(self, key: str, moved: Moved = untold) -> str:
        """The SHA-256 of an object's content, of which every byte is read; `moved` is told of them."""
        ...

    def copy(self, source: str, key: str) -> None:
        """Give an object a second key, or with the same one a new age, without sending it."""
        ...

    def remove(self, keys: Iterable[str]) -> None:
        """Take objects away; those that are not there are no error."""
        ...

    def give_up(self, before: float) -> int:
        """Forget what was begun to be sent before a time, by the store's clock, and never ended; how many files."""
        ...

    def probed(self) -> Abilities:
        """What the root can do, found out now; what that takes is written below `probe/` and taken away again."""
        ...

    def now(self) -> float:
        """Seconds since 1970 by the store's clock."""
        ...
