"""A wheel of the running plansmith, which no package index has: the very files that the gate ran with."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import plansmith

_WHEEL = "Wheel-Version: 1.0\nGenerator: plansmith\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_LEFT_OUT = {"__pycache__"}


def write_own_wheel(folder: Path) -> Path:
    """Write it; the same files give the same bytes."""
    installed = distribution(plansmith.__name__)
    number = installed.version
    info = f"{plansmith.__name__}-{number}.dist-info"
    contents = {place: file.read_bytes() for place, file in own_files()}
    metadata = installed.read_text("METADATA") or installed.read_text("PKG-INFO") or ""  # the latter of a checkout
    contents |= {f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": _WHEEL.encode()}
    lines = [f"{place},sha256={_hash(content)},{len(content)}" for place, content in sorted(contents.items())]
    contents[f"{info}/RECORD"] = ("\n".join([*lines, f"{info}/RECORD,,"]) + "\n").encode()
    path = folder / f"{plansmith.__name__}-{number}-py3-none-any.whl"
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for place, content in sorted(contents.items()):
            archive.writestr(ZipInfo(place), content, ZIP_DEFLATED)
    return path


def own_files() -> Iterator[tuple[str, Path]]:
    """The files of the running package and their places in a folder with packages, sorted."""
    package = Path(plansmith.__file__).parent
    for folder, folders, names in os.walk(package, followlinks=True):  # some of a checkout's folders are links
        folders[:] = sorted(set(folders) - _LEFT_OUT)
        for name in sorted(names):
            path = Path(folder, name)
            yield path.relative_to(package.parent).as_posix(), path


def own_digest() -> str:
    """SHA-256 of all of them."""
    digest = hashlib.sha256()
    for place, file in own_files():
        digest.update(f"{place}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def _hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
