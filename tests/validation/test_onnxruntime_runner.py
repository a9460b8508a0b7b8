"""What a graph for TensorRT answers on a CPU does not hang on the kind of CPU."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx.parser

from plansmith.records.model import Case, EngineKind, Precision, Tensor
from plansmith.validation.onnxruntime_runner import asking

QUANTISED = """<ir_version: 8, opset_import: ["": 18]>
g (float[N, 64] x) => (float[N, 2] y) <float one = {1.0}, int8 zero = {0}> {
    q = QuantizeLinear (x, one, zero)
    a = DequantizeLinear (q, one, zero)
    b = DequantizeLinear (weight, one, zero)
    y = MatMul (a, b)
}"""


def test_byte_sums_do_not_saturate(tmp_path: Path) -> None:
    """ONNX Runtime's kernel for x86 without VNNI adds pairs of products in 16 bits, which 127 x 127 twice overflows."""
    weight = np.full((64, 2), 127, np.int8)
    model = onnx.parser.parse_model(QUANTISED)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "weight"))
    onnx.save(model, tmp_path / "model.onnx")
    outputs = [Tensor(name="y", dtype="float32", dims=("N", 2))]
    feed = {"x": np.full((1, 64), 127, np.float32)}
    with asking(tmp_path / "model.onnx", outputs, outputs, Precision.INT8, engine=EngineKind.TENSORRT) as ask:
        answer = ask(Case(name="opt", axes={"N": 1}, file="opt.npz"), feed)
    assert answer["y"].tolist() == [[64 * 127 * 127] * 2]


FP8 = """<ir_version: 9, opset_import: ["": 19]>
g (float[N, 2] x) => (float[N, 2] y) <float one = {1.0}, float8e4m3fn zero = {0}> {
    r = Relu (x)
    q = QuantizeLinear (r, one, zero)
    a = DequantizeLinear (q, one, zero)
    b = DequantizeLinear (weight, one, zero)
    y = MatMul (a, b)
}"""


def test_fp8_rounded_not_integers(tmp_path: Path) -> None:
    """ONNX Runtime's rewrites for integers drop the Relu, and fuse the product into one that takes no FP8."""
    model = onnx.parser.parse_model(FP8)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(2).astype(ml_dtypes.float8_e4m3fn), "weight"))
    onnx.save(model, tmp_path / "model.onnx")
    outputs = [Tensor(name="y", dtype="float32", dims=("N", 2))]
    feed = {"x": np.array([[-1, 1.07], [1000, 0.001]], np.float32)}
    for engine in (EngineKind.TENSORRT, EngineKind.ONNXRUNTIME):
        with asking(tmp_path / "model.onnx", outputs, outputs, Precision.FP8, engine=engine) as ask:
            answer = ask(Case(name="opt", axes={"N": 2}, file="opt.npz"), feed)
        assert answer["y"].tolist() == [[0, 1.125], [448, 2.0**-9]], engine
