"""Wheels for another Python, got through pip, one for each distribution that requirements bring along."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from email.parser import BytesHeaderParser
from functools import partial
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import NormalizedName, canonicalize_name, parse_wheel_filename

import plansmith
from plansmith.compilers.python_backend.environment.own_wheel import write_own_wheel
from plansmith.compilers.python_backend.environment.platform import Platform
from plansmith.compilers.python_backend.environment.requirements import Closure, require_agreement
from plansmith.errors import EnvironmentFault

_OWN = canonicalize_name(plansmith.__name__)
_TOLD_LINES, _TOLD_NAMES = 8, 3


@dataclass(frozen=True)
class Wheel:
    """One wheel and what its metadata say of it."""

    path: Path
    name: NormalizedName
    version: str
    needs: tuple[str, ...]

    def sha256(self) -> str:
        """Of the file."""
        with self.path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()


def collect_wheels(
    requirements: Iterable[Requirement],
    platform: Platform,
    held: Mapping[str, str],
    folder: Path,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Wheel]:
    """Get the wheels of all that requirements bring along, sorted by name.

    pip resolves for the Python that it runs with, so that it is only asked for what is known to be needed: the
    metadata of each wheel say what comes next.

    Args:
        requirements: what is asked for.
        platform: what for.
        held: versions of what is brought along; others are the newest that fit.
        folder: takes the wheels.
        progress: told what is being got.

    Raises:
        EnvironmentFault: pip does not get one, or they do not go together.
    """
    roots, found = tuple(requirements), dict[NormalizedName, Wheel]()
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        closure = Closure(roots, platform, partial(_needs, found))
        missing = [name for name in sorted(closure.specifiers) if name not in found]
        if not found:  # all that is likely to be needed at once: each call of pip takes its time
            missing = sorted({*missing, *map(canonicalize_name, held)})
        if not missing:
            require_agreement(closure, {name: wheel.version for name, wheel in found.items()})
            return [found[name] for name in sorted(closure.specifiers)]
        progress(f"getting {', '.join(missing)} for Python {platform.python}")
        if _OWN in missing:
            write_own_wheel(folder)
        asked = [_pinned(name, closure, held) for name in missing if name != _OWN]
        if asked:
            _download(asked, platform, folder)
        found = {wheel.name: wheel for wheel in map(read_wheel, sorted(folder.glob("*.whl")))}


def _needs(found: Mapping[NormalizedName, Wheel], name: NormalizedName, _: SpecifierSet) -> tuple[str, ...]:
    return found[name].needs if name in found else ()


def _pinned(name: NormalizedName, closure: Closure, held: Mapping[str, str]) -> str:
    """What pip is asked for: the version that is held where it fits."""
    specifier = closure.specifiers.get(name, SpecifierSet())
    fits = name in held and specifier.contains(held[name], prereleases=True)
    return f"{name}=={held[name]}" if fits else f"{name}{specifier}"


def _download(asked: list[str], platform: Platform, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    flags = ["--no-deps", "--only-binary=:all:", *platform.pip_flags(), f"--dest={folder}"]
    done = subprocess.run([*command, *flags, *asked], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines()
        told = [line for line in lines if line.startswith("ERROR")] or lines  # not its warnings about places
        what = ", ".join(asked) if len(asked) <= _TOLD_NAMES else f"one of {len(asked)} distributions"
        raise EnvironmentFault(
            "\n  ".join(
                [
                    f"pip could not get {what} for Python {platform.python} on {platform.machine}:",
                    *told[-_TOLD_LINES:],
                ]
            ),
            remedy="make such wheels reachable for pip; or leave the environment to the image"
            " (python: {environment: image})",
        )


def read_wheel(path: Path) -> Wheel:
    """A wheel, and what its metadata say."""
    name, number, _, _ = parse_wheel_filename(path.name)
    with ZipFile(path) as archive:
        (metadata,) = (one for one in archive.namelist() if one.count("/") == 1 and one.endswith(".dist-info/METADATA"))
        headers = BytesHeaderParser().parsebytes(archive.read(metadata))
    return Wheel(path, name, str(number), tuple(map(str, headers.get_all("Requires-Dist", []))))
