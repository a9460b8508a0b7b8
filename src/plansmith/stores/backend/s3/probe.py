"""What an S3 server really does with conditions and checksums: asked by small writes below `probe/`.

Servers that speak S3's protocol answer 501 to conditions, ignore them, or look first and then write, so that several
who write at the same moment are all told that they did. None of that is told anywhere but in what they do. A race that
nobody won twice proves little and one that two won proves all: so there are several, each of many at once.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier

from plansmith.errors import PlansmithError
from plansmith.stores.backend.documents import new_token, utc_now
from plansmith.stores.backend.object_store import Abilities
from plansmith.stores.layout import PROBE
from plansmith.system.aws.s3.bucket import Bucket, ExpectedError
from plansmith.system.aws.s3.errors import refusal_in
from plansmith.system.aws.s3.objects import Document

_ROUNDS = 4
_WRITERS = 16


def probe(bucket: Bucket) -> Abilities:
    """See what the server of a bucket does.

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
        for held in list(bucket.below(folder)):
            bucket.call("delete_object", held.key)


def _creates_once(bucket: Bucket, key: str) -> bool:
    """Whether a second write of a key is refused where it asks to be."""
    return _is_done(bucket, key, b"first", IfNoneMatch="*") and not _is_done(bucket, key, b"second", IfNoneMatch="*")


def _swaps(bucket: Bucket, key: str) -> bool:
    """Whether a write in place of another is done, and refused where that one changed or is gone."""
    old = bucket.put(key, b"first")
    return (
        _is_done(bucket, key, b"second", IfMatch=old)
        and not _is_done(bucket, key, b"third", IfMatch=old)
        and not _is_done(bucket, f"{key}-gone", b"fourth", IfMatch=old)
    )


def _is_done(bucket: Bucket, key: str, content: bytes, **conditions: str) -> bool:
    """Whether a conditional write is done; one whose answer got lost is refused when it is sent again."""
    if not _is_refused(partial(bucket.put, key, content, **conditions)):
        return True
    found = bucket.read(key)
    return found is not None and found.content == content


def _is_refused(ask: Callable[[], object]) -> bool:
    """Whether the server says no to a request, for whatever reason: those that do not know what is asked give many.

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
    """Whether of many who create a key at once one is told that it did, and of many who then swap it, too."""
    created = _won_once(bucket, key, IfNoneMatch="*")
    return created is not None and _won_once(bucket, key, IfMatch=created.tag) is not None


def _won_once(bucket: Bucket, key: str, **condition: str) -> Document | None:
    """What is there after many wrote at once; None where several were told that they did, or not the one who did.

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
    told = [content for content, won in zip(contents, answers, strict=True) if won]
    found = bucket.read(key)
    if answers.count(None) > _WRITERS // 2 or found is None or found.content not in contents:
        return None
    return found if told in ([], [found.content]) else None


def _checks(bucket: Bucket, key: str) -> bool:
    """Whether a content that has another SHA-256 than is sent along is refused, and the right one told later."""
    refused = _is_refused(partial(bucket.call, "put_object", key, Body=b"content", ChecksumSHA256=_sha256(b"another")))
    bucket.put(key, b"content")
    told = bucket.head(key, ChecksumMode="ENABLED").get("ChecksumSHA256")
    return refused and told == _sha256(b"content")


def _server(bucket: Bucket, key: str) -> str:
    """What the server calls itself."""
    return str(bucket.head(key)["ResponseMetadata"]["HTTPHeaders"].get("server", ""))


def _sha256(content: bytes) -> str:
    return base64.b64encode(hashlib.sha256(content).digest()).decode()
