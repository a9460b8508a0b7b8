"""Serving environment: the private folder with a Triton server and its runtimes.

Triton's PyPI wheel wants NumPy 1, and its Python backend answers with empty tensors under NumPy 2; so neither the
server nor the runtimes may enter the environment that plansmith runs in. They lie beside it instead, in
`<sys.prefix>/share/plansmith` or where PLANSMITH_SERVE_ENV says, each in a folder of its own that appears by one
rename or not at all.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.errors import EnvironmentFault
from plansmith.system.files import fsync_tree, move_into_place, remove_folder, staging_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FOLDER_VARIABLE = "PLANSMITH_SERVE_ENV"
SERVER_REQUIREMENT = "nvidia-pytriton==0.7.0"
SERVER_FOLDER = "pytriton-0.7.0"
TRITON_VERSION = "2.51.0"
NUMPY_REQUIREMENT = "numpy==1.26.4"
NUMPY_FOLDER = "numpy-1.26.4"
_NEWEST_PYTHON = (3, 12)
"""NumPy 1 has no wheels for newer ones."""

_FIRST_DALI_FOR_CUDA_13 = (1, 51, 2)
"""Older ones are for CUDA 12 alone. Either runs where there is no GPU, too."""

_FIRST_DALI_ON_PYPI = (1, 53)
"""Of older ones PyPI has a package without files, which gets the wheel from NVIDIA's own index."""

_RUNTIME_PREFIX = "onnxruntime-"
_DALI_PREFIX = "dali-"
_STAGING = ".staging"


@dataclass(frozen=True)
class InstalledPart:
    """An installed part of the private folder, complete.

    Args:
        folder: where it lies.
        onnxruntime: the version of a runtime; None for all else.
        bytes: what it takes on the disk.
        dali: the version of a DALI; None for all else.
    """

    folder: Path
    onnxruntime: str | None
    bytes: int
    dali: str | None = None


def private_folder() -> Path:
    """Return the private folder of the running environment, or the one that the environment variable sets."""
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named).absolute() if named else Path(sys.prefix) / "share" / "plansmith"


def staging_place(*, private: Path | None = None) -> Path:
    """Return the staging folder for installing and deleting parts; a killed process may leave some there."""
    return (private or private_folder()) / _STAGING


def server_folder(*, private: Path | None = None) -> Path:
    """Return the folder where `install_server` unpacks the server's wheel, whether it exists or not."""
    return (private or private_folder()) / SERVER_FOLDER


def install_server(progress: Callable[[str], None], *, private: Path | None = None) -> Path:
    """Unpack Triton's wheel into the private folder, once.

    Args:
        progress: takes one line of text for each thing that happens.
        private: the private folder; the running environment's own by default.

    Returns:
        The folder that holds the wheel's files.

    Raises:
        EnvironmentFault: pip could not get or unpack the wheel.
    """
    return _install(server_folder(private=private), ["--no-deps", SERVER_REQUIREMENT], progress)


def install_runtime(onnxruntime_version: str, progress: Callable[[str], None], *, private: Path | None = None) -> Path:
    """Install ONNX Runtime with a NumPy compatible with the server's Python backend, once for each version.

    Args:
        onnxruntime_version: such as "1.23.2".
        progress: takes one line of text for each thing that happens.
        private: the private folder; the running environment's own by default.

    Returns:
        The folder to put on `sys.path`.

    Raises:
        EnvironmentFault: pip could not get or install the packages.
    """
    target = _runtime_path(onnxruntime_version, private)
    return _install(target, [f"onnxruntime=={onnxruntime_version}", NUMPY_REQUIREMENT], progress)


def install_numpy(progress: Callable[[str], None], *, private: Path | None = None) -> Path:
    """Install only the NumPy compatible with the server's Python backend, once; as `install_runtime`.

    Python models that find their packages in the environment of plansmith, which has another, take it from here.
    """
    return _install((private or private_folder()) / NUMPY_FOLDER, ["--no-deps", NUMPY_REQUIREMENT], progress)


def numpy_folder(*, private: Path | None = None) -> Path:
    """Return the folder that `install_numpy` created.

    Raises:
        EnvironmentFault: there is none yet.
    """
    folder = (private or private_folder()) / NUMPY_FOLDER
    if not has_numpy(private=private):
        raise EnvironmentFault(
            f"the NumPy that Python models need on the server here is not installed: {folder} does not exist",
            remedy="plansmith serve-env add",
        )
    return folder


def has_numpy(*, private: Path | None = None) -> bool:
    """Whether `install_numpy` has created its folder."""
    return ((private or private_folder()) / NUMPY_FOLDER).is_dir()


def runtime_folder(onnxruntime_version: str, *, target: str = "<target>", private: Path | None = None) -> Path:
    """Return the folder that `install_runtime` created for this version; `target` is named in the error's remedy.

    Raises:
        EnvironmentFault: there is none yet.
    """
    folder = _runtime_path(onnxruntime_version, private)
    if not folder.is_dir():
        raise EnvironmentFault(
            f"ONNX Runtime {onnxruntime_version} is not installed for serving: {folder} does not exist",
            remedy=f"plansmith serve-env add {target}",
        )
    return folder


