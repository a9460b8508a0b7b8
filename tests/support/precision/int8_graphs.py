"""Small FP32 graphs for INT8, and what can be read off a lowered one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from plansmith.compilers.precision.graph import Graph
from plansmith.data.reference import StoredCases

from .half_graphs import Arrays, graph, samples

WIDTH, HEADS = 64, 4

ENCODER = """(int64[N, S] ids, int64[N, S] attention_mask) => (float[N, S, 64] hidden, float[N, 32] logits) {
    embedded = Gather <axis = 0> (table, ids)
    normal = LayerNormalization <axis = -1> (embedded, gamma, beta)
    query = MatMul (normal, wq)
    key = MatMul (normal, wk)
    value = MatMul (normal, wv)
    value_biased = Add (value, bv)
    q4 = Reshape (query, split)
    k4 = Reshape (key, split)
    v4 = Reshape (value_biased, split)
    qh = Transpose <perm = [0, 2, 1, 3]> (q4)
    kh = Transpose <perm = [0, 2, 3, 1]> (k4)
    vh = Transpose <perm = [0, 2, 1, 3]> (v4)
    scores = MatMul (qh, kh)
    real = Cast <to = 1> (attention_mask)
    missing = Sub (one, real)
    closed = Mul (missing, far)
    mask = Unsqueeze (closed, heads_and_queries)
    masked = Add (scores, mask)
    shares = Softmax <axis = -1> (masked)
    context = MatMul (shares, vh)
    together = Transpose <perm = [0, 2, 1, 3]> (context)
    merged = Reshape (together, join)
    projected = MatMul (merged, wo)
    biased = Add (projected, bo)
    summed = Add (biased, embedded)
    normal2 = LayerNormalization <axis = -1> (summed, gamma2, beta2)
    up = MatMul (normal2, wu)
    active = Relu (up)
    down = MatMul (active, wd)
    total = Add (down, normal2)
    hidden = LayerNormalization <axis = -1> (total, gamma, beta)
    first = Gather <axis = 1> (hidden, zero)
    logits = Gemm <transB = 1> (first, wh, bh)
}"""


class Weights:
    """Draws weights, the same in the same turn."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(7)

    def normal(self, *shape: int) -> NDArray[np.float32]:
        """Such that products keep the size of their data."""
        result: NDArray[np.float32] = (self._rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)
        return result

    def kernel(self, out: int, into: int, size: int) -> NDArray[np.float32]:
        """Of a convolution that keeps the size of its data behind a ReLU."""
        scale = np.sqrt(2 / (into * size * size))
        result: NDArray[np.float32] = (self._rng.normal(size=(out, into, size, size)) * scale).astype(np.float32)
        return result


def encoder(rows: int = 2048) -> onnx.ModelProto:
    """One layer of a transformer encoder with everything that lowering has to tell apart."""
    normal = Weights().normal
    matrices: dict[str, Any] = {name: normal(WIDTH, WIDTH) for name in ("wq", "wk", "wv", "wo")}
    gamma = np.ones(WIDTH, np.float32)
    return graph(
        ENCODER,
        **matrices,
        table=normal(rows, WIDTH) * 40,
        gamma=gamma,
        beta=gamma * 0,
        gamma2=gamma * 1.5,
        beta2=gamma * 0.1,
        bv=normal(WIDTH),
        bo=normal(WIDTH),
        wu=normal(WIDTH, 4 * WIDTH),
        wd=normal(4 * WIDTH, WIDTH),
        wh=normal(32, WIDTH),
        bh=normal(32),
        split=np.array([0, 0, HEADS, WIDTH // HEADS]),
        join=np.array([0, 0, WIDTH]),
        heads_and_queries=np.array([1, 2]),
        one=np.float32(1),
        far=np.float32(-1e4),
        zero=np.array(0),
    )


def tokens(folder: Path, *, rows: int = 2048, seed: int = 0) -> StoredCases:
    """Batches of several sizes and lengths, padded at the end."""
    rng = np.random.default_rng(seed)
    feeds: list[Arrays] = []
    for batch, length in ((4, 12), (1, 5), (7, 9), (2, 20)):
        lengths = rng.integers(3, length + 1, size=batch)
        mask = (np.arange(length) < lengths[:, None]).astype(np.int64)
        feeds.append({"ids": rng.integers(1, rows, size=(batch, length)) * mask, "attention_mask": mask})
    return samples(folder, *feeds)


RESIDUAL = """(float[N, 3, 16, 16] image) => (float[N, 32] scores) {
    stem = Conv <pads = [1, 1, 1, 1]> (image, w0, b0)
    stem_active = Relu (stem)
    pooled = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (stem_active)
    first = Conv <pads = [1, 1, 1, 1]> (pooled, w1, b1)
    first_active = Relu (first)
    second = Conv <pads = [1, 1, 1, 1]> (first_active, w2, b2)
    same = Add (second, pooled)
    same_active = Relu (same)
    shortcut = Conv <strides = [2, 2]> (same_active, w3, b3)
    third = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (same_active, w4, b4)
    other = Add (third, shortcut)
    other_active = Relu (other)
    deep = Conv <pads = [1, 1, 1, 1], group = 32> (other_active, w5, b5)
    deep_active = Relu (deep)
    mean = GlobalAveragePool (deep_active)
    flat = Flatten (mean)
    scores = Gemm <transB = 1> (flat, w6, b6)
}"""


def residual() -> onnx.ModelProto:
    """A small residual network: a plain skip, a skip through a convolution, a depthwise convolution, a head."""
    drawn = Weights()
    normal, kernel = drawn.normal, drawn.kernel
    kernels = [kernel(16, 3, 3), kernel(16, 16, 3), kernel(16, 16, 3), kernel(32, 16, 1), kernel(32, 16, 3)]
    weights: dict[str, Any] = {f"w{i}": k for i, k in enumerate([*kernels, kernel(32, 1, 3), normal(32, 32)])}
    weights |= {f"b{i}": normal(len(weights[f"w{i}"])) * 0.1 for i in range(7)}
    return graph(RESIDUAL, **weights)


def images(folder: Path, count: int = 3) -> StoredCases:
    """Batches of noise."""
    rng = np.random.default_rng(1)
    feeds: list[Arrays] = [{"image": rng.normal(size=(2 + i, 3, 16, 16)).astype(np.float32)} for i in range(count)]
    return samples(folder, *feeds)


def dequantizer_before(lowered: onnx.ModelProto, node: str, place: int) -> onnx.NodeProto | None:
    """The DequantizeLinear that an input comes through; None if it comes as it is."""
    index = Graph(lowered)
    taker = next(n for n in lowered.graph.node if n.name == node)
    back = index.producer(taker.input[place])
    return back if back is not None and back.op_type == "DequantizeLinear" else None


def pair_before(lowered: onnx.ModelProto, node: str, place: int) -> tuple[onnx.NodeProto, onnx.NodeProto] | None:
    """The QuantizeLinear and DequantizeLinear that an input comes through; None if it comes as it is."""
    back = dequantizer_before(lowered, node, place)
    if back is None:
        return None
    stored = Graph(lowered).producer(back.input[0])
    assert stored is not None
    assert stored.op_type == "QuantizeLinear"
    return stored, back


def constants(model: onnx.ModelProto) -> dict[str, NDArray[Any]]:
    """Initialisers by name."""
    return {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}


def axis(node: onnx.NodeProto) -> int:
    """The axis of a pair's scales."""
    return next(a.i for a in node.attribute if a.name == "axis")
