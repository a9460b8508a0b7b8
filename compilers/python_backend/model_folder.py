"""Version folder for Triton's Python backend: the source model, how to load it, and its purpose.

`model.py` is thin: the model is loaded by the installed plansmith, which `requirements.txt` names with all else that
the Python of the server has to have.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from plansmith.compilers.python_backend.generation_parameters import GENERATES, STREAMS
from plansmith.config.engine_options import SITE_VARIABLE, TorchCompile
from plansmith.config.pipeline import PipelineOptions
from plansmith.config.spec import DescribedInput
from plansmith.errors import SourceError, first_line
from plansmith.records.engine import Engine
from plansmith.records.model import AxisRange, Component, EngineKind, Precision, Record, Tensor
from plansmith.system.files import link_or_copy

if TYPE_CHECKING:
    import torch


_PICKLE, _INDEX = "pytorch_model*.bin", "pytorch_model.bin.index.json"

MODEL_FILE = "model.py"
SETTINGS_FILE = "plansmith.json"
REQUIREMENTS_FILE = "requirements.txt"
SOURCE_FOLDER = "source"
NUMPY = "1.26.4"
"""Triton's images bring NumPy 1 for their Python backend (`numpy<2` in the server repository's compose.py as of 2026,
server issue 8301), and the server of the check has one that answers with empty tensors under NumPy 2."""

_DISTRIBUTIONS = (
    *("plansmith", "torch", "transformers", "tokenizers", "sentencepiece"),
    *("timm", "torchvision", "pillow", "safetensors"),
)
PROLOGUE = f'''"""The PyTorch model of this version in Triton's Python backend; requirements.txt names what it needs.

{SITE_VARIABLE} names folders with Python packages, separated by ":", that go before all others: the process that
Triton starts for this file ignores PYTHONPATH. Where its own Python has the packages, nothing has to be set.
"""

import os
import site
import sys

known = list(sys.path)
for folder in filter(None, os.environ.get("{SITE_VARIABLE}", "").split(":")):
    site.addsitedir(folder)
sys.path[:] = [folder for folder in sys.path if folder not in known] + known

'''
"""How a model.py begins, so that it finds its packages."""

_IMPORT = """\
from plansmith.compilers.python_backend.{module} import TritonPythonModel  # noqa: E402 - found in the folders above

__all__ = ["TritonPythonModel"]
"""


def is_pickled(file: Path) -> bool:
    """Whether a file of a model directory has pickled weights, or is the index of such files."""
    return file.match(_PICKLE) or file.name == _INDEX


def as_safetensors(source: Path, files: Sequence[Path], out: Path) -> list[Path]:
    """Convert every pickled weight file of a model directory to safetensors, under the name that loaders expect.

    What lies beside safetensors in the same folder is left out: those are read first.

    Args:
        source: the model directory.
        files: what it consists of.
        out: the folder that takes what is written, in folders as in the directory.

    Returns:
        The files that were written.

    Raises:
        SourceError: a file holds something else than tensors.
    """
    ready = {file.parent for file in files if file.suffix == ".safetensors"}
    written = []
    for file in files:
        if is_pickled(file) and file.parent not in ready:
            target = out / file.relative_to(source).with_name(_renamed(file.name))
            target.parent.mkdir(parents=True, exist_ok=True)
            if file.name == _INDEX:
                index = json.loads(file.read_text())
                index["weight_map"] = {name: _renamed(place) for name, place in index["weight_map"].items()}
                target.write_text(json.dumps(index))
            else:
                _convert(file, target)
            written.append(target)
    return written


def _renamed(name: str) -> str:
    return name.replace("pytorch_model", "model").replace(".bin", ".safetensors")


def _convert(file: Path, target: Path) -> None:
    import torch
    from safetensors.torch import save_file

    try:
        checkpoint = torch.load(file, map_location="cpu", weights_only=True)
        weights = _apart({name: tensor for name, tensor in checkpoint.items() if isinstance(tensor, torch.Tensor)})
    except Exception as error:
        raise SourceError(
            f"{file.name} cannot be read as pickled weights: {first_line(error)}",
            remedy="save the model again, as safetensors",
        ) from error
    save_file(weights, target, metadata={"format": "pt"})


def _apart(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Give every tensor its own memory: safetensors cannot store shared tensors or views."""
    places: set[int] = set()
    result = {}
    for name, tensor in weights.items():
        place = tensor.untyped_storage().data_ptr()
        result[name] = tensor.contiguous().clone() if place in places else tensor.contiguous()
        places.add(place)
    return result


