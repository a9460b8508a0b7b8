"""Objects that get a second key, or a new age, without being sent."""

from __future__ import annotations

from typing import Any

from plansmith.stores.s3.bucket import Bucket

_MOST_BYTES_AT_ONCE = 5 << 30  # docs.aws.amazon.com/AmazonS3/latest/API/API_CopyObject.html
_PART_BYTES = 1 << 30


def copy(bucket: Bucket, source: str, key: str) -> None:
    """Copy an object within its bucket, as `Objects.copy`."""
    head = bucket.head(source)
    if head is None:
        raise bucket.lost(source)
    origin = {"Bucket": bucket.name, "Key": bucket.full(source)}
    if head["ContentLength"] > _MOST_BYTES_AT_ONCE:
        _copy_parts(bucket, origin, key, head["ContentLength"], head["Metadata"])
        return
    # An object can be copied onto itself only if something about it is said anew.
    anew: dict[str, Any] = {"MetadataDirective": "REPLACE", "Metadata": head["Metadata"]}
    bucket.call("copy_object", key, CopySource=origin, ChecksumAlgorithm="SHA256", **anew, **bucket.encryption)


def _copy_parts(bucket: Bucket, origin: dict[str, str], key: str, size: int, metadata: dict[str, str]) -> None:
    upload = bucket.call("create_multipart_upload", key, Metadata=metadata, **bucket.encryption)["UploadId"]
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
