"""A store below a prefix of a bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from plansmith.records.destination import Location
from plansmith.stores.backend.object_store import UNKNOWN, Abilities, Moved, untold
from plansmith.stores.backend.s3 import conditional_writes, download, upload
from plansmith.stores.backend.s3.copy import copy
from plansmith.stores.backend.s3.multipart_resume import give_up
from plansmith.stores.backend.s3.probe import probe
from plansmith.stores.backend.s3.thread_pool import TransferPool
from plansmith.stores.layout import MARKER_KEY
from plansmith.system.aws.s3.bucket import Bucket
from plansmith.system.aws.s3.objects import Document, Held


class S3Objects:
    """Objects in S3: `Objects` says what each method does. May be used from several threads.

    Args:
        place: where, and how it is reached; asked when something is needed.
        relative_to: the folder that relative paths start from.

    Attributes:
        bucket: single requests, for whoever wants to see how the server answers to them.
    """

    def __init__(self, place: Location, relative_to: Path) -> None:
        self.bucket = Bucket(place, relative_to)
        self.place = self.bucket.place
        self.typed = self.bucket.typed
        self.abilities: Abilities = UNKNOWN
        self._lanes = TransferPool()

    def find(self, key: str) -> Held | None:
        """What is there under a key."""
        return self.bucket.find(key)

    def below(self, prefix: str) -> Iterator[Held]:
        """All objects whose keys begin so, sorted by key."""
        return self.bucket.below(prefix)

    def read(self, key: str) -> Document | None:
        """A small object."""
        return self.bucket.read(key)

    def create(self, key: str, content: bytes) -> str:
        """Write a small object where there is none."""
        return conditional_writes.create(self.bucket, self.abilities, key, content)

    def swap(self, key: str, content: bytes, tag: str) -> str:
        """Replace a small object that is still the one of this tag."""
        return conditional_writes.swap(self.bucket, self.abilities, key, content, tag)

    def put(self, key: str, content: bytes) -> None:
        """Write a small object, whatever is there."""
        self.bucket.put(key, content)

    def send(self, path: Path, key: str, sha256: str, moved: Moved = untold) -> None:
        """Write a file; it appears whole, and what an interrupted call sent of it is not sent again."""
        upload.send(
            upload.FileUpload(self.bucket, self._lanes, path, key, sha256, moved, trusting=self.abilities.checksums)
        )

    def fetch(self, key: str, path: Path, sha256: str, moved: Moved = untold) -> None:
        """Write an object's content to a file."""
        download.fetch(self.bucket, self._lanes, key, path, sha256, moved)

    def sha256(self, key: str, moved: Moved = untold) -> str:
        """The SHA-256 of an object's content."""
        return download.sha256_of(self.bucket, key, moved)

    def copy(self, source: str, key: str) -> None:
        """Give an object a second key, or with the same one a new age."""
        copy(self.bucket, source, key)

    def remove(self, keys: Iterable[str]) -> None:
        """Take objects away. One by one, as not every server knows more, and so that a refusal names its key."""
        self._lanes.run(self._removals(keys))

    def give_up(self, before: float) -> int:
        """Forget what was begun to be sent before a time and never ended; how many files."""
        return give_up(self.bucket, "", before)

    def probed(self) -> Abilities:
        """What the server does, found out now."""
        return probe(self.bucket)

    def now(self) -> float:
        """Seconds since 1970 by the server's clock."""
        return self.bucket.now(MARKER_KEY)

    def _removals(self, keys: Iterable[str]) -> Iterator[Callable[[], object]]:
        for key in keys:
            yield partial(self.bucket.call, "delete_object", key)
