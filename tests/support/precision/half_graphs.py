"""Small FP32 graphs with something in them that sixteen bits cannot carry, and inputs that show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper, parser

from plansmith.compilers.onnxrt import open_session
from plansmith.compilers.precision.fp16 import method as half
from plansmith.compilers.precision.fp16.method import MeasuredMethod
from plansmith.config.engine_options import LoweringOptions
from plansmith.data.reference import StoredCases, store_case
from plansmith.records.model import Precision

Arrays = Mapping[str, NDArray[np.generic]]


def graph(text: str, *, opset: int = 18, domains: str = "", **weights: Any) -> onnx.ModelProto:
    """A graph in ONNX's own text form; a node's name is that of its first output.

    Args:
        text: inputs, outputs and nodes.
        opset: of ONNX's own operators.
        domains: further operator sets.
        weights: initialisers.
    """
    header = f'<ir_version: 10, opset_import: ["": {opset}{domains}]>'
    model = parser.parse_model(f"{header} net {text}")
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), name) for name, a in weights.items())
    for node in model.graph.node:
        node.name = node.output[0]
    return model


def samples(folder: Path, *feeds: Arrays) -> StoredCases:
    """Calibration inputs."""
    cases = [
        store_case(f"case{i}", {}, feed, {"y": np.zeros((1, 1))}, folder / "cases") for i, feed in enumerate(feeds)
    ]
    return StoredCases(cases, folder)


def lowering(
    model: onnx.ModelProto,
    folder: Path,
    *feeds: Arrays,
    precision: Precision = Precision.FP16,
    keep: Sequence[str] = (),
    lower_io: bool = False,
) -> MeasuredMethod:
    """The one way to lower a graph that was measured on these inputs."""
    options = LoweringOptions(keep=tuple(keep), lower_io=lower_io)
    (method,) = half.methods(model, samples(folder, *feeds), options, precision=precision)
    assert isinstance(method, MeasuredMethod)
    return method


def run(model: onnx.ModelProto, folder: Path, feed: Arrays) -> list[NDArray[Any]]:
    """What ONNX Runtime answers, with Q/DQ pairs computed as they are written: its integer kernels may saturate."""
    path = folder / "run.onnx"
    onnx.save(model, path)
    answer: list[NDArray[Any]] = open_session(path, rewrites="basic").run(None, dict(feed))
    return answer


def casts(model: onnx.ModelProto) -> list[str]:
    """The nodes that cast, by name."""
    return [n.name for n in model.graph.node if n.op_type == "Cast"]


NORMALISED = """(float[N, 64] x) => (float[N, 8] y) {
    mean = ReduceMean <keepdims = 1> (x, last)
    centred = Sub (x, mean)
    squares = Pow (centred, two)
    variance = ReduceMean <keepdims = 1> (squares, last)
    kept_finite = Add (variance, epsilon)
    deviation = Sqrt (kept_finite)
    normal = Div (centred, deviation)
    y = MatMul (normal, weight)
}"""


def normalised(epsilon: float = 1e-5) -> onnx.ModelProto:
    """A layer normalisation that its author wrote out, and a product behind it."""
    return graph(
        NORMALISED,
        last=np.array([1]),
        two=np.float32(2),
        epsilon=np.float32(epsilon),
        weight=np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32),
    )


def attention(masked: float, *, form: str = "Add") -> onnx.ModelProto:
    """Scores, a mask laid over them, softmax, and the values that it picks."""
    lay = "Add (scores, bias)" if form == "Add" else "Where (open, scores, closed)"
    text = f"""(float[N, S, 16] q, float[N, S, 16] v, bool[N, 1, S] open) => (float[N, S, 16] y) {{
        k = Transpose <perm = [0, 2, 1]> (q)
        scores = MatMul (q, k)
        bias = Where (open, zero, closed)
        laid = {lay}
        shares = Softmax <axis = -1> (laid)
        y = MatMul (shares, v)
    }}"""
    return graph(text, zero=np.float32(0), closed=np.float32(masked))


def attention_feed(scale: float = 1.0) -> Arrays:
    """Two sequences, one of them half padding."""
    rng = np.random.default_rng(1)
    q, v = (scale * rng.normal(size=(2, 6, 16)).astype(np.float32) for _ in range(2))
    return {"q": q, "v": v, "open": np.array([[[True] * 6], [[True] * 3 + [False] * 3]])}