def has_runtime(onnxruntime_version: str, *, private: Path | None = None) -> bool:
    """Whether `install_runtime` has created a folder for this version."""
    return _runtime_path(onnxruntime_version, private).is_dir()


def remove_runtime(onnxruntime_version: str, *, private: Path | None = None) -> None:
    """Delete what `install_runtime` created for this version, atomically."""
    folder = _runtime_path(onnxruntime_version, private)
    remove_folder(folder, staging_place(private=private))


def install_dali(dali_version: str, progress: Callable[[str], None], *, private: Path | None = None) -> Path:
    """Install NVIDIA DALI with a NumPy compatible with the server's Python backend; as `install_runtime`."""
    numbers = tuple(map(int, dali_version.split(".")))
    distribution = "nvidia-dali-cuda130" if numbers >= _FIRST_DALI_FOR_CUDA_13 else "nvidia-dali-cuda120"
    requirements = [f"{distribution}=={dali_version}", NUMPY_REQUIREMENT]
    try:
        return _install(_dali_path(dali_version, private), requirements, progress)
    except EnvironmentFault as fault:
        if numbers >= _FIRST_DALI_ON_PYPI:
            raise
        raise EnvironmentFault(
            f"{fault.message}\nPyPI has no wheel of DALI {dali_version}: its package gets that from NVIDIA's own index",
            remedy="make NVIDIA's package index reachable for pip, or write preprocessing: python into the spec",
        ) from fault


def dali_folder(dali_version: str, *, target: str = "<target>", private: Path | None = None) -> Path:
    """Return the folder that `install_dali` created for this version; `target` is named in the error's remedy.

    Raises:
        EnvironmentFault: there is none yet.
    """
    folder = _dali_path(dali_version, private)
    if not folder.is_dir():
        raise EnvironmentFault(
            f"DALI {dali_version} is not installed: {folder} does not exist",
            remedy=f"plansmith serve-env add {target} --dali, or write preprocessing: python into the spec",
        )
    return folder


def has_dali(dali_version: str, *, private: Path | None = None) -> bool:
    """Whether `install_dali` has created a folder for this version."""
    return _dali_path(dali_version, private).is_dir()


def remove_dali(dali_version: str, *, private: Path | None = None) -> None:
    """Delete what `install_dali` created for this version, atomically."""
    remove_folder(_dali_path(dali_version, private), staging_place(private=private))


def installed_parts(*, private: Path | None = None) -> list[InstalledPart]:
    """Return the installed server and runtimes, sorted by name."""
    place = private or private_folder()
    folders = [f for f in place.iterdir() if f.is_dir() and not f.name.startswith(".")] if place.is_dir() else []
    return [
        InstalledPart(
            folder,
            _version_of(folder, _RUNTIME_PREFIX),
            sum(file.lstat().st_size for file in folder.rglob("*") if not file.is_dir()),
            _version_of(folder, _DALI_PREFIX),
        )
        for folder in sorted(folders)
    ]


def _runtime_path(version: str, private: Path | None) -> Path:
    return (private or private_folder()) / f"{_RUNTIME_PREFIX}{version}"


def _dali_path(version: str, private: Path | None) -> Path:
    return (private or private_folder()) / f"{_DALI_PREFIX}{version}"


def _version_of(folder: Path, prefix: str) -> str | None:
    return folder.name.removeprefix(prefix) if folder.name.startswith(prefix) else None


def _install(target: Path, requirements: Sequence[str], progress: Callable[[str], None]) -> Path:
    if target.is_dir():
        progress(f"{target} is there already")
        return target
    if sys.version_info[:2] > _NEWEST_PYTHON:
        raise EnvironmentFault(
            f"Triton's wheel needs NumPy 1, which has no wheels for Python {sys.version_info[0]}.{sys.version_info[1]}",
            remedy="install it for Python 3.11 or 3.12, or set PLANSMITH_TRITONSERVER to a tritonserver binary",
        )
    _require_writable(target.parent)
    progress(f"installing {' '.join(requirements)} into {target}")
    with staging_folder(staging_place(private=target.parent)) as staged:
        unpacked = staged / target.name
        _pip_install(unpacked, requirements)
        fsync_tree(unpacked)
        try:
            move_into_place(unpacked, target)
        except OSError:
            if not target.is_dir():
                raise
            progress(f"another process installed {target} meanwhile")
    progress(f"installed {target}")
    return target


def _require_writable(place: Path) -> None:
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
    else:
        if os.access(place, os.W_OK):
            return
        reason = "it cannot be written"
    raise EnvironmentFault(
        f"nothing can be installed into {place}: {reason}",
        remedy=f"set {FOLDER_VARIABLE} to a folder that you can write, for this command and all later ones",
    )


def _pip_install(target: Path, requirements: Sequence[str]) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
    done = subprocess.run(
        [*command, "--target", str(target), *requirements], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        output = "\n".join((done.stdout + done.stderr).strip().splitlines()[-8:])
        raise EnvironmentFault(
            f"pip could not install {' '.join(requirements)}:\n{output}",
            remedy="make the packages reachable for pip, then plansmith serve-env add <target>",
        )
