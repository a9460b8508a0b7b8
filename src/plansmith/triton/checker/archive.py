"""Repository archives such as SageMaker's model.tar.gz, extracted as untrusted files."""

from __future__ import annotations

import lzma
import os
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, Self

from plansmith.errors import RepositoryError, first_line
from plansmith.formatting import format_bytes

MOST_ENTRIES = 100_000
MOST_BYTES = 64 * 2**30
MOST_TIMES_LARGER = 200
"""Than the archive itself: weights hardly shrink, and what unpacks to more than that is made to fill a disk."""

_FREELY = 64 * 2**20
_KEPT_FREE = 2**30
_KEPT_FREE_SHARE = 0.1  # of a small disk, such as a tmpfs
_LONGEST_HEADER = 2**20
_PIECE = 2**20
_GZIP = b"\x1f\x8b"
_REMEDY = "make it again from the folder of the repository: tar -C REPOSITORY -hczf model.tar.gz ."

READ_ARCHIVES = (".tar.gz", ".tgz", ".tar")
_ACTIVATE = "bin/activate"
_PYTHON = re.compile(r"lib/python(3\.\d+)/")
_MOST_BYTES = 256 << 20
"""Unpacked; environments of several GiB are not read through, which takes minutes."""


@contextmanager
def unpacked(path: Path, place: Path | None = None) -> Iterator[Path]:
    """Extract an archive (.tar.gz, .tgz, .tar) to a temporary folder for the block.

    Args:
        path: of the archive.
        place: where the folder is made; where temporary files are when None.

    Raises:
        RepositoryError: it is no archive, or has what no repository has: paths that lead out of it, links that do,
            devices, or more than fits.
    """
    with tempfile.TemporaryDirectory(prefix="plansmith-check-", dir=place) as scratch:
        folder = Path(scratch, "repository")
        folder.mkdir()
        try:
            _unpack(path, folder)
        except (tarfile.TarError, EOFError, zlib.error, ValueError, RecursionError) as error:
            raise _refused(path, f"it is no whole archive: {first_line(error)}") from error
        except OSError as error:
            reason = error.strerror or first_line(error)
            raise RepositoryError(
                f"cannot unpack {path}: {reason}", remedy="see that it can be read, and that there is room in TMPDIR"
            ) from error
        yield folder


class BoundedHeader(tarfile.TarInfo):
    """A tar header whose names and fields are limited in size: the library reads such headers whole into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read a header."""
        entry = super().frombuf(buf, encoding, errors)
        if not (entry.isfile() or entry.isdir() or entry.issym() or entry.islnk()) and entry.size > _LONGEST_HEADER:
            raise tarfile.ReadError(f"a header of {entry.size:,} bytes")
        return entry


def _unpack(path: Path, folder: Path) -> None:
    most = min(MOST_BYTES, max(_FREELY, path.stat().st_size * MOST_TIMES_LARGER))
    total, links = 0, list[tuple[Path, str]]()
    with path.open("rb") as stream:
        mode: Literal["r|gz", "r|"] = "r|gz" if stream.read(len(_GZIP)) == _GZIP else "r|"
        stream.seek(0)
        with tarfile.open(fileobj=stream, mode=mode, tarinfo=BoundedHeader) as archive:
            for count, member in enumerate(archive, 1):
                if count > MOST_ENTRIES:
                    raise _refused(path, f"it has more than {MOST_ENTRIES:,} entries")
                place = folder / _inside(path, member.name)
                if member.isdir():
                    _make_folder(path, place)
                elif member.issym():
                    links.append((place, member.linkname))
                elif member.islnk():
                    _link_again(path, folder, place, member.linkname)
                elif member.isreg():
                    total += member.size
                    _require_room(path, folder, member.size, total, most)
                    _write(archive, member, path, place)
                else:
                    raise _refused(path, f"{member.name} is neither a file nor a folder nor a link")
    for place, target in links:
        _link(path, folder, place, target)
    for place, target in links:
        _require_inside(path, folder, place, target)


def _inside(path: Path, name: str) -> PurePosixPath:
    """Return a member's path, which must be relative and stay inside the folder."""
    place = PurePosixPath(name)
    if place.is_absolute() or ".." in place.parts:
        raise _refused(path, f"{name} would lie outside of it")
    return place


