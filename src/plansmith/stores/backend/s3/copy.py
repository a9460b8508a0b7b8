"""Objects that get a second key, or a new age, without being sent."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from plansmith.errors import PlansmithError
from plansmith.system.aws.s3.bucket import Bucket

# S3 copies 5 GiB in one request (docs.aws.amazon.com/AmazonS3/latest/API/API_CopyObject.html), and says nothing before
# it is done: what is larger than this takes longer than is waited for an answer.
_PART_BYTES = 1 << 30

_ENCRYPTION = ("ServerSideEncryption", "SSEKMSKeyId")


def copy(bucket: Bucket, source: str, key: str) -> None:
    """Copy an object within its bucket, as `Objects.copy`; encrypted as the original is, unless a way is asked for."""
    head = bucket.head(source)
    if head is None:
        raise bucket.lost(source)
    origin = {"Bucket": bucket.name, "Key": bucket.full(source)}
    encryption = bucket.encryption or {name: head[name] for name in _ENCRYPTION if name in head}
    words: dict[str, Any] = {"Metadata": head["Metadata"], **encryption}
    if head["ContentLength"] > _PART_BYTES:
        _copy_parts(bucket, origin, key, head["ContentLength"], words)
        return
    # An object can be copied onto itself only if something about it is said anew.
    bucket.call("copy_object", key, CopySource=origin, ChecksumAlgorithm="SHA256", MetadataDirective="REPLACE", **words)


def _copy_parts(bucket: Bucket, origin: dict[str, str], key: str, size: int, words: dict[str, Any]) -> None:
    upload = bucket.call("create_multipart_upload", key, **words)["UploadId"]
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
