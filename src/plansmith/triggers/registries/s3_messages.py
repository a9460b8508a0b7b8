"""S3 event notifications, read from a queue: objects were written.

Their form is that of docs.aws.amazon.com/AmazonS3/latest/userguide/notification-content-structure.html. What they say
is a hint to look there: which objects there are, and since when, S3 itself is asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote_plus

from plansmith.triggers.registries.delivery import RequestRejected, name_of, object_of, read_object

_TEST = "s3:TestEvent"
_WRITTEN = "ObjectCreated:"


def written_keys(body: bytes, *, bucket: str) -> list[str]:
    """Return the object keys that an S3 event message reports as written; none for S3's initial test event.

    Raises:
        RequestRejected: it is no message of S3's.
    """
    values = read_object(body)
    if values.get("Event") == _TEST:
        return []
    records = values.get("Records")
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise RequestRejected("malformed", "Records is no list of objects")
    return list(dict.fromkeys(_keys(records, bucket)))


def _keys(records: list[dict[str, object]], bucket: str) -> Iterator[str]:
    for record in records:
        if record.get("eventSource") != "aws:s3":
            raise RequestRejected("malformed", "a record is not of S3")
        about = object_of(record, "s3")
        key = unquote_plus(name_of(object_of(about, "object"), "key", longest=4096))
        if name_of(record, "eventName").startswith(_WRITTEN) and name_of(object_of(about, "bucket"), "name") == bucket:
            yield key
