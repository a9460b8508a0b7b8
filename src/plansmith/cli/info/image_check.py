"""Whether the container that this runs in is the one that a target describes: versions here beside the target's.

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

from plansmith.config.target.targets import Target, is_target_file
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
    """One version that is here, and what tells it; some places tell fewer numbers than others."""

    what: str
    version: str
    where: str


class ComparedVersion(Record):
    """A version of a target beside one that is here.

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
    """Versions of TensorRT, Triton, CUDA, Python and DALI in this container.

    TensorRT's are those of its Debian package (all four numbers), its library and its Python package; CUDA's is what
    NVIDIA's images set as CUDA_VERSION, Triton's the file that lies beside its programs there.

    Args:
        root: below which files are looked for.
    """
    return tuple(_found(root))


def compare_image(target: Target, found: tuple[InstalledVersion, ...]) -> tuple[ComparedVersion, ...]:
    """Each version of a target beside each that is here; one line where either is missing.

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
    for what, version in stated.items():
        here = [one for one in found if one.what == what] or [InstalledVersion(what=what, version="", where="")]
        compared += [
            ComparedVersion(
                what=what,
                stated=version,
                found=one.version,
                where=one.where,
                agrees=_agree(what, version, one.version) if version and one.version else None,
                decides=what in deciding,
            )
            for one in here
        ]
    return tuple(compared)


def require_image(target: Target, compared: tuple[ComparedVersion, ...]) -> None:
    """See that what decides agrees with the target.

    Raises:
        EngineError: it does not, or there is nothing to tell it by.
    """
    tensorrt = [one for one in compared if one.what == "TensorRT" and one.decides]
    deciding = [one for one in compared if one.decides]
    image = target.images.get(target.device, "")
    if tensorrt and not target.tensorrt:
        here = sorted({one.found for one in tensorrt if one.found})
        raise EngineError(
            f"nothing says which TensorRT {target.name} has; here is {', '.join(here) or 'none'}",
            remedy=f"if this is its image: write the version into {_own_file(target)}, as `tensorrt:`",
        )
    if tensorrt and not any(one.found for one in tensorrt):
        raise EngineError(
            f"there is no TensorRT here, and {target.name} has {target.tensorrt}",
            remedy=f"run this in {image}" if image else "run this in the target's image",
        )
    wrong = [one for one in deciding if one.agrees is False]
    if wrong:
        told = "; ".join(f"{one.what} is {one.found} by {one.where}, not {_stated(target, one)}" for one in wrong)
        raise EngineError(
            f"this is not the image of {target.name}: {told}",
            remedy=f"start from {image or 'its image'}; where that is this one, correct {_own_file(target)}",
        )
    if not any(one.agrees for one in deciding):
        raise EngineError(
            f"nothing here tells whether this is the image of {target.name}",
            remedy=f"run this in {image}"
            if image
            else "name a target that has an image; `plansmith targets` lists all",
        )


def _found(root: Path) -> Iterator[InstalledVersion]:
    for package, version in _PACKAGE.findall(_debian_packages()):
        yield InstalledVersion(what="TensorRT", version=version, where=f"Debian package {package}")
    for folder in _LIBRARY_FOLDERS:
        for file in sorted(root.glob(f"{folder}/libnvinfer.so.*")):
            if (named := _LIBRARY.fullmatch(file.name)) is not None:
                yield InstalledVersion(what="TensorRT", version=named[1], where=str(file))
    for what, version, where in (
        ("TensorRT", _python_package("tensorrt"), "Python package tensorrt"),
        ("Triton", _text(root / _TRITON_VERSION), str(root / _TRITON_VERSION)),
        ("CUDA", os.environ.get("CUDA_VERSION", ""), "CUDA_VERSION"),
        ("Python", platform.python_version(), "this Python"),
        ("DALI", _dali(root / _DALI), str(root / _DALI)),
    ):
        if (numbers := _NUMBERS.match(version)) is not None:
            yield InstalledVersion(what=what, version=numbers[0], where=where)


def _debian_packages() -> str:
    """A line for each package of TensorRT's runtime that Debian's or Ubuntu's database knows, empty without one."""
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


def _agree(what: str, stated: str, found: str) -> bool:
    """Whether versions are the same as far as both tell; of DALI, whether that here opens the other's pipelines."""
    ours, theirs = ([int(number) for number in version.split(".")] for version in (stated, found))
    common = min(len(ours), len(theirs))
    if what == "DALI":
        return theirs[0] == ours[0] and theirs[:common] >= ours[:common]
    return theirs[:common] == ours[:common]


def _stated(target: Target, one: ComparedVersion) -> str:
    return f"{one.stated} (inferred)" if one.what.lower() in target.inferred else one.stated


def _own_file(target: Target) -> str:
    if is_target_file(target.name):
        return target.name
    return f"a copy of it (plansmith targets {target.name} --yaml > ours.yaml)"
