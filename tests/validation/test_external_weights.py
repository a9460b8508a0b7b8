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
    made = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]>
        product (float[batch, 64] x) => (float[batch, 64] y) {
            same = Identity (x)
            y = MatMul (same, weight)
        }"""
    )
    made.graph.initializer.append(numpy_helper.from_array(WEIGHT, "weight"))
    return made


def exported(component: Component, precision: Precision = Precision.FP32) -> LoweredModel:
    return LoweredModel(components={"model": component}, precision=precision, recipe=None, trials=(), layers=())


def folder_named(name: str, inside: Path) -> Path:
    folder = inside / name
    folder.mkdir()
    return folder


@pytest.mark.parametrize(("threshold", "beside"), [(WEIGHT_BYTES, False), (WEIGHT_BYTES - 1, True)])
def test_weights_go_beside_the_graph_when_they_are_above_the_threshold(
    threshold: int, beside: bool, tmp_path: Path
) -> None:
    path = onnx_files.save(model(), tmp_path, threshold_bytes=threshold)
    component = onnx_files.describe(path)
    assert component.files == ("model.onnx", *(["model.onnx.data"] if beside else []))
    assert {p.name for p in tmp_path.iterdir()} == set(component.files)
    assert (path.stat().st_size > WEIGHT_BYTES) is not beside
    np.testing.assert_allclose(open_session(path).run(["y"], {"x": X})[0], X @ WEIGHT, rtol=1e-4, atol=1e-5)


def test_a_lowered_graph_travels_as_it_is_and_its_weights_with_it(tmp_path: Path) -> None:
    source, out = folder_named("lowered", tmp_path), folder_named("engine", tmp_path)
    component = onnx_files.describe(onnx_files.save(model(), source, threshold_bytes=0))
    made = compile_onnxruntime(exported(component, Precision.FP16), source, out, max_opset=18, max_ir_version=10)
    assert made.options == {"graph_optimization_level": "none"}
    for file in component.files:
        assert (out / file).read_bytes() == (source / file).read_bytes()


@pytest.mark.parametrize("threshold", [0, WEIGHT_BYTES])
def test_the_engine_keeps_weights_where_the_export_had_them(threshold: int, tmp_path: Path) -> None:
    source, out = folder_named("export", tmp_path), folder_named("engine", tmp_path)
    component = onnx_files.describe(onnx_files.save(model(), source, threshold_bytes=threshold))
    engine = compile_onnxruntime(exported(component), source, out, max_opset=18, max_ir_version=10)
    made = engine.components["model"]
    assert made.external_files == component.external_files
    assert {p.name for p in out.iterdir()} == set(made.files)
    moved = tmp_path / "moved"
    out.rename(moved)
    for path in source.iterdir():
        path.unlink()
    answer = open_session(moved / made.file).run(["y"], {"x": X})[0]
    np.testing.assert_allclose(answer, X @ WEIGHT, rtol=1e-4, atol=1e-5)
