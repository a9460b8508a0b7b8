"""Packages for another Python: resolved, pinned and installed into a folder by uv."""

from __future__ import annotations

import ast
import base64
import hashlib
import os
import platform
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

import plansmith
from plansmith.config.targets import Target
from plansmith.errors import EnvironmentFault
from plansmith.records.release import PackedDistribution

_UV_VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
}
"""uv's environment variables for settings of pip. On the command line, every user of the machine could read them."""

_DEFAULTS = {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_SYSTEM_CERTS": "1", "UV_CONCURRENT_INSTALLS": "1"}
"""As with pip: the best version of all indexes, the machine's certificates, and of files at one place the same one."""

_TRUE = {"1", "on", "t", "true", "y", "yes"}

_GLIBC = 34
"""2.34: Ubuntu 22.04 (2.35) and 24.04 (2.39), which Triton's images are made from, have a newer one."""

_WHEEL = "Wheel-Version: 1.0\nGenerator: plansmith\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_LEFT_OUT = {"__pycache__"}


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


def platform_of(target: Target) -> Platform:
    """Return the platform of a target's Triton; if its Python version is unknown, that of this machine."""
    machine = platform.machine()
    if target.python is not None:
        return Platform(".".join(target.python.split(".")[:2]), machine)
    name, number = platform.libc_ver()
    own = int(number.split(".")[1]) if name == "glibc" else _GLIBC
    return Platform(f"{sys.version_info.major}.{sys.version_info.minor}", machine, min(own, _GLIBC))


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


def _unusable(line: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"an environment cannot be packed of the requirement {line!r}",
        remedy="name distributions and their versions, as in numpy==1.26.4, or leave the environment to the image",
    )


def installed_versions(requirements: Iterable[Requirement], platform: Platform) -> dict[str, str]:
    """Return the installed versions of requirements and all their dependencies on the platform, where they fit."""
    markers = {"python_version": platform.python, "python_full_version": f"{platform.python}.0"}
    versions, unfit, seen = dict[str, str](), set[str](), set[tuple[str, str]]()
    pending = [(need, "") for need in requirements]
    while pending:
        need, asked_extra = pending.pop()
        name = canonicalize_name(need.name)
        number = _installed(name)
        if not number or (need.marker and not need.marker.evaluate({**markers, "extra": asked_extra})):
            continue
        if not need.specifier.contains(number, prereleases=True):
            unfit.add(name)
            continue
        versions[name] = number
        for extra in {"", *need.extras} - {extra for known, extra in seen if known == name}:
            seen.add((name, extra))
            pending += [(Requirement(line), extra) for line in requires(name) or ()]
    return {name: number for name, number in sorted(versions.items()) if name not in unfit}


def _installed(name: str) -> str:
    """The installed version without its local part, as in 2.15.0+cu132, which no index knows.

    Empty where not installed.
    """
    try:
        return version(name).partition("+")[0]
    except PackageNotFoundError:
        return ""


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


def install_packages(
    requirements: Iterable[Requirement], platform: Platform, versions: Mapping[str, str], folder: Path
) -> tuple[Path, tuple[PackedDistribution, ...]]:
    """Install requirements and all their dependencies.

    Args:
        requirements: what is asked for.
        platform: what for.
        versions: versions of what is brought along; others are the newest that fit.
        folder: takes the packages, and what is needed on the way.

    Returns:
        The folder of the packages, and the distributions in it, sorted by name.

    Raises:
        EnvironmentFault: uv is missing, finds no versions that go together, or cannot get a wheel.
    """
    site, lock, constraints = folder / "site", folder / "pylock.toml", folder / "constraints.txt"
    held = {name: f"{name}=={number}" for name, number in versions.items()}
    if plansmith.__name__ in held:
        held[plansmith.__name__] = f"{plansmith.__name__} @ {write_own_wheel(folder).as_uri()}"
    constraints.write_text("\n".join(held.values()))
    uv = partial(_uv, platform, _pip_settings())
    options = ["-", f"--constraints={constraints}", "--format=pylock.toml", f"--output-file={lock}"]
    uv(map(str, requirements), "compile", *options)
    distributions = tuple(map(_distribution, tomllib.loads(lock.read_text())["packages"]))
    pins = [f"{held.get(one.name, f'{one.name}=={one.version}')} --hash=sha256:{one.sha256}" for one in distributions]
    uv(pins, "install", "--requirements=-", "--no-deps", "--require-hashes", f"--target={site}")
    return site, distributions


def _distribution(package: Mapping[str, Any]) -> PackedDistribution:
    """Read a package of a pylock.toml (PEP 751), which has one wheel: that for the platform."""
    file = package["archive"] if "archive" in package else package["wheels"][0]
    wheel = unquote(file.get("path") or file["url"]).rpartition("/")[2]
    return PackedDistribution(
        name=package["name"], version=package["version"], wheel=wheel, sha256=file["hashes"]["sha256"]
    )


def _uv(platform: Platform, settings: Mapping[str, str], requirements: Iterable[str], *arguments: str) -> None:
    try:
        from uv import find_uv_bin
    except ModuleNotFoundError as error:
        raise EnvironmentFault("uv is not installed", remedy="pip install 'plansmith[compile]'") from error
    options = [
        "--quiet",
        "--no-config",
        "--no-python-downloads",
        "--only-binary=:all:",
        f"--python={sys.executable}",
        f"--python-version={platform.python}",
        f"--python-platform={platform.machine}-manylinux_2_{platform.glibc}",
        *(["--no-index"] if settings.get("no-index", "").lower() in _TRUE else []),
    ]
    from_pip = {variable: settings[name] for name, variable in _UV_VARIABLES.items() if name in settings}
    done = subprocess.run(
        [find_uv_bin(), "pip", *arguments, *options],
        input="\n".join(requirements),
        env=_DEFAULTS | from_pip | os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise EnvironmentFault(
            f"uv could not get the packages for Python {platform.python} on {platform.machine}:\n{done.stderr.strip()}",
            remedy="make such wheels reachable for pip or uv, or name other versions in requirements.txt;"
            " or leave the environment to the image (python: {environment: image})",
        )


def _pip_settings() -> dict[str, str]:
    """Return pip's settings by their names, such as "index-url"; nothing where there is no pip."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    pairs = dict(line.split("=", 1) for line in output.splitlines())
    return {
        key.removeprefix(section): ("," if key.endswith("find-links") else " ").join(ast.literal_eval(value).split())
        for section in ("global.", ":env:.")  # the latter counts more
        for key, value in pairs.items()
        if key.startswith(section)
    }
