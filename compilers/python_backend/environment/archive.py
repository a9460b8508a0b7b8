"""Reproducible archives of installed packages: the same packages give the same bytes."""

from __future__ import annotations

import csv
import gzip
import io
import tarfile
from contextlib import ExitStack
from pathlib import Path

from plansmith.compilers.python_backend.environment.activation import ACTIVATE_FILE, activation_script

_MODIFIED = 315_532_800
"""1980-01-01, the first day that a wheel knows: no time of ours is in the archive."""

_LEVEL = 5
_INSTALLER_FILES = {".lock", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json"}


def write_archive(packages: Path, python: str, path: Path) -> int:
    """Write the `.tar.gz` archive of an environment.

    Entries are sorted, of one time and of nobody; what the installer notes, compiled files and the programs that
    packages bring are not in it, nor in the packages' lists of files, which are shortened.

    Args:
        packages: the folder that they are installed in.
        python: that it is for, such as "3.12".
        path: of the archive.

    Returns:
        What its files take, unpacked.
    """
    files = {file.relative_to(packages).as_posix(): file for file in packages.rglob("*") if _is_packed(file)}
    files = {place: file for place, file in sorted(files.items()) if not place.startswith("bin/")}
    for record in packages.glob("*.dist-info/RECORD"):
        lines = record.read_text(encoding="utf-8").splitlines(keepends=True)
        record.unlink()  # it may be linked to the file in uv's cache
        record.write_text("".join(line for line in lines if next(csv.reader([line]))[0] in files), encoding="utf-8")
    script = activation_script(python).encode()
    activate = _normalized(tarfile.TarInfo(ACTIVATE_FILE))
    activate.size = len(script)
    with ExitStack() as opened:
        raw = opened.enter_context(path.open("wb"))
        stream = opened.enter_context(gzip.GzipFile("", "wb", _LEVEL, raw, mtime=0))
        # A large buffer: the compressor is slow at small pieces.
        buffered = opened.enter_context(io.BufferedWriter(stream, 1 << 20))
        tar = opened.enter_context(tarfile.open(fileobj=buffered, mode="w|", dereference=True))
        tar.addfile(activate, io.BytesIO(script))
        for place, file in files.items():
            tar.add(file, f"lib/python{python}/site-packages/{place}", filter=_normalized)
        return sum(entry.size for entry in tar.getmembers())


def _is_packed(file: Path) -> bool:
    return file.is_file() and file.name not in _INSTALLER_FILES and file.suffix != ".pyc"


def _normalized(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    mode = 0o755 if entry.mode & 0o100 else 0o644
    return entry.replace(mode=mode, mtime=_MODIFIED, uid=0, gid=0, uname="", gname="", deep=False)
