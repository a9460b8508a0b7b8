"""Reproducible wheel archives: the same wheels give the same bytes."""

from __future__ import annotations

import gzip
import io
import stat
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from zipfile import ZipFile, ZipInfo

from plansmith.compilers.python_backend.environment.activation import ACTIVATE_FILE, activation_script
from plansmith.compilers.python_backend.environment.wheels import Wheel
from plansmith.errors import EnvironmentFault

_MODIFIED = 315_532_800
"""1980-01-01, the first day that a wheel knows: no time of ours is in the archive."""

_LEVEL = 5
_SITE_SCHEMES = {"purelib", "platlib"}
_PLAIN, _PROGRAM = 0o644, 0o755


@dataclass(frozen=True)
class _Content:
    """The content of one file: a member of a wheel, or given bytes."""

    archive: ZipFile | None
    info: ZipInfo | None
    data: bytes = b""

    @property
    def size(self) -> int:
        return self.info.file_size if self.info is not None else len(self.data)

    @property
    def mode(self) -> int:
        """The file mode: executable where the wheel marks it so."""
        mode = self.info.external_attr >> 16 if self.info is not None else 0
        return _PROGRAM if mode & stat.S_IXUSR else _PLAIN


def write_archive(wheels: Sequence[Wheel], python: str, path: Path) -> int:
    """Write the `.tar.gz` archive of an environment.

    Entries are sorted, of one time and of nobody; what pip notes when it installs, compiled files and the programs that
    packages bring are not in it.

    Args:
        wheels: sorted by name; where two have a file at one place, the later one's counts, as with pip.
        python: that it is for, such as "3.12".
        path: of the archive.

    Returns:
        What its files take, unpacked.

    Raises:
        EnvironmentFault: a wheel holds a path that leads out of it.
    """
    site = f"lib/python{python}/site-packages"
    with ExitStack() as opened:
        contents = {ACTIVATE_FILE: _Content(None, None, activation_script(python).encode())}
        for wheel in wheels:
            archive = opened.enter_context(ZipFile(wheel.path))
            contents |= {f"{site}/{place}": _Content(archive, info) for place, info in _placed(wheel, archive)}
        raw = opened.enter_context(path.open("wb"))
        stream = opened.enter_context(gzip.GzipFile("", "wb", _LEVEL, raw, mtime=0))
        # A large buffer: the compressor is slow at small pieces.
        buffered = opened.enter_context(io.BufferedWriter(stream, 1 << 20))
        tar = opened.enter_context(tarfile.open(fileobj=buffered, mode="w|", format=tarfile.PAX_FORMAT))
        for place, content in sorted(contents.items()):
            _add(tar, place, content)
    return sum(content.size for content in contents.values())


def _placed(wheel: Wheel, archive: ZipFile) -> Iterator[tuple[str, ZipInfo]]:
    """Yield the files of a wheel, each with its path among the installed packages."""
    for info in archive.infolist():
        place = PurePosixPath(info.filename)
        if place.is_absolute() or ".." in place.parts:
            raise EnvironmentFault(
                f"{wheel.path.name} holds {info.filename}, which leads out of it",
                remedy="get the wheel anew from an index that you trust",
            )
        if info.is_dir() or place.suffix == ".pyc":
            continue
        if place.parts[0].endswith(".data"):
            if place.parts[1] not in _SITE_SCHEMES:
                continue  # programs, headers, manual pages
            place = PurePosixPath(*place.parts[2:])
        yield place.as_posix(), info


def _add(tar: tarfile.TarFile, place: str, content: _Content) -> None:
    entry = tarfile.TarInfo(place)
    entry.size, entry.mode, entry.mtime = content.size, content.mode, _MODIFIED
    if content.archive is None or content.info is None:
        tar.addfile(entry, io.BytesIO(content.data))
        return
    with content.archive.open(content.info) as stream:
        tar.addfile(entry, stream)
