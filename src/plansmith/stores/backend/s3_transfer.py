"""S3 transfers: whole or multipart uploads and downloads, resumable, in bounded memory."""

from __future__ import annotations

import base64
import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any, TypeVar

from plansmith.errors import RepositoryError
from plansmith.stores.backend.object_store import Moved, untold
from plansmith.system.aws.bucket import Bucket, ExpectedError
from plansmith.system.aws.s3_errors import DAMAGED, DENIED, NO_UPLOAD, NOT_OFFERED, WRONG_PART
from plansmith.system.files import fsync_path, storage_errors

T = TypeVar("T")

_THREADS = 4
_PIECES = 6

_PIECE_BYTES = 16 << 20
_SMALLEST_PART_BYTES = 16 << 20
_MOST_PARTS = 10_000  # docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html
_ATTEMPTS = 3


class TransferPool:
    """Thread pool for all uploads and downloads of one store. Thread-safe."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, "plansmith-s3")
        self._room = BoundedSemaphore(_PIECES)

    def run(self, jobs: Iterable[Callable[[], T]]) -> list[T]:
        """Run jobs concurrently and return their results in order.

        Args:
            jobs: each is asked for when there is room for the piece of a file that it holds.

        Raises:
            Exception: whatever the first job raised that failed; those that were not begun are left then, the others
                are waited for.
        """
        waiting = iter(jobs)
        running: deque[Future[T]] = deque()
        done: list[T] = []
        try:
            while (job := self._next(waiting)) is not None:
                future = self._pool.submit(job)
                future.add_done_callback(lambda _: self._room.release())
                running.append(future)
                while running and running[0].done():
                    done.append(running.popleft().result())
            while running:
                done.append(running.popleft().result())
        finally:
            for future in running:
                future.cancel()
            wait(running)
        return done

    def _next(self, jobs: Iterator[Callable[[], T]]) -> Callable[[], T] | None:
        """Return the next job and reserve room for it; after the last, None without a reservation."""
        self._room.acquire()
        job = None
        try:
            job = next(jobs, None)
        finally:
            if job is None:
                self._room.release()
        return job


def fetch(bucket: Bucket, lanes: TransferPool, key: str, path: Path, sha256: str, moved: Moved) -> None:
    """Download an object's content to a file, as `Objects.fetch`."""
    item = bucket.find(key)
    if item is None:
        raise bucket.lost(key)
    with storage_errors(path.parent):
        try:
            with path.open("wb") as out:
                lanes.run(_piece_jobs(bucket, key, item.bytes, out.fileno(), moved))
            _require_whole(bucket, key, path, sha256)
            fsync_path(path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def sha256_of(bucket: Bucket, key: str, moved: Moved = untold) -> str:
    """Return the SHA-256 of an object's content, read sequentially."""
    item = bucket.find(key)
    if item is None:
        raise bucket.lost(key)
    digest = hashlib.sha256()
    for piece in bucket.stream(key, 0, item.bytes):
        digest.update(piece)
        moved(len(piece))
    return digest.hexdigest()


def _require_whole(bucket: Bucket, key: str, path: Path, sha256: str) -> None:
    with path.open("rb") as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != sha256:
            raise bucket.damaged(key)


def _piece_jobs(bucket: Bucket, key: str, size: int, out: int, moved: Moved) -> Iterator[Callable[[], None]]:
    """Yield jobs, each of which writes one piece of an object to its position in a file."""
    for first in range(0, size, _PIECE_BYTES):
        end = min(first + _PIECE_BYTES, size)
        yield partial(_write_piece, bucket, key, (first, end), out, moved)


def _write_piece(bucket: Bucket, key: str, span: tuple[int, int], out: int, moved: Moved) -> None:
    at, end = span
    for piece in bucket.stream(key, at, end):
        os.pwrite(out, piece, at)
        at += len(piece)
        moved(len(piece))


@dataclass(frozen=True)
class Unfinished:
    """An unfinished multipart upload, with its uploaded parts: number to the server's listing."""

    id: str
    parts: dict[int, Any] = field(default_factory=dict)

    def tag_of(self, number: int, content: bytes, checksum: str | None) -> str | None:
        """Return the tag of an uploaded part with the same content; compared by MD5 if there is no better checksum."""
        part = self.parts.get(number)
        if part is None:
            return None
        digest = part.get("ChecksumSHA256")
        tag = str(part["ETag"])
        if digest is None or checksum is None:
            same = tag.strip('"') == hashlib.md5(content, usedforsecurity=False).hexdigest()
        else:
            same = digest == checksum
        return tag if same else None


def latest(bucket: Bucket, key: str, *, with_checksums: bool) -> Unfinished | None:
    """Return the most recent multipart upload to a key, if the server lists any; the key identifies its content.

    Args:
        bucket: where.
        key: in it.
        with_checksums: whether it is to be one whose parts have SHA-256 checksums, or one whose parts have none: the
            end of the former has to list them.
    """
    uploads = [
        candidate
        for candidate in _listed(bucket, key)
        if candidate["Key"] == bucket.full(key) and (candidate.get("ChecksumAlgorithm") == "SHA256") is with_checksums
    ]
    if not uploads:
        return None
    upload = max(uploads, key=lambda candidate: candidate["Initiated"])["UploadId"]
    return Unfinished(upload, _parts(bucket, key, upload))


def give_up(bucket: Bucket, prefix: str, before: float) -> int:
    """Abort multipart uploads below a prefix that were started before a time, with their parts; return the number.

    Args:
        bucket: where.
        prefix: of their keys.
        before: seconds since 1970, by the server's clock.
    """
    old = [upload for upload in _listed(bucket, prefix) if upload["Initiated"].timestamp() < before]
    for upload in old:
        try:
            bucket.call(
                "abort_multipart_upload", bucket.short(upload["Key"]), answers=(NO_UPLOAD,), UploadId=upload["UploadId"]
            )
        except ExpectedError:  # it ended meanwhile
            continue
    return len(old)


def _listed(bucket: Bucket, prefix: str) -> list[Any]:
    """Yield all multipart uploads to keys with this prefix.

    None where these credentials may not look: whoever has only the right to write sends more than is needed.
    """
    uploads: list[Any] = []
    markers: dict[str, Any] = {}
    while True:
        try:
            page = bucket.list_page("list_multipart_uploads", prefix, answers=(DENIED, NOT_OFFERED), **markers)
        except ExpectedError:
            return uploads
        uploads += page.get("Uploads", ())
        if not page.get("IsTruncated"):
            return uploads
        markers = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}