def _require_room(path: Path, folder: Path, size: int, total: int, most: int) -> None:
    """Require enough disk space for one more file, whose size is already part of the total."""
    if total > most:
        raise _refused(path, f"it unpacks to more than {format_bytes(most)}")
    disk = shutil.disk_usage(folder)
    reserve = min(_KEPT_FREE, int(disk.total * _KEPT_FREE_SHARE))
    if disk.free - size < reserve:
        raise RepositoryError(
            f"{path} does not fit: {format_bytes(disk.free)} are left in {folder.parent.parent},"
            f" of which {format_bytes(reserve)} stay free",
            remedy="set TMPDIR to a folder with more room, or unpack it yourself and name the folder",
        )


def _make_folder(path: Path, place: Path) -> None:
    try:
        place.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise _refused(path, f"{place.name} is in it as a file and as a folder") from error


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path, place: Path) -> None:
    _make_folder(path, place.parent)
    if place.is_dir():
        raise _refused(path, f"{place.name} is in it as a file and as a folder")
    source = archive.extractfile(member)
    assert source is not None
    with source, place.open("wb") as out:
        shutil.copyfileobj(source, out, _PIECE)


def _link_again(path: Path, folder: Path, place: Path, name: str) -> None:
    """Create a hard link to a file unpacked before: tar stores files that share their data this way."""
    target = folder / _inside(path, name)
    if not target.is_file():
        raise _refused(path, f"{place.relative_to(folder)} is a link to {name}, which is not before it")
    _make_folder(path, place.parent)
    place.unlink(missing_ok=True)
    os.link(target, place)


def _link(path: Path, folder: Path, place: Path, target: str) -> None:
    """Create a symbolic link, once no further file is written that could pass through it."""
    _require_inside(path, folder, place.parent, target)
    _make_folder(path, place.parent)
    if place.exists() or place.is_symlink():
        raise _refused(path, f"{place.relative_to(folder)} is in it more than once")
    place.symlink_to(target)
    _require_inside(path, folder, place, target)


def _require_inside(path: Path, folder: Path, place: Path, target: str) -> None:
    """Require that a path stays inside the folder; a link that does at first may not once others are created."""
    # Unlike Path.resolve, realpath takes links that lead in a circle for what they are: places where nothing is.
    real = Path(os.path.realpath(place))
    if PurePosixPath(target).is_absolute() or not real.is_relative_to(os.path.realpath(folder)):
        raise _refused(path, f"{place.relative_to(folder)} is a link to {target}, outside of it")


def _refused(path: Path, why: str) -> RepositoryError:
    return RepositoryError(f"{path} is not unpacked: {why}", remedy=_REMEDY)


@dataclass(frozen=True)
class Packed:
    """Result of an archive scan.

    Args:
        problem: what is wrong, in words that follow the name of the archive; empty where nothing is.
        pythons: that it has packages for, such as "3.12"; none where the look ended before.
    """

    problem: str
    pythons: frozenset[str] = frozenset()


def look_into(path: Path) -> Packed:
    """Scan an archive's contents up to a size limit; an unread part is no problem."""
    pythons, is_activated, total_bytes = set[str](), False, 0
    try:
        with tarfile.open(path, "r|*", tarinfo=BoundedHeader) as archive:
            for entry in archive:
                place = entry.name.removeprefix("./")
                is_activated = is_activated or place == _ACTIVATE
                if (python_match := _PYTHON.match(f"{place}/")) is not None:
                    pythons.add(python_match[1])
                total_bytes += tarfile.BLOCKSIZE + entry.size
                if (is_activated and pythons) or total_bytes > _MOST_BYTES:
                    return Packed("", frozenset(pythons))
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError, RecursionError) as error:
        return Packed(f"is no archive that Triton unpacks: {first_line(error)}")
    except OSError as error:
        return Packed(f"cannot be read: {error.strerror or first_line(error)}")
    return Packed("" if is_activated else f"has no {_ACTIVATE}, which Triton runs first", frozenset(pythons))
