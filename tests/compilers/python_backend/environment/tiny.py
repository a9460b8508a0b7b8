"""Tiny wheels in a folder, which is all that is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from zipfile import ZipFile, ZipInfo

from plansmith.compilers.python_backend.environment.wheels import Platform

ELEVEN, TWELVE = Platform("3.11", "x86_64"), Platform("3.12", "x86_64")


def write_wheel(
    folder: Path,
    name: str,
    number: str = "1.0",
    *,
    needs: Sequence[str] = (),
    tag: str = "py3-none-any",
    files: Mapping[str, str] | None = None,
    programs: Sequence[str] = (),
) -> Path:
    """A wheel with one module of its name, unless files are given; `programs`: the files that may be run."""
    info = f"{name}-{number}.dist-info"
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}", *(f"Requires-Dist: {need}" for need in needs)]
    contents = dict(files) if files is not None else {f"{name}.py": f"VERSION = {number!r}\n"}
    contents |= {
        f"{info}/METADATA": "\n".join([*lines, ""]),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
        f"{info}/RECORD": "",
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{number}-{tag}.whl"
    with ZipFile(path, "w") as archive:
        for place, text in contents.items():
            entry = ZipInfo(place)
            entry.external_attr = (0o755 if place in programs else 0o644) << 16
            archive.writestr(entry, text)
    return path
