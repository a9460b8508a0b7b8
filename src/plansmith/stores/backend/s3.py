"""Conditional writes of S3 documents: tells one's own retried write from the writes of others.

An answer may get lost on the way, and the request is sent again then: it fails, as the first one succeeded. What is
there and equal to what was to be written is therefore one's own; no two writers write equal bytes.
"""

from __future__ import annotations

import base64
import hashlib
import random
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

from plansmith.errors import PlansmithError, RepositoryError
from plansmith.records.destination import Location
from plansmith.stores.backend import s3_transfer
from plansmith.stores.backend.documents import new_token, utc_now
from plansmith.stores.backend.object_store import UNKNOWN, Abilities, Changed, KeyTaken, Moved, untold
from plansmith.stores.backend.s3_transfer import TransferPool, give_up
from plansmith.stores.layout import MARKER_KEY, PROBE
from plansmith.system.aws.bucket import Bucket, Document, ExpectedError, ObjectMetadata
from plansmith.system.aws.s3_errors import NOT_OFFERED, refusal_in

# S3 answers 409 to all but one of those that write a key at the same moment: docs.aws.amazon.com/AmazonS3/latest/
# userguide/conditional-writes.html. The next attempt tells who it was.
_ATTEMPTS = 8
_LONGEST_PAUSE_SECONDS = 1.0

# S3 copies 5 GiB in one request (docs.aws.amazon.com/AmazonS3/latest/API/API_CopyObject.html), and says nothing before
# it is done: what is larger than this takes longer than is waited for an answer.
_PART_BYTES = 1 << 30
_ENCRYPTION = ("ServerSideEncryption", "SSEKMSKeyId")
_ROUNDS = 4
_WRITERS = 16


def create(bucket: Bucket, abilities: Abilities, key: str, content: bytes) -> str:
    """Write a document if the key is free, and return its tag. As `Objects.create`."""
    for attempt in range(_ATTEMPTS):
        if not abilities.create_once and (document := bucket.read(key)) is not None:
            return _own(document, key, content)
        written = _written(bucket, key, content, {"IfNoneMatch": "*"} if abilities.create_once else {})
        if written is not None:
            return written
        if (document := bucket.read(key)) is not None:
            return _own(document, key, content)
        _pause(attempt)
    raise _contended(bucket, key)


def swap(bucket: Bucket, abilities: Abilities, key: str, content: bytes, tag: str) -> str:
    """Compare and swap: replace a document that still has this tag, and return the new tag. As `Objects.swap`."""
    for attempt in range(_ATTEMPTS):
        if not abilities.swap:
            _require_same(bucket.read(key), key, tag)
        written = _written(bucket, key, content, {"IfMatch": tag} if abilities.swap else {})
        if written is not None:
            return written
        document = bucket.read(key)
        if document is not None and document.content == content:
            return document.tag
        _require_same(document, key, tag)
        _pause(attempt)
    raise _contended(bucket, key)


def _written(bucket: Bucket, key: str, content: bytes, conditions: dict[str, str]) -> str | None:
    """Return the ETag of the write; None if a condition was not met."""
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


def _own(document: Document, key: str, content: bytes) -> str:
    if document.content != content:
        raise KeyTaken(key)
    return document.tag


def _require_same(document: Document | None, key: str, tag: str) -> None:
    if document is None or document.tag != tag:
        raise Changed(key)


def _pause(attempt: int) -> None:
    time.sleep(random.uniform(0, min(0.05 * 2**attempt, _LONGEST_PAUSE_SECONDS)))  # noqa: S311 - no secret


def _contended(bucket: Bucket, key: str) -> RepositoryError:
    return RepositoryError(
        f"{key} in {bucket.place} was written by others all the time",
        remedy="run the same command again",
        transient=True,
    )


def copy(bucket: Bucket, source: str, key: str) -> None:
    """Copy an object within its bucket, as `Objects.copy`; encrypted like the original unless otherwise configured."""
    head = bucket.head(source)
    if head is None:
        raise bucket.lost(source)
    origin = {"Bucket": bucket.name, "Key": bucket.full(source)}
    encryption = bucket.encryption or {name: head[name] for name in _ENCRYPTION if name in head}
    options: dict[str, Any] = {"Metadata": head["Metadata"], **encryption}
    if head["ContentLength"] > _PART_BYTES:
        _copy_parts(bucket, origin, key, head["ContentLength"], options)
        return
    # An object can be copied onto itself only if something about it is said anew.
    bucket.call(
        "copy_object", key, CopySource=origin, ChecksumAlgorithm="SHA256", MetadataDirective="REPLACE", **options
    )


