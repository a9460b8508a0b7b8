"""Wheels for another Python, fetched through pip, one per distribution that the requirements resolve to."""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.parser import BytesHeaderParser
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import NormalizedName, canonicalize_name, parse_wheel_filename

import plansmith
from plansmith.config.targets import Target
from plansmith.errors import EnvironmentFault

_GLIBC = 34
"""2.34: Ubuntu 22.04 (2.35) and 24.04 (2.39), which Triton's images are made from, have a newer one."""

_OLDEST_GLIBC = 17
_OLD_NAMES = ("manylinux2014", "manylinux2010", "manylinux1")


@dataclass(frozen=True)
class Platform:
    """The platform that packages must run on.

    Args:
        python: such as "3.12".
        machine: such as "x86_64".
        glibc: the newest version of glibc that they may need, without the "2.".
    """

    python: str
    machine: str
    glibc: int = _GLIBC

    def markers(self) -> dict[str, str]:
        """Return the environment marker values of the platform (PEP 508).

        pip takes those of the Python that it runs with, whatever it is asked for. Of the Python's patch release nothing
        is known: as of the first, so that what only the first ones lack is packed, too.
        """
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "linux",
        }

    def pip_flags(self) -> list[str]:
        """Return the pip options to select wheels for the platform only."""
        abi = f"cp{self.python.replace('.', '')}"
        names = [f"manylinux_2_{minor}" for minor in range(self.glibc, _OLDEST_GLIBC - 1, -1)]
        tags = [f"--platform={name}_{self.machine}" for name in (*names, *_OLD_NAMES)]
        abis = [f"--abi={tag}" for tag in (abi, "abi3", "none")]
        return [f"--python-version={self.python}", "--implementation=cp", *abis, *tags]


def platform_of(target: Target) -> Platform:
    """Return the platform of a target's Triton; if its Python version is unknown, that of this machine."""
    machine = platform.machine()
    if target.python is not None:
        return Platform(".".join(target.python.split(".")[:2]), machine)
    name, number = platform.libc_ver()
    own = int(number.split(".")[1]) if name == "glibc" else _GLIBC
    return Platform(f"{sys.version_info.major}.{sys.version_info.minor}", machine, min(own, _GLIBC))


Needs = Callable[[NormalizedName, SpecifierSet], Iterable[str]]
"""The requirements of a distribution of such a version, as its metadata has them; none where none is known."""


def read_requirements(text: str) -> tuple[Requirement, ...]:
    """Parse the lines of a requirements.txt, sorted.

    Raises:
        EnvironmentFault: a line is none, or names an option, a file or an address.
    """
    requirements = []
    for written in text.splitlines():
        line = written.partition("#")[0].strip()
        if not line:
            continue
        try:
            requirement = Requirement(line)
        except InvalidRequirement as error:
            raise _unusable(written) from error
        if requirement.url:
            raise _unusable(written)
        requirements.append(requirement)
    return tuple(sorted(requirements, key=str))


