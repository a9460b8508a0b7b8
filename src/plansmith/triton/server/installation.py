"""Triton installation on this machine, and the paths of its parts."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import site
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from plansmith.config.target_names import CPU_SUFFIX
from plansmith.config.targets import Target, is_target_file, require_dali, require_onnxruntime
from plansmith.errors import EnvironmentFault
from plansmith.records.model import Device, EngineKind
from plansmith.system.libraries import require_library
from plansmith.triton.server import environment

SERVER_VARIABLE = "PLANSMITH_TRITONSERVER"
CONTAINER_ROOT = Path("/opt/tritonserver")

RUNNING_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_STUB = "triton_python_backend_stub"
_TOOL_SECONDS = 10


@dataclass(frozen=True)
class Installation:
    """One Triton server on this machine.

    Args:
        binary: the `tritonserver` program.
        library_path: folders that its libraries lie in.
        backends: the folder of its backends.
        caches: the folder of its response caches.
        stub: the process that runs Python models, None where there is none for this Python.
        version: such as "2.51.0", or "" where the installation does not say.
        real_onnxruntime: it has Triton's own ONNX Runtime backend.
        real_tensorrt: it has Triton's TensorRT backend, for which there is no stand-in.
        real_dali: it has Triton's DALI backend.
    """

    binary: Path
    library_path: tuple[Path, ...]
    backends: Path
    caches: Path
    stub: Path | None
    version: str
    real_onnxruntime: bool
    real_tensorrt: bool = False
    real_dali: bool = False

    @property
    def lends_python(self) -> bool:
        """Whether Python models run with plansmith's own Python: the stub is one of several in a wheel."""
        return self.stub is not None and self.backends not in self.stub.parents


def find_installation(location: Path | None = None, *, private: Path | None = None) -> Installation:
    """Find the server: as given, by PLANSMITH_TRITONSERVER, in a container, or in the private folder.

    Args:
        location: a `tritonserver` binary, or a folder that holds `bin/tritonserver` or `pytriton/tritonserver`.
        private: the private folder; the running environment's own by default.

    Raises:
        EnvironmentFault: there is none, or the one that was asked for is none.
    """
    named = os.environ.get(SERVER_VARIABLE)
    if location is not None:
        return _asked_for(location, "was given")
    if named:
        return _asked_for(Path(named), f"is what {SERVER_VARIABLE} says")
    for place in (CONTAINER_ROOT, environment.server_folder(private=private)):
        root = _root_of(place)
        if root is not None:
            return _installation_at(root)
    raise EnvironmentFault(
        "there is no Triton server on this machine",
        remedy=f"plansmith serve-env add <target>, or set {SERVER_VARIABLE} to a tritonserver binary",
    )


def python_library_folder() -> Path:
    """Return the folder of the running Python's shared library, which Triton's Python stub loads.

    Raises:
        EnvironmentFault: this Python has none.
    """
    library = f"libpython{RUNNING_PYTHON}.so.1.0"
    configured = Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib")
    multiarch = configured / (sysconfig.get_config_var("MULTIARCH") or "")
    for folder in (configured, multiarch, Path(sys.base_prefix) / "lib"):
        if (folder / library).exists():
            return folder
    raise EnvironmentFault(
        f"{library} is not in {configured}: Triton cannot run Python models with a Python that has no shared library",
        remedy=f"use a Python built with --enable-shared, or install the system's package libpython{RUNNING_PYTHON}",
    )


def stand_in_site(installation: Installation, target: Target) -> Path | None:
    """Return the site folder of a target's stand-in backend; None if the server has the real backend.

    Raises:
        EnvironmentFault: they are not installed; says how to.
        EngineError: nothing says which ONNX Runtime the target has.
    """
    if installation.real_onnxruntime:
        return None
    return environment.runtime_folder(require_onnxruntime(target).version, target=shlex.quote(target.name))


def dali_site(installation: Installation, target: Target) -> Path | None:
    """Return the site folder of a target's stand-in for Triton's DALI backend; None if the server has the real one.

    Raises:
        EnvironmentFault: they are not installed, or nothing can run them; says what to do.
        EngineError: nothing says which DALI the target has.
    """
    if installation.real_dali:
        return None
    if installation.stub is None:
        raise EnvironmentFault(
            f"{installation.binary} has no DALI backend, and no Python backend for Python {RUNNING_PYTHON} to stand in"
            " for it",
            remedy="use a Triton installation with backends/dali, or write preprocessing: python into the spec",
        )
    return environment.dali_folder(require_dali(target), target=shlex.quote(target.name))


def require_python(installation: Installation, *, torch: bool = True) -> None:
    """Require that a server can run Python models here.

    Args:
        installation: the server.
        torch: they need PyTorch, as parts of a pipeline do not.

    Raises:
        EnvironmentFault: it has no backend for them, or lacks the NumPy that this backend understands, or PyTorch.
    """
    if installation.stub is None:
        raise EnvironmentFault(
            f"{installation.binary} has no Python backend for Python {RUNNING_PYTHON}",
            remedy="use a Triton installation with backends/python, or a Python that its backend knows",
        )
    if not installation.lends_python:
        return
    environment.numpy_folder()
    if torch:
        require_library("torch", "compile", purpose="PyTorch models on this server need it")


