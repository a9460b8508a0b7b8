"""Objects on their way here: pieces at once, the whole compared with its SHA-256."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from plansmith.stores.backend.object_store import Moved, untold
from plansmith.stores.backend.s3.thread_pool import TransferPool
from plansmith.system.aws.s3.bucket import Bucket
from plansmith.system.files import fsync_path, storage_errors

_PIECE_BYTES = 16 << 20


def fetch(bucket: Bucket, lanes: TransferPool, key: str, path: Path, sha256: str, moved: Moved) -> None:
    """Write an object's content to a file, as `Objects.fetch`."""
    held = bucket.find(key)
    if held is None:
        raise bucket.lost(key)
    with storage_errors(path.parent):
        try:
            with path.open("wb") as out:
                lanes.run(_jobs(bucket, key, held.bytes, out.fileno(), moved))
            _require_whole(bucket, key, path, sha256)
            fsync_path(path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def sha256_of(bucket: Bucket, key: str, moved: Moved = untold) -> str:
    """The SHA-256 of an object's content, read in one go."""
    held = bucket.find(key)
    if held is None:
        raise bucket.lost(key)
    digest = hashlib.sha256()
    for piece in bucket.stream(key, 0, held.bytes):
        digest.update(piece)
        moved(len(piece))
    return digest.hexdigest()


def _require_whole(bucket: Bucket, key: str, path: Path, sha256: str) -> None:
    with path.open("rb") as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != sha256:
            raise bucket.damaged(key)


def _jobs(bucket: Bucket, key: str, size: int, out: int, moved: Moved) -> Iterator[Callable[[], None]]:
    """Each writes one piece of an object to its place in a file."""
    for first in range(0, size, _PIECE_BYTES):
        end = min(first + _PIECE_BYTES, size)
        yield partial(_write_piece, bucket, key, (first, end), out, moved)


def _write_piece(bucket: Bucket, key: str, span: tuple[int, int], out: int, moved: Moved) -> None:
    at, end = span
    for piece in bucket.stream(key, at, end):
        os.pwrite(out, piece, at)
        at += len(piece)
        moved(len(piece))
