"""What Triton fills in of a configuration that does not say it all, by the files that lie there.

The rules are those of AutoCompleteBackendFields in src/model_config_utils.cc of
github.com/triton-inference-server/core; what backends fill in beyond them they read from the model itself. Platforms
and file of PyTorch's AOTInductor are those of src/constants.h and pull request 484 of that repository.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

ENSEMBLE = "ensemble"


@dataclass(frozen=True)
class _Known:
    """A backend that Triton tells by its files: name, file, platform, and whether its file may be a folder."""

    backend: str
    file: str
    platform: str = ""
    may_be_folder: bool = True


# In the order in which Triton tries them.
_KNOWN = (
    _Known("tensorflow", "model.savedmodel", "tensorflow_savedmodel"),
    _Known("tensorflow", "model.graphdef", "tensorflow_graphdef", may_be_folder=False),
    _Known("tensorrt", "model.plan", "tensorrt_plan", may_be_folder=False),
    _Known("onnxruntime", "model.onnx", "onnxruntime_onnx"),
    _Known("openvino", "model.xml"),
    _Known("pytorch", "model.pt", "pytorch_libtorch", may_be_folder=False),
    _Known("pytorch", "model.pt", "libtorch", may_be_folder=False),
    _Known("pytorch", "model.pt2", "torch_aoti", may_be_folder=False),
    _Known("python", "model.py"),
)
_PYTHON_RUNTIME = "model.py"
PLATFORMS = {known.platform: known.backend for known in _KNOWN if known.platform}
"""The platforms that Triton knows beside "ensemble", and the backend of each."""


@dataclass(frozen=True)
class Completed:
    """`backend`, `platform` and `default_model_filename` as Triton completes them; empty where it cannot."""

    backend: str
    platform: str
    model_file: str


def complete(name: str, folder: Path, config: pb.ModelConfig | None) -> Completed:
    """Fill in what a configuration leaves open.

    Args:
        name: of the model.
        folder: of the model.
        config: what it says; None where there is none.
    """
    backend, platform, file = (
        (config.backend, config.platform, config.default_model_filename) if config is not None else ("", "", "")
    )
    if platform == ENSEMBLE:
        return Completed(backend, platform, file)
    if not backend:
        known = _told_by(platform, file) or (_found_in(folder) if not platform and not file else None)
        backend = known.backend if known is not None else ""
        if known is not None and known.platform:
            platform = platform or known.platform
    if not (backend or platform or file):
        _, dot, backend = name.partition(".")
        return Completed(backend, "", f"model.{backend}" if dot else "")
    defaults = [known for known in _KNOWN if known.backend == backend]
    told = [known for known in defaults if known.platform == platform]
    fitting = told or [known for known in defaults if known.file == file] or defaults
    if not fitting:
        return Completed(backend, platform, file)
    if config is not None and config.runtime == _PYTHON_RUNTIME and backend == "pytorch":
        return Completed(backend, platform or fitting[0].platform, file)
    return Completed(backend, platform or fitting[0].platform, file or fitting[0].file)


def folders_of(folder: Path) -> list[Path]:
    """The folders in a folder in Triton's order, that of the bytes of their names; none where it cannot be read."""
    try:
        return sorted((one for one in folder.iterdir() if one.is_dir()), key=lambda one: os.fsencode(one.name))
    except OSError:
        return []


def _told_by(platform: str, file: str) -> _Known | None:
    return next((k for k in _KNOWN if (k.platform and k.platform == platform) or k.file == file), None)


def _found_in(folder: Path) -> _Known | None:
    """What the first folder of a model holds; Triton looks into no other."""
    folders = folders_of(folder)
    if not folders:
        return None
    for known in _KNOWN:
        file = folders[0] / known.file
        if os.path.lexists(file) and (known.may_be_folder or not file.is_dir()):
            return known
    return None