def is_needed(requirement: Requirement, platform: Platform, extras: Iterable[str] = ()) -> bool:
    """Whether a requirement applies to a platform, for a distribution with these extras."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate(platform.markers() | {"extra": extra}) for extra in ("", *extras))


class Closure:
    """Dependency closure of requirements, as far as it is known.

    Args:
        requirements: what is asked for.
        platform: where.
        needs: knows the distributions that there are.

    Attributes:
        specifiers: the versions that all who need a distribution agree on, by its name.
        wanted_by: who needs it first.
    """

    def __init__(self, requirements: Iterable[Requirement], platform: Platform, needs: Needs) -> None:
        self.specifiers: dict[NormalizedName, SpecifierSet] = {}
        self.wanted_by: dict[NormalizedName, str] = {}
        self._platform = platform
        self._needs = needs
        self._extras: dict[NormalizedName, frozenset[str]] = {}
        for requirement in requirements:
            if is_needed(requirement, platform):
                self._add(requirement, "requirements.txt")

    def _add(self, requirement: Requirement, asker: str) -> None:
        name = canonicalize_name(requirement.name)
        previous = self._extras.get(name)
        extras = (previous or frozenset()) | {canonicalize_name(extra) for extra in requirement.extras}
        self.specifiers[name] = self.specifiers.get(name, SpecifierSet()) & requirement.specifier
        self.wanted_by.setdefault(name, asker)
        if previous == extras:
            return
        self._extras[name] = extras
        for line in self._needs(name, self.specifiers[name]):
            needed = Requirement(line)
            if is_needed(needed, self._platform, sorted(extras)):
                self._add(needed, name)


def installed_versions(requirements: Iterable[Requirement], platform: Platform) -> dict[str, str]:
    """Return the installed versions of all dependencies of requirements, if they fit the platform too."""
    closure = Closure(requirements, platform, _installed_needs)
    versions = {name: _installed(name) for name in closure.specifiers}
    return {
        name: number for name, number in sorted(versions.items()) if number and _fits(number, closure.specifiers[name])
    }


def require_agreement(closure: Closure, versions: Mapping[NormalizedName, str]) -> None:
    """Require that every distribution has a version that satisfies all requirements.

    Raises:
        EnvironmentFault: one has not.
    """
    for name, specifier in closure.specifiers.items():
        if not _fits(versions[name], specifier):
            raise EnvironmentFault(
                f"what is asked for does not go together: {name} is {versions[name]}, and has to be {specifier}",
                remedy="change the versions that requirements.txt names, or install others that agree",
            )


def _fits(number: str, specifier: SpecifierSet) -> bool:
    return specifier.contains(number, prereleases=True)


def _installed(name: str) -> str:
    """The installed version without its local part, as in 2.15.0+cu132, which no index knows.

    Empty where not installed.
    """
    try:
        return version(name).partition("+")[0]
    except PackageNotFoundError:
        return ""


def _installed_needs(name: NormalizedName, specifier: SpecifierSet) -> list[str]:
    """The requirements of the installed version; none where it does not fit, as another may have other requirements."""
    number = _installed(name)
    return (requires(name) or []) if number and _fits(number, specifier) else []


def _unusable(line: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"an environment cannot be packed of the requirement {line!r}",
        remedy="name distributions and their versions, as in numpy==1.26.4, or leave the environment to the image",
    )


_WHEEL = "Wheel-Version: 1.0\nGenerator: plansmith\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_LEFT_OUT = {"__pycache__"}


def write_own_wheel(folder: Path) -> Path:
    """Write the wheel of plansmith itself; reproducible from the same files."""
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
    """Yield the files of the running package with their paths in a site-packages folder, sorted."""
    package = Path(plansmith.__file__).parent
    for folder, folders, names in os.walk(package, followlinks=True):  # some of a checkout's folders are links
        folders[:] = sorted(set(folders) - _LEFT_OUT)
        for name in sorted(names):
            path = Path(folder, name)
            yield path.relative_to(package.parent).as_posix(), path


def own_digest() -> str:
    """Return the SHA-256 of the package's own files."""
    digest = hashlib.sha256()
    for place, file in own_files():
        digest.update(f"{place}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def _hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


_OWN = canonicalize_name(plansmith.__name__)
_TOLD_LINES, _TOLD_NAMES = 8, 3


@dataclass(frozen=True)
class Wheel:
    """A wheel and its metadata."""

    path: Path
    name: NormalizedName
    version: str
    needs: tuple[str, ...]

    def sha256(self) -> str:
        """Return the SHA-256 of the file."""
        with self.path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()


def collect_wheels(
    requirements: Iterable[Requirement],
    platform: Platform,
    versions: Mapping[str, str],
    folder: Path,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Wheel]:
    """Collect the wheels of requirements and all their dependencies, sorted by name.

    pip resolves for the Python that it runs with, so that it is only asked for what is known to be needed: the
    metadata of each wheel say what comes next.

    Args:
        requirements: what is asked for.
        platform: what for.
        versions: versions of what is brought along; others are the newest that fit.
        folder: takes the wheels.
        progress: told what is being got.

    Raises:
        EnvironmentFault: pip does not get one, or they do not go together.
    """
    roots, wheels = tuple(requirements), dict[NormalizedName, Wheel]()
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        closure = Closure(roots, platform, partial(_needs, wheels))
        missing = [name for name in sorted(closure.specifiers) if name not in wheels]
        if not wheels:  # all that is likely to be needed at once: each call of pip takes its time
            missing = sorted({*missing, *map(canonicalize_name, versions)})
        if not missing:
            require_agreement(closure, {name: wheel.version for name, wheel in wheels.items()})
            return [wheels[name] for name in sorted(closure.specifiers)]
        progress(f"getting {', '.join(missing)} for Python {platform.python}")
        if _OWN in missing:
            write_own_wheel(folder)
        pins = [_pinned(name, closure, versions) for name in missing if name != _OWN]
        if pins:
            _download(pins, platform, folder)
        wheels = {wheel.name: wheel for wheel in map(read_wheel, sorted(folder.glob("*.whl")))}


def _needs(wheels: Mapping[NormalizedName, Wheel], name: NormalizedName, _: SpecifierSet) -> tuple[str, ...]:
    return wheels[name].needs if name in wheels else ()


def _pinned(name: NormalizedName, closure: Closure, versions: Mapping[str, str]) -> str:
    """The requirement for pip: pinned to the held version where that fits."""
    specifier = closure.specifiers.get(name, SpecifierSet())
    fits = name in versions and specifier.contains(versions[name], prereleases=True)
    return f"{name}=={versions[name]}" if fits else f"{name}{specifier}"


def _download(requirements: list[str], platform: Platform, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    flags = ["--no-deps", "--only-binary=:all:", *platform.pip_flags(), f"--dest={folder}"]
    done = subprocess.run([*command, *flags, *requirements], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines()
        messages = [line for line in lines if line.startswith("ERROR")] or lines  # not its warnings about places
        subject = (
            ", ".join(requirements) if len(requirements) <= _TOLD_NAMES else f"one of {len(requirements)} distributions"
        )
        raise EnvironmentFault(
            "\n  ".join(
                [
                    f"pip could not get {subject} for Python {platform.python} on {platform.machine}:",
                    *messages[-_TOLD_LINES:],
                ]
            ),
            remedy="make such wheels reachable for pip; or leave the environment to the image"
            " (python: {environment: image})",
        )


def read_wheel(path: Path) -> Wheel:
    """Read a wheel and its metadata."""
    name, number, _, _ = parse_wheel_filename(path.name)
    with ZipFile(path) as archive:
        (metadata,) = (
            member for member in archive.namelist() if member.count("/") == 1 and member.endswith(".dist-info/METADATA")
        )
        headers = BytesHeaderParser().parsebytes(archive.read(metadata))
    return Wheel(path, name, str(number), tuple(map(str, headers.get_all("Requires-Dist", []))))
