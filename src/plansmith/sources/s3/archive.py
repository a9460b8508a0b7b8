"""Archives of models (.tar.gz), extracted as what they are: files of strangers that may mean harm.

Only plain files and folders are taken out, under plain names below the folder. Their number and size are bounded, and
so is what a header may hold, as a few packed bytes become any number of them.
"""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from plansmith.errors import SourceError
from plansmith.sources.remote_files import (
    MOST_FILES,
    Progress,
    format_bytes,
    most_bytes,
    printable,
    require_space,
    safe_path,
    too_many,
)

_PIECE_BYTES = 1 << 20
_PACK_AGAIN = "pack the model's files alone: tar czf model.tar.gz -C FOLDER ."


class _TooLarge(Exception):
    """There is more in the archive, beside its files, than any has."""


class _TarStream(io.RawIOBase):
    """The decompressed bytes, no more of them at once than a piece: headers are read in one go, and have any size."""

    def __init__(self, packed: IO[bytes], most: int) -> None:
        self._stream = gzip.GzipFile(fileobj=packed)
        self._most = most

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _PIECE_BYTES:
            raise _TooLarge
        return self._stream.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if offset > self._most:
            raise _TooLarge
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def drain(self) -> None:
        """Read to the end, where the checksum of the whole is."""
        while self.read(_PIECE_BYTES):
            if self.tell() > self._most:
                raise _TooLarge


def extract(archive: Path, folder: Path, *, of: str, progress: Progress) -> Path:
    """Extract an archive's files; returns the folder that they are in, which may be the only one in the archive.

    Args:
        archive: a tar file, packed with gzip.
        folder: is made.
        of: what it is called in errors.
        progress: told how far it is.

    Raises:
        SourceError: it is damaged, larger than is allowed, or holds what no model consists of.
        EnvironmentFault: there is no room.
    """
    folder.mkdir()
    total = archive.stat().st_size
    done = 0
    most = most_bytes()
    with archive.open("rb") as packed, _errors(of):
        # Beside its content, a file has a header, padding, and at times a long name.
        stream = _TarStream(packed, most + MOST_FILES * 16_384)
        with tarfile.open(fileobj=stream, mode="r:") as opened:
            for member in _files(opened, of):
                done += member.size
                require_space(done, folder, of, written=done - member.size)
                _extract_file(opened, member, folder, of)
                progress(f"unpacking, {format_bytes(done)}", packed.tell() / total)
        stream.drain()
    inside = list(folder.iterdir())
    if not inside:
        raise SourceError(f"{of} holds no files", remedy=_PACK_AGAIN)
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else folder


def _files(opened: tarfile.TarFile, of: str) -> Iterator[tarfile.TarInfo]:
    """The members that are files, one after the other; none of another kind is passed over in silence."""
    for number, member in enumerate(opened, start=1):
        if number > MOST_FILES:
            raise too_many(of)
        if member.isdir():
            continue
        if not member.isreg() or member.issparse():
            raise _harmful(f"{printable(member.name)!r} is a {_kind(member)}", of)
        if member.size < 0:
            raise _damaged(of, "a file has a size below 0")
        yield member


def _extract_file(opened: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, of: str) -> None:
    """Write one file."""
    name = member.name.removeprefix("./")
    path = safe_path(name)
    if path is None:
        raise _harmful(f"{printable(member.name)!r} leads out of its folder", of)
    source = opened.extractfile(member)
    assert source is not None
    target = folder / path
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as out:
            shutil.copyfileobj(source, out, _PIECE_BYTES)
    except (FileExistsError, NotADirectoryError) as error:
        raise _harmful(f"{printable(member.name)!r} is there twice", of) from error
    if target.stat().st_size != member.size:
        raise _damaged(of, "it ends before its last file does")


def _kind(member: tarfile.TarInfo) -> str:
    if member.issym() or member.islnk():
        return "link"
    return "device" if member.isdev() else "file of another kind"


@contextmanager
def _errors(of: str) -> Iterator[None]:
    """What the libraries say of archives that are none, in our words."""
    try:
        yield
    except _TooLarge as error:
        raise _harmful("it holds more than it may, beside its files", of) from error
    except (
        tarfile.TarError,
        EOFError,
        zlib.error,
        gzip.BadGzipFile,
        ValueError,
        OverflowError,
        RecursionError,
    ) as error:
        raise _damaged(of, str(error) or type(error).__name__) from error


def _damaged(of: str, why: str) -> SourceError:
    return SourceError(
        f"{of} is no whole .tar.gz: {printable(why)}", remedy=f"see that it was sent whole, or {_PACK_AGAIN}"
    )


def _harmful(why: str, of: str) -> SourceError:
    return SourceError(f"{of} is not unpacked: {why}", remedy=f"do not use it if others made it; else {_PACK_AGAIN}")
