"""Documents written only if they are as the writer believes, and told apart from what others wrote.

An answer may get lost on the way, and the request is sent again then: it fails, as the first one succeeded. What is
there and equal to what was to be written is therefore one's own; no two writers write equal bytes.
"""

from __future__ import annotations

import random
import time

from plansmith.errors import RepositoryError
from plansmith.stores.backend.object_store import Abilities, Changed, KeyTaken
from plansmith.system.aws.s3.bucket import Bucket, ExpectedError
from plansmith.system.aws.s3.errors import NOT_OFFERED
from plansmith.system.aws.s3.objects import Document

# S3 answers 409 to all but one of those that write a key at the same moment: docs.aws.amazon.com/AmazonS3/latest/
# userguide/conditional-writes.html. The next attempt tells who it was.
_ATTEMPTS = 8
_LONGEST_PAUSE_SECONDS = 1.0


def create(bucket: Bucket, abilities: Abilities, key: str, content: bytes) -> str:
    """Write a document where there is none; its tag. As `Objects.create`."""
    for attempt in range(_ATTEMPTS):
        if not abilities.create_once and (found := bucket.read(key)) is not None:
            return _own(found, key, content)
        written = _written(bucket, key, content, {"IfNoneMatch": "*"} if abilities.create_once else {})
        if written is not None:
            return written
        if (found := bucket.read(key)) is not None:
            return _own(found, key, content)
        _pause(attempt)
    raise _contended(bucket, key)


def swap(bucket: Bucket, abilities: Abilities, key: str, content: bytes, tag: str) -> str:
    """Replace a document that is still the one of this tag; the new tag. As `Objects.swap`."""
    for attempt in range(_ATTEMPTS):
        if not abilities.swap:
            _require_same(bucket.read(key), key, tag)
        written = _written(bucket, key, content, {"IfMatch": tag} if abilities.swap else {})
        if written is not None:
            return written
        found = bucket.read(key)
        if found is not None and found.content == content:
            return found.tag
        _require_same(found, key, tag)
        _pause(attempt)
    raise _contended(bucket, key)


def _written(bucket: Bucket, key: str, content: bytes, conditions: dict[str, str]) -> str | None:
    """The tag of what was written; None where a condition was not met."""
    try:
        return bucket.put(key, content, **conditions)
    except ExpectedError as answered:
        if answered.code != NOT_OFFERED:
            return None
        unless = "leave --encryption out, which it may not offer; or " if bucket.encryption else ""
        raise RepositoryError(
            f"{bucket.place} lies on a server that does not offer conditional writes",
            remedy=f"{unless}have it asked what it can do: plansmith store --probe --store {bucket.typed}",
        ) from answered


def _own(found: Document, key: str, content: bytes) -> str:
    if found.content != content:
        raise KeyTaken(key)
    return found.tag


def _require_same(found: Document | None, key: str, tag: str) -> None:
    if found is None or found.tag != tag:
        raise Changed(key)


def _pause(attempt: int) -> None:
    time.sleep(random.uniform(0, min(0.05 * 2**attempt, _LONGEST_PAUSE_SECONDS)))  # noqa: S311 - no secret


def _contended(bucket: Bucket, key: str) -> RepositoryError:
    return RepositoryError(
        f"{key} in {bucket.place} was written by others all the time",
        remedy="run the same command again",
        transient=True,
    )