def _parts(bucket: Bucket, key: str, upload: str) -> dict[int, Any]:
    parts: dict[int, Any] = {}
    parameters: dict[str, Any] = {"UploadId": upload}
    while True:
        try:
            page = bucket.call("list_parts", key, answers=(NO_UPLOAD, DENIED, NOT_OFFERED), **parameters)
        except ExpectedError:
            return {}
        parts |= {part["PartNumber"]: part for part in page.get("Parts", ())}
        if not page.get("IsTruncated"):
            return parts
        parameters["PartNumberMarker"] = page["NextPartNumberMarker"]


@dataclass(frozen=True)
class FileUpload:
    """A file to upload to a key.

    `trusting`: the server is known to refuse what does not have the checksum sent along. Elsewhere parts have none, as
    it would only cost time to compute, and all is read back.
    """

    bucket: Bucket
    lanes: TransferPool
    path: Path
    key: str
    sha256: str
    moved: Moved
    trusting: bool

    @property
    def metadata(self) -> dict[str, str]:
        """The object metadata stored with the content."""
        return {"sha256": self.sha256}


def part_bytes(size: int) -> int:
    """Return the part size of a multipart upload, in bytes."""
    part = _SMALLEST_PART_BYTES
    while part * _MOST_PARTS < size:
        part *= 2
    return part


def send(shipment: FileUpload) -> None:
    """Upload a file to a bucket, as `Objects.send`."""
    size = shipment.path.stat().st_size
    for _ in range(_ATTEMPTS):
        checksum = _send_parts(shipment, size) if size > _SMALLEST_PART_BYTES else _send_whole(shipment)
        if _has_arrived(shipment, size, checksum):
            return
        # Nothing may lie under a digest that it does not have.
        shipment.bucket.call("delete_object", shipment.key)
    raise RepositoryError(
        f"{shipment.path.name} arrived in {shipment.bucket.place} otherwise than it was sent, {_ATTEMPTS} times",
        remedy="run the same command again; if it stays so, something between here and there changes the bytes",
        transient=True,
    )


def _send_whole(shipment: FileUpload) -> str:
    """Upload a small file in one request; return its checksum."""
    return shipment.lanes.run([partial(_put, shipment)])[0]


def _put(shipment: FileUpload) -> str:
    content = shipment.path.read_bytes()
    digest = hashlib.sha256(content)
    _require_same(shipment, digest.hexdigest())
    checksum = _base64(digest.digest())
    _deliver(shipment, "put_object", content, checksum, Metadata=shipment.metadata, **shipment.bucket.encryption)
    return checksum


