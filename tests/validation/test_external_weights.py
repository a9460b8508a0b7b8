"""Weights too large for one message travel beside their graph, from export to engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from plansmith.compilers import onnx_files
from plansmith.compilers.onnxrt import compile_onnxruntime, open_session
from plansmith.records.model import Component, LoweredModel, Precision

WEIGHT = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
X = np.random.default_rng(1).normal(size=(3, 64)).astype(np.float32)
WEIGHT_BYTES = WEIGHT.nbytes


def model() -> onnx.ModelProto:
    onnx_model = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]>
        product (float[batch, 64] x) => (float[batch, 64] y) {
            same = Identity (x)
            y = MatMul (same, weight)
        }"""
    )
    onnx_model.graph.initializer.append(numpy_helper.from_array(WEIGHT, "weight"))
    return onnx_model


def exported(component: Component, precision: Precision = Precision.FP32) -> LoweredModel:
    return LoweredModel(components={"model": component}, precision=precision, recipe=None, trials=(), layers=())


def folder_named(name: str, inside: Path) -> Path:
    folder = inside / name
    folder.mkdir()
    return folder


@pytest.mark.parametrize(("threshold", "beside"), [(WEIGHT_BYTES, False), (WEIGHT_BYTES - 1, True)])
def test_large_weights_go_beside_graph(threshold: int, beside: bool, tmp_path: Path) -> None:
    """Weights go beside the graph when they are above the threshold."""
    path = onnx_files.save(model(), tmp_path, threshold_bytes=threshold)
    component = onnx_files.describe(path)
    assert component.files == ("model.onnx", *(["model.onnx.data"] if beside else []))
    assert {p.name for p in tmp_path.iterdir()} == set(component.files)
    assert (path.stat().st_size > WEIGHT_BYTES) is not beside
    np.testing.assert_allclose(open_session(path).run(["y"], {"x": X})[0], X @ WEIGHT, rtol=1e-4, atol=1e-5)


def test_lowered_graph_travels_with_weights(tmp_path: Path) -> None:
    """A lowered graph travels as it is and its weights with it."""
    source, out = folder_named("lowered", tmp_path), folder_named("engine", tmp_path)
    component = onnx_files.describe(onnx_files.save(model(), source, threshold_bytes=0))
    engine = compile_onnxruntime(exported(component, Precision.FP16), source, out, max_opset=18, max_ir_version=10)
    assert engine.options == {"graph_optimization_level": "none"}
    for file in component.files:
        assert (out / file).read_bytes() == (source / file).read_bytes()


@pytest.mark.parametrize("threshold", [0, WEIGHT_BYTES])
def test_engine_keeps_weights_in_place(threshold: int, tmp_path: Path) -> None:
    """The engine keeps weights where the export had them."""
    source, out = folder_named("export", tmp_path), folder_named("engine", tmp_path)
    component = onnx_files.describe(onnx_files.save(model(), source, threshold_bytes=threshold))
    engine = compile_onnxruntime(exported(component), source, out, max_opset=18, max_ir_version=10)
    engine_component = engine.components["model"]
    assert engine_component.external_files == component.external_files
    assert {p.name for p in out.iterdir()} == set(engine_component.files)
    moved = tmp_path / "moved"
    out.rename(moved)
    for path in source.iterdir():
        path.unlink()
    answer = open_session(moved / engine_component.file).run(["y"], {"x": X})[0]
    np.testing.assert_allclose(answer, X @ WEIGHT, rtol=1e-4, atol=1e-5)
