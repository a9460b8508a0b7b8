"""The folder of a version that Triton's Python backend loads: the source model, how to load it, and what for.

`model.py` is thin: the model is loaded by the installed plansmith, which `requirements.txt` names with all else that
the Python of the server has to have.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from plansmith.compilers.python_backend.generation_parameters import GENERATES, STREAMS
from plansmith.compilers.python_backend.weights import as_safetensors, is_pickled
from plansmith.config.pipeline import PipelineOptions
from plansmith.config.python import SITE_VARIABLE, TorchCompile
from plansmith.config.spec import DescribedInput
from plansmith.records.engine import Engine
from plansmith.records.model import AxisRange, Component, EngineKind, Precision, Record, Tensor
from plansmith.system.files import link_or_copy

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


class ServedModel(Record):
    """How the model in the folder is loaded, and what becomes of it then.

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
    """Lay out the folder of a version.

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
        options=_told(model),
        toolchain=_versions(),
    )


def _told(model: ServedModel) -> dict[str, str]:
    """What the record says of how it runs."""
    found = {"torch.compile": str(model.torch_compile).lower()}
    if model.generation is not None:
        found |= {GENERATES: "text", STREAMS: str(model.generation.stream).lower()}
    return found


def read_settings(folder: Path) -> ServedModel:
    """How the model of a version's folder is loaded."""
    return ServedModel.model_validate_json((folder / SETTINGS_FILE).read_bytes())


def requirements() -> str:
    """What the Python of a server needs to run such models, in the versions that the gate ran with; NumPy aside."""
    pinned = _versions() | {"numpy": NUMPY}
    return "".join(f"{name}=={number}\n" for name, number in pinned.items())


def _versions() -> dict[str, str]:
    """Of what is installed; without the local part, as in 2.15.0+cu132, which no index knows."""
    found = {}
    for name in _DISTRIBUTIONS:
        with suppress(PackageNotFoundError):
            found[name] = version(name).partition("+")[0]
    return found


def _take_over(file: Path, target: Path, *, lasting: bool) -> None:
    """A second name for a file, or a copy of one that may be written to."""
    if lasting:
        link_or_copy(file.resolve(), target)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, target)