def _send_parts(shipment: FileUpload, size: int) -> str | None:
    """Upload a large file in parts; return the object's checksum, if known."""
    for _ in range(_ATTEMPTS):
        upload = latest(shipment.bucket, shipment.key, with_checksums=shipment.trusting) or _begun(shipment)
        parts: list[dict[str, Any]] = []
        try:
            parts = shipment.lanes.run(_part_jobs(shipment, upload, size))
            shipment.bucket.call(
                "complete_multipart_upload",
                shipment.key,
                answers=(NO_UPLOAD, WRONG_PART),
                UploadId=upload.id,
                MultipartUpload={"Parts": parts},
            )
        except ExpectedError:
            # It was ended before, by another process with the same content, or by a request whose answer got lost; or
            # the other sent a part of it anew.
            item = shipment.bucket.find(shipment.key)
            if item is None or item.bytes != size:
                continue
        return _checksum_of(parts)
    raise RepositoryError(
        f"the upload of {shipment.path.name} to {shipment.bucket.place} was given up by others, {_ATTEMPTS} times",
        remedy="run the same command again: it goes on",
        transient=True,
    )


def _begun(shipment: FileUpload) -> Unfinished:
    options = shipment.bucket.encryption | ({"ChecksumAlgorithm": "SHA256"} if shipment.trusting else {})
    answer = shipment.bucket.call("create_multipart_upload", shipment.key, Metadata=shipment.metadata, **options)
    return Unfinished(answer["UploadId"])


def _part_jobs(shipment: FileUpload, upload: Unfinished, size: int) -> Iterator[Callable[[], dict[str, Any]]]:
    """Yield jobs, each of which uploads one missing part; the file is read and hashed here, in order."""
    step = part_bytes(size)
    whole = hashlib.sha256()
    with shipment.path.open("rb") as stream:
        for number, _ in enumerate(range(0, size, step), start=1):
            content = stream.read(step)
            whole.update(content)
            checksum = _base64(hashlib.sha256(content).digest()) if shipment.trusting else None
            tag = upload.tag_of(number, content, checksum)
            if tag is not None:
                yield partial(_listed_part, number, tag, checksum)
            else:
                yield partial(_send_part, shipment, upload.id, number, content, checksum)
    if whole.hexdigest() != shipment.sha256:
        shipment.bucket.call("abort_multipart_upload", shipment.key, UploadId=upload.id)
    _require_same(shipment, whole.hexdigest())


def _send_part(shipment: FileUpload, upload: str, number: int, content: bytes, checksum: str | None) -> dict[str, Any]:
    answer = _deliver(shipment, "upload_part", content, checksum, UploadId=upload, PartNumber=number)
    return _listed_part(number, answer["ETag"], checksum)


def _deliver(shipment: FileUpload, operation: str, content: bytes, checksum: str | None, **options: Any) -> Any:
    """Upload bytes, again if they arrive corrupted; return the server's response.

    Raises:
        Answered: the upload that they belong to is gone.
    """
    answers: tuple[str, ...] = (NO_UPLOAD, *DAMAGED)
    if checksum is not None:
        options |= {"ChecksumAlgorithm": "SHA256", "ChecksumSHA256": checksum}
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            answer = shipment.bucket.call(
                operation,
                shipment.key,
                answers=answers if attempt < _ATTEMPTS else (NO_UPLOAD,),
                signs_body=not shipment.trusting,
                Body=content,
                **options,
            )
        except ExpectedError as answered:
            if answered.code == NO_UPLOAD:
                raise
        else:
            shipment.moved(len(content))
            return answer
    raise AssertionError("the last attempt raises")


def _listed_part(number: int, tag: str, checksum: str | None) -> dict[str, Any]:
    """Return a part as CompleteMultipartUpload lists it."""
    listed = {"PartNumber": number, "ETag": tag}
    return listed if checksum is None else {**listed, "ChecksumSHA256": checksum}


def _has_arrived(shipment: FileUpload, size: int, checksum: str | None) -> bool:
    """Whether the object equals what was sent: by the server's checksum, if trusted, else by its bytes.

    Another checksum than expected proves nothing: servers make that of an object in parts in ways of their own, and one
    that was copied since has that of the whole.
    """
    head = shipment.bucket.head(shipment.key, ChecksumMode="ENABLED")
    if head is None or head["ContentLength"] != size:
        return False
    # That of an object in parts ends in their number.
    digest = head.get("ChecksumSHA256", "").partition("-")[0]
    if shipment.trusting and checksum and digest == checksum:
        return True
    return sha256_of(shipment.bucket, shipment.key) == shipment.sha256


def _require_same(shipment: FileUpload, sha256: str) -> None:
    if sha256 != shipment.sha256:
        raise RepositoryError(
            f"{shipment.path} changed: its content is not that of SHA-256 {shipment.sha256[:12]}…",
            remedy="restore it, or publish its release again",
        )


def _checksum_of(parts: list[dict[str, Any]]) -> str | None:
    """Return a multipart object's checksum, computed from its parts' checksums in order; None without those.

    docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity.html
    """
    checksums = [part["ChecksumSHA256"] for part in parts if "ChecksumSHA256" in part]
    if not checksums:
        return None
    return _base64(hashlib.sha256(b"".join(base64.b64decode(checksum) for checksum in checksums)).digest())


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()
