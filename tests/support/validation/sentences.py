"""A small encoder of sentences as ONNX, in FP32 and lowered well and badly, with samples to judge it on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from plansmith.data.reference import store_case
from plansmith.records.model import Case, SampleSet

if TYPE_CHECKING:
    from numpy.typing import NDArray

WORDS, WIDTH, INNER = 60, 32, 64
AXES = ("batch", "sequence")
BATCH, LENGTH = 8, 9

_RNG = np.random.default_rng(11)
_WEIGHTS = {
    "embeddings": _RNG.normal(size=(WORDS, WIDTH)),
    "up": _RNG.normal(size=(WIDTH, INNER)) / np.sqrt(WIDTH),
    "down": _RNG.normal(size=(INNER, WIDTH)) / np.sqrt(INNER),
}
LARGEST = 6.0
"""What no activation of the hidden layer exceeds."""


class Encoder:
    """An encoder: embeddings, a layer with a residual around it; an output for every token.

    Args:
        scale: of the INT8 activations between the two matrices; None: the graph stays FP32.
        dtype: of the output.
        offset: added to the output.
    """

    def __init__(self, *, scale: float | None = None, dtype: int = TensorProto.FLOAT, offset: float = 0.0) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._int8 = scale is not None
        embedding = self.node("Gather", [self.constant("embeddings", _WEIGHTS["embeddings"]), "input_ids"])
        inner = self.node("Relu", [self.node("MatMul", [embedding, self.weight("up")])])
        if scale is not None:
            pair = [self.constant("scale", np.array(scale)), self.constant("zero", np.array(0, np.int8))]
            inner = self.node("DequantizeLinear", [self.node("QuantizeLinear", [inner, *pair]), *pair])
        sum_ = self.node("Add", [embedding, self.node("MatMul", [inner, self.weight("down")])])
        moved = self.node("Add", [sum_, self.constant("offset", np.array(offset))])
        self.node("Cast", [moved], "hidden", to=dtype)
        self.dtype = dtype

    def constant(self, name: str, value: NDArray[Any]) -> str:
        array = value.astype(np.float32) if value.dtype.kind == "f" else value
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, name: str) -> str:
        """A matrix; in INT8 with a scale per column."""
        value = _WEIGHTS[name]
        if not self._int8:
            return self.constant(name, value)
        scale = np.abs(value).max(axis=0) / 127
        parts = [self.constant(f"{name}_int8", (value / scale).round().astype(np.int8))]
        parts += [self.constant(f"{name}_scale", scale), self.constant(f"{name}_zero", np.zeros(len(scale), np.int8))]
        return self.node("DequantizeLinear", parts, axis=1)

    def node(self, op_type: str, inputs: list[str], output: str = "", **attributes: Any) -> str:
        name = output or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], **attributes))
        return name

    def save(self, path: Path) -> Path:
        inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, AXES) for n in ("input_ids", "attention_mask")]
        outputs = [helper.make_tensor_value_info("hidden", self.dtype, [*AXES, WIDTH])]
        graph = helper.make_graph(self.nodes, "encoder", inputs, outputs, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model)
        onnx.save(model, path)
        return path


class Sentences:
    """Samples of random words with the FP32 encoder's answers, stored in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = Encoder().save(folder / "fp32.onnx")
        self._session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def store(self, kind: str, name: str, batch: int, seed: int) -> Case:
        """One batch of sentences."""
        rng = np.random.default_rng(seed)
        lengths = rng.integers(2, LENGTH + 1, batch)
        mask = (np.arange(LENGTH) < lengths[:, None]).astype(np.int64)
        feed = {"input_ids": rng.integers(1, WORDS, (batch, LENGTH)) * mask, "attention_mask": mask}
        answer = dict(zip(["hidden"], self._session.run(None, feed), strict=True))
        axes = {"batch": batch, "sequence": LENGTH}
        return store_case(name, axes, feed, answer, self.folder / kind)

    def samples(self, kind: str, batches: int, *, first: int = 0) -> SampleSet:
        """A set of batches; `first` is the place of its first sample in the data."""
        cases = tuple(self.store(kind, f"batch-{n}", BATCH, seed=first + n) for n in range(batches))
        rows = tuple(range(first, first + batches * BATCH))
        return SampleSet(cases=cases, rows=rows, digests=tuple(f"sample {r}" for r in rows), labelled=False)
