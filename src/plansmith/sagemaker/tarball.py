"""Archives (.tar.gz) with the same bytes wherever they are made, as a stream that needs no memory.

Entries are sorted, with one time, owner and mode. The gzip around them stores and does not compress: zlib, zlib-ng and
others make different bytes of the same content, and weights hardly shrink, while a container that loads a model waits
for every byte that has to be inflated. So the size of an archive is known before it is made.

Sources: RFC 1951, 3.2.4 (stored blocks), RFC 1952 (gzip), and pax of POSIX.1-2001 for names and sizes that ustar lacks.
"""

from __future__ import annotations

import hashlib
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath

from plansmith.errors import RepositoryError
from plansmith.triton.repository.renamed import Content

_MODIFIED = 315_532_800
"""1980-01-01: there are programs that doubt 1970."""

_FILE_MODE, _FOLDER_MODE = 0o644, 0o755
_CHUNK_BYTES = 2**20
_BLOCK_BYTES = 0xFFFF
_BLOCK_HEADER = struct.Struct("<BHH")
_GZIP_HEADER = b"\x1f\x8b\x08\0" + b"\0\0\0\0" + b"\0\xff"  # deflate, no name, no time, no system
_GZIP_TRAILER = struct.Struct("<II")


def archive_size(entries: Mapping[str, Content], folders: frozenset[str] = frozenset()) -> int:
    """The size of an archive in bytes; arguments as for `archive_stream`."""
    tar = sum(len(header) + (_padded(content.size) if content else 0) for header, content in _headers(entries, folders))
    tar = _filled(tar + 2 * tarfile.BLOCKSIZE)
    blocks = -(-tar // _BLOCK_BYTES)
    return len(_GZIP_HEADER) + tar + blocks * _BLOCK_HEADER.size + _GZIP_TRAILER.size


def archive_stream(
    entries: Mapping[str, Content],
    folders: frozenset[str] = frozenset(),
    progress: Callable[[int], None] = lambda _: None,
) -> Iterator[bytes]:
    """The bytes of an archive, chunk by chunk.

    Args:
        entries: the files by their paths in it; the folders that they lie in come by themselves.
        folders: further ones, which may be empty.
        progress: told how many bytes of contents each chunk had.

    Raises:
        RepositoryError: a file is no longer what its digest says, or cannot be read.
    """
    checksum, size, pending = 0, 0, bytearray()
    yield _GZIP_HEADER
    for chunk in _tar(entries, folders, progress):
        checksum, size = zlib.crc32(chunk, checksum), size + len(chunk)
        pending += chunk
        whole = (len(pending) - 1) // _BLOCK_BYTES * _BLOCK_BYTES  # something is left for the last block
        if whole > 0:
            yield _stored_blocks(pending[:whole], last=False)
            del pending[:whole]
    yield _stored_blocks(pending, last=True)
    yield _GZIP_TRAILER.pack(checksum, size & 0xFFFFFFFF)


def _stored_blocks(content: bytearray, *, last: bool) -> bytes:
    pieces = []
    for start in range(0, len(content), _BLOCK_BYTES):
        piece = content[start : start + _BLOCK_BYTES]
        is_final = last and start + _BLOCK_BYTES >= len(content)
        pieces += [_BLOCK_HEADER.pack(is_final, len(piece), len(piece) ^ 0xFFFF), bytes(piece)]
    return b"".join(pieces)


def _tar(entries: Mapping[str, Content], folders: frozenset[str], progress: Callable[[int], None]) -> Iterator[bytes]:
    size = 0
    for header, content in _headers(entries, folders):
        yield header
        size += len(header)
        if content is not None:
            for chunk in _chunks(content):
                yield chunk
                progress(len(chunk))
            yield bytes(_padded(content.size) - content.size)
            size += _padded(content.size)
    yield bytes(_filled(size + 2 * tarfile.BLOCKSIZE) - size)


def _headers(entries: Mapping[str, Content], folders: frozenset[str]) -> Iterator[tuple[bytes, Content | None]]:
    """The header of each entry, sorted by path, with its content; None for a folder."""
    parents = {str(parent) for path in (*entries, *folders) for parent in PurePosixPath(path).parents} - {"."}
    for path in sorted({*entries, *folders, *parents}, key=lambda one: PurePosixPath(one).parts):
        content = entries.get(path)
        header = tarfile.TarInfo(path)
        header.mtime = _MODIFIED
        header.mode = _FOLDER_MODE if content is None else _FILE_MODE
        if content is None:
            header.type = tarfile.DIRTYPE
        else:
            header.size = content.size
        yield header.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"), content


def _chunks(content: Content) -> Iterator[bytes]:
    """A file's content, compared with its digest as it is read."""
    if isinstance(content.source, bytes):
        yield content.source
        return
    digest, remaining = hashlib.sha256(), content.size
    try:
        with content.source.open("rb") as stream:
            while chunk := stream.read(min(_CHUNK_BYTES, remaining)):
                digest.update(chunk)
                remaining -= len(chunk)
                yield chunk
            is_whole = not remaining and not stream.read(1)
    except OSError as error:
        raise RepositoryError(
            f"cannot read {content.source}: {error.strerror}", remedy="see that it is there and readable"
        ) from error
    if not is_whole or digest.hexdigest() != content.sha256:
        raise RepositoryError(
            f"{content.source} is damaged: it is not what was published",
            remedy="name another version, or compile the model again",
        )


def _padded(size: int) -> int:
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def _filled(size: int) -> int:
    return -(-size // tarfile.RECORDSIZE) * tarfile.RECORDSIZE
