"""Small releases that hold a known amount of memory or fail in a known way, and the command beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.config.engine_options import SITE_VARIABLE
from plansmith.triton.repository.repository import ModelRepository
from plansmith.triton.server.installation import Installation

from ..support.cli.in_process import InProcess
from ..support.sagemaker.releases import publish_ensemble, publish_onnx, publish_python
from ..support.triton.installed import installation, site

__all__ = ["installation", "site"]

MIB = 2**20
BLOCK_BYTES = 24 * MIB
"""What each copy of `block` holds, besides its process."""

_PROGRAM = f"""
import os, sys
sys.path[:0] = os.environ[{SITE_VARIABLE!r}].split(":")
import numpy as np
import triton_python_backend_utils as triton

class TritonPythonModel:
    def initialize(self, arguments):
        self.name = arguments["model_name"]
        {{initialize}}

    def execute(self, requests):
        return [self.answer(len(triton.get_input_tensor_by_name(one, "x").as_numpy())) for one in requests]

    def answer(self, rows):
        {{answer}}
        three = triton.Tensor("three", np.full((rows, 3), 1, np.float32))
        return triton.InferenceResponse([triton.Tensor("whole", np.ones((rows, 1), np.int64)), three])
"""


def _program(initialize: str = "pass", answer: str = "pass") -> str:
    return _PROGRAM.format(initialize=initialize, answer=answer)


@pytest.fixture(scope="session")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of small releases, which any Triton can load."""
    folder = tmp_path_factory.mktemp("capacity")
    repository = ModelRepository(folder / "repository")
    publish_python(repository, folder, "block", _program(f"self.block = np.ones({BLOCK_BYTES}, np.uint8)"))
    kill = "import signal; 'copy3' in self.name and os.kill(os.getppid(), signal.SIGKILL)"
    publish_python(repository, folder, "deadly", _program(kill))
    publish_python(repository, folder, "faulty", _program("assert 'copy3' not in self.name, 'no weights'"))
    hang = "import time; 'copy2' in self.name and time.sleep(3600)"
    publish_python(repository, folder, "hanging", _program(answer=hang))
    publish_python(repository, folder, "wrong", _program(answer="rows += 5 * ('copy2' in self.name)"))
    publish_onnx(repository, folder, "onnx")
    publish_ensemble(repository, folder, "whole")
    publish_ensemble(repository, folder, "script", script=True)
    return folder / "repository"


@pytest.fixture
def command(
    releases: Path,
    installation: Installation,
    site: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> InProcess:
    """The command line beside the releases; the ONNX Runtime of the tests stands in for the target's."""
    assert installation.binary.is_file()
    monkeypatch.setattr("plansmith.triton.server.needs.stand_in_site", lambda *_: site)
    (tmp_path / "artifacts").mkdir()
    (tmp_path / "artifacts" / "repository").symlink_to(releases)
    return InProcess(tmp_path, monkeypatch, capfd)
