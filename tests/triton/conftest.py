"""Tiny ONNX models and the server that serves them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import psutil
import pytest
from onnx import TensorProto, helper

from ..support.triton.installed import installation, site

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Started = Callable[[], list[psutil.Process]]
    WriteModel = Callable[[Path, str, str, onnx.ModelProto | None], Path]

__all__ = ["installation", "site"]

CONFIG = """
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "a" data_type: TYPE_FP32 dims: [ 3 ] }, { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "half" data_type: TYPE_FP32 dims: [ 3 ] }, { name: "twice" data_type: TYPE_INT64 dims: [ -1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
"""


@pytest.fixture
def started() -> Started:
    """The processes that this one started since the test began, and what they did: other tests keep servers."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    return lambda: [child for child in psutil.Process().children(recursive=True) if child.pid not in before]


@pytest.fixture(scope="session")
def config() -> str:
    """The configuration that fits `graph("n")`."""
    return CONFIG


@pytest.fixture(scope="session")
def graph() -> Callable[[int | str], onnx.ModelProto]:
    """Half of `a` and twice `ids`, with a first dimension of this size or name."""
    return _graph


@pytest.fixture(scope="session")
def write_model() -> WriteModel:
    """Put a model into a repository: name, configuration, and the ONNX file or none."""
    return _write_model


def _graph(batch: int | str) -> onnx.ModelProto:
    dims: list[list[int | str]] = [[batch, 3], [batch, "length"]]
    types = (TensorProto.FLOAT, TensorProto.INT64)
    nodes = [
        helper.make_node("Constant", [], ["two"], value_float=2.0),
        helper.make_node("Div", ["a", "two"], ["half"]),
        helper.make_node("Add", ["ids", "ids"], ["twice"]),
    ]
    inputs, outputs = (
        [helper.make_tensor_value_info(*info) for info in zip(names, types, dims, strict=True)]
        for names in (("a", "ids"), ("half", "twice"))
    )
    inner = helper.make_graph(nodes, "tiny", inputs, outputs)
    return helper.make_model(inner, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _write_model(repository: Path, name: str, config: str, model: onnx.ModelProto | None) -> Path:
    version_folder = repository / name / "1"
    version_folder.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    if model is not None:
        onnx.save(model, version_folder / "model.onnx")
    return version_folder
