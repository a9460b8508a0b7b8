"""Models with inputs that do not begin with the batch, such as the state of an LSTM or a number for all samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ...support.cli.in_process import InProcess
from ...support.models import graphs

NET = """
net (float[batch, steps, 64] x, float[1, batch, 32] state, float[1] scale) => (float[batch, steps, 32] y) {
    product = MatMul (x, w)
    rows = Transpose <perm = [1, 0, 2]> (state)
    moved = Add (product, rows)
    y = Mul (moved, scale)
}
"""


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    weights = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)
    return graphs.save(NET, tmp_path_factory.mktemp("net"), w=weights)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "int8", "auto"])
def test_they_are_lowered_without_data(precision: str, net: Path, run: InProcess) -> None:
    command = ("compile", f"onnx:{net}", "--name", "net", "--precision", precision, "--no-check-served", "--json")
    assert run(*command).document["verdict"] == "passed"


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_tensorrt_inputs_lowered_without_data(precision: str, net: Path, run: InProcess) -> None:
    """Inputs beside the batch are lowered for TensorRT without data."""
    command = ("lower", f"onnx:{net}", "--name", "net", "--precision", precision, "--engine", "tensorrt", "--json")
    answer = run(*command)
    assert answer.status == 0, answer