class ServedModel(Record):
    """Settings of a served model: how it is loaded and run.

    `scheme`, `trust_remote_code` and `task`: as in `model.SourceModel`; `described` and `wanted`: what the spec says
    about inputs and outputs; `inputs` and `outputs`: what it takes and gives, whatever it computes in; `axes`: the
    ranges of all axes that it is fed along, those that are one size or another axis here included; `generation`: what
    the spec says of a model that is served as one that generates text, None where its outputs are.
    """

    scheme: Literal["hf", "timm"]
    trust_remote_code: bool
    task: str | None
    described: dict[str, DescribedInput]
    wanted: tuple[str, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    axes: dict[str, AxisRange]
    precision: Precision
    torch_compile: TorchCompile
    generation: PipelineOptions | None = None


def write_folder(model: ServedModel, source: Path, files: Sequence[Path], out: Path, *, lasting: bool) -> Engine:
    """Write the version folder.

    Args:
        model: what is served.
        source: the folder of the source model.
        files: what it consists of.
        out: an empty folder.
        lasting: nobody ever writes into the source's files, so that they need no copy.

    Raises:
        SourceError: pickled weights that cannot be read.
    """
    placed = as_safetensors(source, files, out / SOURCE_FOLDER)
    for file in files:
        if not is_pickled(file):
            target = out / SOURCE_FOLDER / file.relative_to(source)
            _take_over(file, target, lasting=lasting)
            placed.append(target)
    (out / SETTINGS_FILE).write_text(model.model_dump_json(indent=1) + "\n")
    (out / REQUIREMENTS_FILE).write_text(requirements())
    module = "model" if model.generation is None else "generator_model"
    (out / MODEL_FILE).write_text(PROLOGUE + _IMPORT.format(module=module))
    names = sorted(path.relative_to(out).as_posix() for path in placed)
    component = Component(
        file=MODEL_FILE,
        external_files=(SETTINGS_FILE, REQUIREMENTS_FILE, *names),
        inputs=model.inputs,
        outputs=model.outputs,
        opset=0,
        ir_version=0,
    )
    return Engine(
        kind=EngineKind.PYTHON,
        components={"model": component},
        precision=model.precision,
        options=_run_parameters(model),
        toolchain=_versions(),
    )


def _run_parameters(model: ServedModel) -> dict[str, str]:
    """The model parameters that record how it runs."""
    options = {"torch.compile": str(model.torch_compile).lower()}
    if model.generation is not None:
        options |= {GENERATES: "text", STREAMS: str(model.generation.stream).lower()}
    return options


def read_settings(folder: Path) -> ServedModel:
    """Read the settings of a version folder."""
    return ServedModel.model_validate_json((folder / SETTINGS_FILE).read_bytes())


def requirements() -> str:
    """Return the Python requirements of such models, in the versions used by the accuracy gate; without NumPy."""
    pinned = _versions() | {"numpy": NUMPY}
    return "".join(f"{name}=={number}\n" for name, number in pinned.items())


def _versions() -> dict[str, str]:
    """The installed versions, without the local part, as in 2.15.0+cu132, which no index knows."""
    versions = {}
    for name in _DISTRIBUTIONS:
        with suppress(PackageNotFoundError):
            versions[name] = version(name).partition("+")[0]
    return versions


def _take_over(file: Path, target: Path, *, lasting: bool) -> None:
    """Link a file, or copy one that may be modified."""
    if lasting:
        link_or_copy(file.resolve(), target)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, target)