def _copy_parts(bucket: Bucket, origin: dict[str, str], key: str, size: int, options: dict[str, Any]) -> None:
    upload = bucket.call("create_multipart_upload", key, **options)["UploadId"]
    try:
        parts = []
        for number, first in enumerate(range(0, size, _PART_BYTES), start=1):
            end = min(first + _PART_BYTES, size)
            answer = bucket.call(
                "upload_part_copy",
                key,
                UploadId=upload,
                PartNumber=number,
                CopySource=origin,
                CopySourceRange=f"bytes={first}-{end - 1}",
            )
            parts.append({"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]})
        bucket.call("complete_multipart_upload", key, UploadId=upload, MultipartUpload={"Parts": parts})
    except BaseException:
        with suppress(PlansmithError):  # what went wrong first is told
            bucket.call("abort_multipart_upload", key, UploadId=upload)
        raise


def probe(bucket: Bucket) -> Abilities:
    """Probe the abilities of a bucket's server.

    Raises:
        RepositoryError: it refuses plain writes.
        EnvironmentFault: it cannot be reached.
    """
    folder = f"{PROBE}{new_token()}/"
    try:
        create_once = _creates_once(bucket, f"{folder}created")
        swap = _swaps(bucket, f"{folder}swapped")
        return Abilities(
            create_once=create_once,
            swap=swap,
            safe_in_race=create_once and swap and all(_is_safe(bucket, f"{folder}race-{n}") for n in range(_ROUNDS)),
            checksums=_checks(bucket, f"{folder}checked"),
            server=_server(bucket, f"{folder}checked"),
            probed=utc_now(),
        )
    finally:
        for item in list(bucket.below(folder)):
            bucket.call("delete_object", item.key)


def _creates_once(bucket: Bucket, key: str) -> bool:
    """Whether a second write to a key is refused if it is conditional (create only)."""
    return _is_done(bucket, key, b"first", IfNoneMatch="*") and not _is_done(bucket, key, b"second", IfNoneMatch="*")


def _swaps(bucket: Bucket, key: str) -> bool:
    """Whether a compare-and-swap write succeeds, and is refused if the object was changed or deleted."""
    old = bucket.put(key, b"first")
    return (
        _is_done(bucket, key, b"second", IfMatch=old)
        and not _is_done(bucket, key, b"third", IfMatch=old)
        and not _is_done(bucket, f"{key}-gone", b"fourth", IfMatch=old)
    )


def _is_done(bucket: Bucket, key: str, content: bytes, **conditions: str) -> bool:
    """Whether a conditional write succeeded; a retry after a lost response is refused."""
    if not _is_refused(partial(bucket.put, key, content, **conditions)):
        return True
    document = bucket.read(key)
    return document is not None and document.content == content


def _is_refused(ask: Callable[[], object]) -> bool:
    """Whether the server refuses a request, for any reason: servers without support give various ones.

    What it refuses for another reason, such as a permission, it refuses without conditions, too, and that is told.
    """
    try:
        ask()
    except ExpectedError:
        return True
    except PlansmithError as fault:
        if not isinstance(fault.__cause__, Exception) or refusal_in(fault.__cause__) is None:
            raise
        return True
    return False


def _is_safe(bucket: Bucket, key: str) -> bool:
    """Whether exactly one of many concurrent creations of a key succeeds, and then of many swaps, too."""
    created = _won_once(bucket, key, IfNoneMatch="*")
    return created is not None and _won_once(bucket, key, IfMatch=created.tag) is not None


def _won_once(bucket: Bucket, key: str, **condition: str) -> Document | None:
    """Return the object after concurrent writes; None if several were reported successful, or the wrong one.

    None at all may be told, where the only answer that says so got lost. Where most got neither a yes nor a no, as the
    server has too much to do, nothing is proven.
    """
    contents = [f"writer {number}: {new_token()}".encode() for number in range(_WRITERS)]
    together = Barrier(_WRITERS)

    def write(content: bytes) -> bool | None:
        together.wait()
        try:
            bucket.put(key, content, **condition)
        except ExpectedError:
            return False
        except PlansmithError:
            return None
        return True

    with ThreadPoolExecutor(_WRITERS, "plansmith-probe") as threads:
        answers = list(threads.map(write, contents))
    winners = [content for content, won in zip(contents, answers, strict=True) if won]
    document = bucket.read(key)
    if answers.count(None) > _WRITERS // 2 or document is None or document.content not in contents:
        return None
    return document if winners in ([], [document.content]) else None


def _checks(bucket: Bucket, key: str) -> bool:
    """Whether the server refuses content that does not match the sent SHA-256, and reports the right one later."""
    refused = _is_refused(partial(bucket.call, "put_object", key, Body=b"content", ChecksumSHA256=_sha256(b"another")))
    bucket.put(key, b"content")
    checksum = bucket.head(key, ChecksumMode="ENABLED").get("ChecksumSHA256")
    return refused and checksum == _sha256(b"content")


def _server(bucket: Bucket, key: str) -> str:
    """Return the server's name for itself."""
    return str(bucket.head(key)["ResponseMetadata"]["HTTPHeaders"].get("server", ""))


def _sha256(content: bytes) -> str:
    return base64.b64encode(hashlib.sha256(content).digest()).decode()


class S3Objects:
    """S3 backend of `Objects`. Thread-safe.

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

    def find(self, key: str) -> ObjectMetadata | None:
        """Return the metadata of the object under a key."""
        return self.bucket.find(key)

    def below(self, prefix: str) -> Iterator[ObjectMetadata]:
        """Yield all objects whose keys have a prefix, sorted by key."""
        return self.bucket.below(prefix)

    def read(self, key: str) -> Document | None:
        """Read a small object."""
        return self.bucket.read(key)

    def create(self, key: str, content: bytes) -> str:
        """Write a small object if the key is free."""
        return create(self.bucket, self.abilities, key, content)

    def swap(self, key: str, content: bytes, tag: str) -> str:
        """Compare and swap: replace a small object that still has this tag."""
        return swap(self.bucket, self.abilities, key, content, tag)

    def put(self, key: str, content: bytes) -> None:
        """Write a small object, overwriting any other."""
        self.bucket.put(key, content)

    def send(self, path: Path, key: str, sha256: str, moved: Moved = untold) -> None:
        """Upload a file atomically; parts already sent by an interrupted call are not sent again."""
        s3_transfer.send(
            s3_transfer.FileUpload(
                self.bucket, self._lanes, path, key, sha256, moved, trusting=self.abilities.checksums
            )
        )

    def fetch(self, key: str, path: Path, sha256: str, moved: Moved = untold) -> None:
        """Download an object's content to a file."""
        s3_transfer.fetch(self.bucket, self._lanes, key, path, sha256, moved)

    def sha256(self, key: str, moved: Moved = untold) -> str:
        """Return the SHA-256 of an object's content."""
        return s3_transfer.sha256_of(self.bucket, key, moved)

    def copy(self, source: str, key: str) -> None:
        """Copy an object to another key; with the same key, renew its age."""
        copy(self.bucket, source, key)

    def remove(self, keys: Iterable[str]) -> None:
        """Delete objects one by one, as not every server supports batches, and so that an error names its key."""
        self._lanes.run(self._removals(keys))

    def flush(self, keys: Iterable[str]) -> None:
        """Do nothing: what a server acknowledged is on its disks."""

    def give_up(self, before: float) -> int:
        """Abort uploads started before a time and never completed; return the number of files."""
        return give_up(self.bucket, "", before)

    def probed(self) -> Abilities:
        """Probe the server's abilities now."""
        return probe(self.bucket)

    def now(self) -> float:
        """Return the time in seconds since 1970 by the server's clock."""
        return self.bucket.now(MARKER_KEY)

    def _removals(self, keys: Iterable[str]) -> Iterator[Callable[[], object]]:
        for key in keys:
            yield partial(self.bucket.call, "delete_object", key)
