"""Uploads in parts that were begun and never ended: what is there of them need not be sent again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from plansmith.system.aws.s3.bucket import Bucket, ExpectedError
from plansmith.system.aws.s3.errors import DENIED, NO_UPLOAD, NOT_OFFERED


@dataclass(frozen=True)
class Unfinished:
    """An upload to a key, and its parts that are there: number to what the server lists."""

    id: str
    parts: dict[int, Any] = field(default_factory=dict)

    def tag_of(self, number: int, content: bytes, checksum: str | None) -> str | None:
        """The tag of a part that is there as it would be sent; told by its MD5 where there is no better checksum."""
        part = self.parts.get(number)
        if part is None:
            return None
        told = part.get("ChecksumSHA256")
        tag = str(part["ETag"])
        if told is None or checksum is None:
            same = tag.strip('"') == hashlib.md5(content, usedforsecurity=False).hexdigest()
        else:
            same = told == checksum
        return tag if same else None


def latest(bucket: Bucket, key: str, *, with_checksums: bool) -> Unfinished | None:
    """The upload to a key that was begun last, if the server tells of any; the key says what its content is.

    Args:
        bucket: where.
        key: in it.
        with_checksums: whether it is to be one whose parts have SHA-256 checksums, or one whose parts have none: the
            end of the former has to list them.
    """
    found = [
        one
        for one in _listed(bucket, key)
        if one["Key"] == bucket.full(key) and (one.get("ChecksumAlgorithm") == "SHA256") is with_checksums
    ]
    if not found:
        return None
    upload = max(found, key=lambda one: one["Initiated"])["UploadId"]
    return Unfinished(upload, _parts(bucket, key, upload))


def give_up(bucket: Bucket, prefix: str, before: float) -> int:
    """Have the server forget uploads below a prefix that were begun before a time, and their parts; how many.

    Args:
        bucket: where.
        prefix: of their keys.
        before: seconds since 1970, by the server's clock.
    """
    old = [one for one in _listed(bucket, prefix) if one["Initiated"].timestamp() < before]
    for one in old:
        try:
            bucket.call(
                "abort_multipart_upload", bucket.short(one["Key"]), answers=(NO_UPLOAD,), UploadId=one["UploadId"]
            )
        except ExpectedError:  # it ended meanwhile
            continue
    return len(old)


def _listed(bucket: Bucket, prefix: str) -> list[Any]:
    """All uploads to keys that begin so.

    None where these credentials may not look: whoever has only the right to write sends more than is needed.
    """
    found: list[Any] = []
    words: dict[str, Any] = {}
    while True:
        try:
            page = bucket.list_page("list_multipart_uploads", prefix, answers=(DENIED, NOT_OFFERED), **words)
        except ExpectedError:
            return found
        found += page.get("Uploads", ())
        if not page.get("IsTruncated"):
            return found
        words = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}


def _parts(bucket: Bucket, key: str, upload: str) -> dict[int, Any]:
    parts: dict[int, Any] = {}
    words: dict[str, Any] = {"UploadId": upload}
    while True:
        try:
            page = bucket.call("list_parts", key, answers=(NO_UPLOAD, DENIED, NOT_OFFERED), **words)
        except ExpectedError:
            return {}
        parts |= {part["PartNumber"]: part for part in page.get("Parts", ())}
        if not page.get("IsTruncated"):
            return parts
        words["PartNumberMarker"] = page["NextPartNumberMarker"]
