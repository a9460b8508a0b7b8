"""Image check: compares the versions in this container with those of a target.

No library is loaded for that, so that it works while an image is built, where there is no GPU and no driver.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from plansmith.config.targets import Target, is_target_file
from plansmith.errors import EngineError
from plansmith.records.model import Record

_DPKG_SECONDS = 60
_NUMBERS = re.compile(r"\d+(?:\.\d+)*")
_PACKAGE = re.compile(r"(libnvinfer\d+) (\d+(?:\.\d+)*)\S* installed")
_LIBRARY = re.compile(r"libnvinfer\.so\.(\d+\.\d+\.\d+)")
_LIBRARY_FOLDERS = ("usr/lib/*-linux-gnu", "opt/tensorrt/lib", "usr/local/tensorrt/lib")
_TRITON_VERSION = "opt/tritonserver/TRITON_VERSION"
_DALI = "opt/tritonserver/backends/dali/wheel/dali/nvidia/dali/__init__.py"
"""Where Triton's build puts DALI (https://github.com/triton-inference-server/dali_backend/pull/245)."""

_DALI_VERSION = re.compile(r"__version__ = '(\d+(?:\.\d+)*)'")


class InstalledVersion(Record):
    """Installed version and its source; some sources give fewer version parts than others."""

    what: str
    version: str
    where: str


class ComparedVersion(Record):
    """A target's version compared with an installed one.

    `stated`: the target's, empty where it states none; `found` and `where`: empty where nothing is here; `agrees`:
    None where one of the two is missing, and true of a DALI that opens what the target's serialises; `decides`: a
    difference makes it another image.
    """

    what: str
    stated: str
    found: str
    where: str
    agrees: bool | None
    decides: bool


def installed_versions(root: Path = Path("/")) -> tuple[InstalledVersion, ...]:
    """Find the versions of TensorRT, Triton, CUDA, Python and DALI in this container.

    TensorRT's are those of its Debian package (all four numbers), its library and its Python package; CUDA's is what
    NVIDIA's images set as CUDA_VERSION, Triton's the file that lies beside its programs there.

    Args:
        root: below which files are looked for.
    """
    return tuple(_installed_versions(root))


def compare_image(target: Target, installed: tuple[InstalledVersion, ...]) -> tuple[ComparedVersion, ...]:
    """Compare each target version with each installed one; one line if either is missing.

    TensorRT decides where the models run on a GPU, Triton always: CUDA and Python come with them, and what a target
    says of their last number is often inferred.
    """
    stated = {
        "TensorRT": target.tensorrt or "",
        "Triton": target.triton or "",
        "CUDA": target.cuda or "",
        "Python": target.python or "",
        "DALI": target.dali or "",
    }
    deciding = {"Triton", "TensorRT"} if target.device == "gpu" else {"Triton"}
    compared = []
    for component, version in stated.items():
        candidates = [entry for entry in installed if entry.what == component] or [
            InstalledVersion(what=component, version="", where="")
        ]
        compared += [
            ComparedVersion(
                what=component,
                stated=version,
                found=entry.version,
                where=entry.where,
                agrees=_agree(component, version, entry.version) if version and entry.version else None,
                decides=component in deciding,
            )
            for entry in candidates
        ]
    return tuple(compared)


def require_image(target: Target, compared: tuple[ComparedVersion, ...]) -> None:
    """Require that the decisive versions match the target.

    Raises:
        EngineError: it does not, or there is nothing to tell it by.
    """
    tensorrt = [entry for entry in compared if entry.what == "TensorRT" and entry.decides]
    deciding = [entry for entry in compared if entry.decides]
    image = target.images.get(target.device, "")
    if tensorrt and not target.tensorrt:
        found_versions = sorted({entry.found for entry in tensorrt if entry.found})
        raise EngineError(
            f"nothing says which TensorRT {target.name} has; here is {', '.join(found_versions) or 'none'}",
            remedy=f"if this is its image: write the version into {_own_file(target)}, as `tensorrt:`",
        )
    if tensorrt and not any(entry.found for entry in tensorrt):
        raise EngineError(
            f"there is no TensorRT here, and {target.name} has {target.tensorrt}",
            remedy=f"run this in {image}" if image else "run this in the target's image",
        )
    wrong = [entry for entry in deciding if entry.agrees is False]
    if wrong:
        mismatches = "; ".join(
            f"{entry.what} is {entry.found} by {entry.where}, not {_stated(target, entry)}" for entry in wrong
        )
        raise EngineError(
            f"this is not the image of {target.name}: {mismatches}",
            remedy=f"start from {image or 'its image'}; where that is this one, correct {_own_file(target)}",
        )
    if not any(entry.agrees for entry in deciding):
        raise EngineError(
            f"nothing here tells whether this is the image of {target.name}",
            remedy=f"run this in {image}"
            if image
            else "name a target that has an image; `plansmith targets` lists all",
        )


def _installed_versions(root: Path) -> Iterator[InstalledVersion]:
    for package, version in _PACKAGE.findall(_debian_packages()):
        yield InstalledVersion(what="TensorRT", version=version, where=f"Debian package {package}")
    for folder in _LIBRARY_FOLDERS:
        for file in sorted(root.glob(f"{folder}/libnvinfer.so.*")):
            if (named := _LIBRARY.fullmatch(file.name)) is not None:
                yield InstalledVersion(what="TensorRT", version=named[1], where=str(file))
    for component, version, where in (
        ("TensorRT", _python_package("tensorrt"), "Python package tensorrt"),
        ("Triton", _text(root / _TRITON_VERSION), str(root / _TRITON_VERSION)),
        ("CUDA", os.environ.get("CUDA_VERSION", ""), "CUDA_VERSION"),
        ("Python", platform.python_version(), "this Python"),
        ("DALI", _dali(root / _DALI), str(root / _DALI)),
    ):
        if (numbers := _NUMBERS.match(version)) is not None:
            yield InstalledVersion(what=component, version=numbers[0], where=where)


def _debian_packages() -> str:
    """Return a line for each TensorRT runtime package in the Debian or Ubuntu database; empty without one."""
    tool = shutil.which("dpkg-query")
    if tool is None:
        return ""
    form = "--showformat=${Package} ${Version} ${db:Status-Status}\n"
    listed = subprocess.run(
        [tool, "--show", form, "libnvinfer*"], capture_output=True, text=True, timeout=_DPKG_SECONDS, check=False
    )
    return listed.stdout


def _python_package(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _dali(module: Path) -> str:
    version = _DALI_VERSION.search(_text(module))
    return version[1] if version is not None else ""


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _agree(component: str, stated: str, installed: str) -> bool:
    """Whether versions agree as far as both are given.

    For DALI, whether the installed one opens the other's pipelines.
    """
    ours, theirs = ([int(number) for number in version.split(".")] for version in (stated, installed))
    common = min(len(ours), len(theirs))
    if component == "DALI":
        return theirs[0] == ours[0] and theirs[:common] >= ours[:common]
    return theirs[:common] == ours[:common]


def _stated(target: Target, entry: ComparedVersion) -> str:
    return f"{entry.stated} (inferred)" if entry.what.lower() in target.inferred else entry.stated


def _own_file(target: Target) -> str:
    if is_target_file(target.name):
        return target.name
    return f"a copy of it (plansmith targets {target.name} --yaml > ours.yaml)"
