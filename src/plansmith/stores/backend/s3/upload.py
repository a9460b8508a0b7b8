"""Files on their way into a bucket: whole in one request, or in parts that an interrupted run need not send again.

The size of a part follows from that of the file alone: so a later run cuts the same file into the same parts.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from plansmith.errors import RepositoryError
from plansmith.stores.backend.object_store import Moved
from plansmith.stores.backend.s3.download import sha256_of
from plansmith.stores.backend.s3.multipart_resume import Unfinished, latest
from plansmith.stores.backend.s3.thread_pool import TransferPool
from plansmith.system.aws.s3.bucket import Bucket, ExpectedError
from plansmith.system.aws.s3.errors import DAMAGED, NO_UPLOAD, WRONG_PART

_SMALLEST_PART_BYTES = 16 << 20
_MOST_PARTS = 10_000  # docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html
_ATTEMPTS = 3


@dataclass(frozen=True)
class FileUpload:
    """A file that is to lie under a key.

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
        """What is stored beside the content."""
        return {"sha256": self.sha256}


def part_bytes(size: int) -> int:
    """How large the parts of a file are."""
    part = _SMALLEST_PART_BYTES
    while part * _MOST_PARTS < size:
        part *= 2
    return part


def send(shipment: FileUpload) -> None:
    """Write a file to a bucket, as `Objects.send`."""
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
    """Send a small file in one request; its checksum."""
    return shipment.lanes.run([partial(_put, shipment)])[0]


def _put(shipment: FileUpload) -> str:
    content = shipment.path.read_bytes()
    digest = hashlib.sha256(content)
    _require_same(shipment, digest.hexdigest())
    checksum = _base64(digest.digest())
    _deliver(shipment, "put_object", content, checksum, Metadata=shipment.metadata, **shipment.bucket.encryption)
    return checksum


def _send_parts(shipment: FileUpload, size: int) -> str | None:
    """Send a large file in parts; the object's checksum, if it is known."""
    for _ in range(_ATTEMPTS):
        upload = latest(shipment.bucket, shipment.key, with_checksums=shipment.trusting) or _begun(shipment)
        parts: list[dict[str, Any]] = []
        try:
            parts = shipment.lanes.run(_jobs(shipment, upload, size))
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
            held = shipment.bucket.find(shipment.key)
            if held is None or held.bytes != size:
                continue
        return _checksum_of(parts)
    raise RepositoryError(
        f"the upload of {shipment.path.name} to {shipment.bucket.place} was given up by others, {_ATTEMPTS} times",
        remedy="run the same command again: it goes on",
        transient=True,
    )


def _begun(shipment: FileUpload) -> Unfinished:
    words = shipment.bucket.encryption | ({"ChecksumAlgorithm": "SHA256"} if shipment.trusting else {})
    answer = shipment.bucket.call("create_multipart_upload", shipment.key, Metadata=shipment.metadata, **words)
    return Unfinished(answer["UploadId"])


def _jobs(shipment: FileUpload, upload: Unfinished, size: int) -> Iterator[Callable[[], dict[str, Any]]]:
    """Each sends one part that is not there yet; the file is read and hashed here, in order."""
    step = part_bytes(size)
    whole = hashlib.sha256()
    with shipment.path.open("rb") as stream:
        for number, _ in enumerate(range(0, size, step), start=1):
            content = stream.read(step)
            whole.update(content)
            checksum = _base64(hashlib.sha256(content).digest()) if shipment.trusting else None
            tag = upload.tag_of(number, content, checksum)
            if tag is not None:
                yield partial(_listed, number, tag, checksum)
            else:
                yield partial(_send_part, shipment, upload.id, number, content, checksum)
    if whole.hexdigest() != shipment.sha256:
        shipment.bucket.call("abort_multipart_upload", shipment.key, UploadId=upload.id)
    _require_same(shipment, whole.hexdigest())


def _send_part(shipment: FileUpload, upload: str, number: int, content: bytes, checksum: str | None) -> dict[str, Any]:
    answer = _deliver(shipment, "upload_part", content, checksum, UploadId=upload, PartNumber=number)
    return _listed(number, answer["ETag"], checksum)


def _deliver(shipment: FileUpload, operation: str, content: bytes, checksum: str | None, **words: Any) -> Any:
    """Send bytes, again if they arrive otherwise; what the server answers.

    Raises:
        Answered: the upload that they belong to is gone.
    """
    answers: tuple[str, ...] = (NO_UPLOAD, *DAMAGED)
    if checksum is not None:
        words |= {"ChecksumAlgorithm": "SHA256", "ChecksumSHA256": checksum}
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            answer = shipment.bucket.call(
                operation,
                shipment.key,
                answers=answers if attempt < _ATTEMPTS else (NO_UPLOAD,),
                Body=content,
                **words,
            )
        except ExpectedError as answered:
            if answered.code == NO_UPLOAD:
                raise
        else:
            shipment.moved(len(content))
            return answer
    raise AssertionError("the last attempt raises")


def _listed(number: int, tag: str, checksum: str | None) -> dict[str, Any]:
    """A part as the end of an upload lists it."""
    listed = {"PartNumber": number, "ETag": tag}
    return listed if checksum is None else {**listed, "ChecksumSHA256": checksum}


def _has_arrived(shipment: FileUpload, size: int, checksum: str | None) -> bool:
    """Whether the object is what was sent: if the server says so, where that can be trusted, else by its bytes.

    Another checksum than expected proves nothing: servers make that of an object in parts in ways of their own, and one
    that was copied since has that of the whole.
    """
    head = shipment.bucket.head(shipment.key, ChecksumMode="ENABLED")
    if head is None or head["ContentLength"] != size:
        return False
    # That of an object in parts ends in their number.
    told = head.get("ChecksumSHA256", "").partition("-")[0]
    if shipment.trusting and checksum and told == checksum:
        return True
    return sha256_of(shipment.bucket, shipment.key) == shipment.sha256


def _require_same(shipment: FileUpload, sha256: str) -> None:
    if sha256 != shipment.sha256:
        raise RepositoryError(
            f"{shipment.path} changed: its content is not that of SHA-256 {shipment.sha256[:12]}…",
            remedy="restore it, or publish its release again",
        )


def _checksum_of(parts: list[dict[str, Any]]) -> str | None:
    """The checksum of an object in parts: that of the checksums of its parts, one after the other; None without those.

    docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity.html
    """
    checksums = [part["ChecksumSHA256"] for part in parts if "ChecksumSHA256" in part]
    if not checksums:
        return None
    return _base64(hashlib.sha256(b"".join(base64.b64decode(checksum) for checksum in checksums)).digest())


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()
