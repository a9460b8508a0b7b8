"""Front ends of SageMaker on this machine, with the models that the client is asked in its other tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ....support.sagemaker.front_end import FrontEnd, front_end
from ....support.servers.aws_server import aws
from .. import raw_models, served

if TYPE_CHECKING:
    import onnx

    from plansmith.triton.server.installation import Installation

__all__ = ["aws"]

MODELS = ("tiny", "echo", "moody", "shout", "classes", "pieces", "heavy")
"""Each is an archive of its own; `pipe` asks two others, which lie beside it."""

HEAVY_CONFIG = """
backend: "python"
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }
instance_group [ { kind: KIND_CPU } ]
"""
HEAVY = """
class TritonPythonModel:
    def execute(self, requests):
        error = pb_utils.TritonError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return [pb_utils.InferenceResponse(error=error) for _ in requests]
"""


@pytest.fixture(scope="session")
def archives(
    tmp_path_factory: pytest.TempPathFactory,
    site: Path,
    config: str,
    graph: Callable[[int | str], onnx.ModelProto],
    write_model: Callable[[Path, str, str, onnx.ModelProto | None], Path],
) -> Path:
    """A folder with the unpacked archive of each model, under the model's name."""
    models = tmp_path_factory.mktemp("models")
    write_model(models, "tiny", config, graph("n"))
    served.write_echo(models, site)
    served.write_moody(models, site)
    raw_models.write_raw_models(models, site)
    served.write_python_model(models, "heavy", HEAVY_CONFIG, HEAVY, site)
    folder = tmp_path_factory.mktemp("archives")
    for archive, members in {**{name: (name,) for name in MODELS}, "pipe": ("pipe", "shout", "vectors")}.items():
        for member in members:
            shutil.copytree(models / member, folder / archive / member)
    return folder


@pytest.fixture(scope="session")
def multi_model(
    archives: Path, installation: Installation, site: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FrontEnd]:
    """A multi-model endpoint with all models loaded."""
    with front_end(None, installation, tmp_path_factory.mktemp("log") / "multi.log", site=site) as running:
        for name in (*MODELS, "pipe"):
            assert running.load(name, archives / name, target_model=name).status == 200
        yield running


@pytest.fixture(scope="session")
def single_model(
    archives: Path, installation: Installation, site: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FrontEnd]:
    """An endpoint of one model, the ensemble `pipe`."""
    environment = {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "pipe"}
    log = tmp_path_factory.mktemp("log") / "single.log"
    with front_end(archives / "pipe", installation, log, environment, site) as running:
        yield running


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts, which take no time."""
    recorded: list[float] = []
    monkeypatch.setattr("plansmith.triton.client.sagemaker.client._sleep", recorded.append)
    return recorded