def python_site(installation: Installation) -> tuple[Path, ...]:
    """Return the site folders for a server's PyTorch models; none if its own Python has the packages.

    The server of the private folder runs them with the Python that runs plansmith: with its packages, but for NumPy.
    """
    if not installation.lends_python or not environment.has_numpy():
        return ()
    folders = [environment.numpy_folder(), Path(__file__).parents[3], *map(Path, site.getsitepackages())]
    if site.ENABLE_USER_SITE:
        folders.append(Path(site.getusersitepackages()))
    return tuple(dict.fromkeys(folder.resolve() for folder in folders))


def has_gpu(devices: Path = Path("/dev")) -> bool:
    """Whether an NVIDIA GPU is present: by its device file, or else (WSL) by the driver's own tool."""
    if any(re.fullmatch(r"nvidia\d+", file.name) for file in devices.glob("nvidia*")):
        return True
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    try:
        listed = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=_TOOL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listed.returncode == 0 and "GPU " in listed.stdout


def serving_device(installation: Installation, target: Target, engine: EngineKind = EngineKind.ONNXRUNTIME) -> Device:
    """Return the device that a target's models can run on here; a GPU also needs the real backend in the server."""
    real = installation.real_onnxruntime or engine is EngineKind.PYTHON
    return "gpu" if target.device == "gpu" and real and has_gpu() else "cpu"


def require_device(installation: Installation, target: Target, engine: EngineKind = EngineKind.ONNXRUNTIME) -> None:
    """Require that a target's models can run here on the device in their configurations.

    Raises:
        EnvironmentFault: they are for a GPU, and this machine or its server cannot give them one.
    """
    if serving_device(installation, target, engine) == target.device:
        return
    lacks = "the stand-in backend runs models on the CPU only" if has_gpu() else "this machine has no NVIDIA GPU"
    cpu = "FILE.yaml that has devices: [cpu]," if is_target_file(target.name) else f"{target.name}{CPU_SUFFIX}"
    image = target.images.get("gpu")
    named = image if image and "{" not in image else f"the container of {target.name}"  # SageMaker's vary by region
    where = f"in {named}, on a machine with a GPU" if image else "on a machine with a GPU"
    raise EnvironmentFault(
        f"the models are for target {target.name}, with GPU instances, and {lacks}",
        remedy=f"serve them {where}; or compile with --target {cpu} into another --repository",
    )


def require_tensorrt(installation: Installation, target: Target) -> None:
    """Require that a server can load a target's plans here: TensorRT and GPUs have no stand-in.

    Raises:
        EnvironmentFault: it has no TensorRT backend, or this machine has no GPU.
    """
    image = target.images.get("gpu", "NVIDIA's Triton container of the target")
    lacks = [] if installation.real_tensorrt else [f"{installation.binary} has no TensorRT backend"]
    lacks += [] if has_gpu() else ["this machine has no NVIDIA GPU"]
    if lacks:
        raise EnvironmentFault(
            f"a TensorRT plan cannot be loaded here: {' and '.join(lacks)}",
            remedy=f"run this in {image}, on a machine with such a GPU; a compile without this check takes"
            " --no-check-served",
        )


def _asked_for(path: Path, why: str) -> Installation:
    root = _root_of(path)
    if root is None:
        raise EnvironmentFault(
            f"{path} {why}, but there is no Triton server",
            remedy="give a tritonserver binary, or a folder that holds bin/tritonserver or pytriton/tritonserver",
        )
    if not (root / "backends").is_dir():
        raise EnvironmentFault(
            f"{root} has a tritonserver, but no folder `backends` beside it",
            remedy="give the folder of a whole Triton installation",
        )
    return _installation_at(root)


def _root_of(path: Path) -> Path | None:
    """The folder that holds `bin/tritonserver`, if `path` is or leads to one."""
    path = path.absolute()
    roots = (path, path / "pytriton" / "tritonserver", path.parent.parent)
    binaries = (roots[0] / "bin" / "tritonserver", roots[1] / "bin" / "tritonserver", path)
    for root, binary in zip(roots, binaries, strict=True):
        if binary.is_file() and os.access(binary, os.X_OK):
            return root
    return None


def _installation_at(root: Path) -> Installation:
    wheel = root.parent.parent
    stubs = (root / "python_backend_stubs" / RUNNING_PYTHON / _STUB, root / "backends" / "python" / _STUB)
    libraries = (wheel / "nvidia_pytriton.libs", root / "lib")
    stated = root / "TRITON_VERSION"
    return Installation(
        binary=root / "bin" / "tritonserver",
        library_path=tuple(folder for folder in libraries if folder.is_dir()),
        backends=root / "backends",
        caches=root / "caches",
        stub=next((stub for stub in stubs if stub.is_file()), None),
        version=stated.read_text().strip() if stated.is_file() else _wheel_version(wheel),
        real_onnxruntime=(root / "backends" / "onnxruntime" / "libtriton_onnxruntime.so").is_file(),
        real_tensorrt=(root / "backends" / "tensorrt" / "libtriton_tensorrt.so").is_file(),
        real_dali=(root / "backends" / "dali" / "libtriton_dali.so").is_file(),
    )


def _wheel_version(wheel: Path) -> str:
    """The Triton version of a wheel.

    Its own version differs, and the mapping is known only for the one plansmith installs.
    """
    name, _, version = environment.SERVER_REQUIREMENT.partition("==")
    metadata = wheel / f"{name.replace('-', '_')}-{version}.dist-info"
    return environment.TRITON_VERSION if metadata.is_dir() else ""
