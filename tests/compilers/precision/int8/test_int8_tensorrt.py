"""Explicit Q/DQ for TensorRT: where pairs go, what they look like, and what stays high."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from plansmith.compilers.precision import opsets
from plansmith.compilers.precision.candidate import Method
from plansmith.compilers.precision.graph import Graph
from plansmith.compilers.precision.int8 import tensorrt_method
from plansmith.compilers.precision.int8.format import FP8, INT8, Format
from plansmith.compilers.precision.lint.linter import lint
from plansmith.config.engine_options import LoweringOptions
from plansmith.errors import ExportError
from plansmith.records.model import EngineKind

from ....support.precision.half_graphs import graph, run, samples
from ....support.precision.int8_graphs import (
    axis,
    constants,
    dequantizer_before,
    encoder,
    images,
    pair_before,
    residual,
    tokens,
)

ONE = "(float[N, 16] x) => (float[N, M] total) {{ y = {}  z = Sigmoid (y)  total = Mul (z, z) }}"
PROJECTIONS = ["query", "key", "value", "projected", "up", "down"]


@pytest.fixture(scope="module")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> Method:
    """The encoder's method."""
    cases = tokens(tmp_path_factory.mktemp("tokens"))
    (method,) = tensorrt_method.methods(encoder(), cases, LoweringOptions(), mask_input="attention_mask")
    return method


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Method:
    """The residual network's method."""
    (method,) = tensorrt_method.methods(residual(), images(tmp_path_factory.mktemp("images")), LoweringOptions())
    return method


def test_weighted_products_all_lowered(transformer: Method) -> None:
    """Every product with weights is lowered whatever the batch."""
    assert list(transformer.lowerable) == PROJECTIONS
    lowered = transformer.lower(())
    for name in PROJECTIONS:
        assert pair_before(lowered, name, 0) is not None
        assert dequantizer_before(lowered, name, 1) is not None


def test_sensitive_nodes_stay_high(transformer: Method) -> None:
    """Attention, softmax, normalisation and head stay high and say why."""
    lowered = transformer.lower(())
    for name in ("scores", "context", "shares", "normal2", "hidden", "logits", "total", "summed"):
        assert pair_before(lowered, name, 0) is None, name
    reasons = {name: transformer.high_reasons[name] for name in ("scores", "shares", "normal", "logits")}
    assert reasons == {
        "scores": "both operands are computed, as in attention",
        "shares": "a softmax would use half of the codes",
        "normal": "normalisation needs its precision",
        "logits": "makes an output",
    }


def test_zero_points_are_signed_zero(transformer: Method, network: Method) -> None:
    """All zero points are zero and signed."""
    for method in (transformer, network):
        lowered = method.lower(())
        values = constants(lowered)
        pairs = [n for n in lowered.graph.node if n.op_type in {"QuantizeLinear", "DequantizeLinear"}]
        zeros = [values[n.input[2]] for n in pairs]
        assert zeros
        assert all(z.dtype == np.int8 and not z.any() for z in zeros)


@pytest.mark.parametrize(("form", "dtype"), [(INT8, np.dtype(np.int8)), (FP8, np.dtype(ml_dtypes.float8_e4m3fn))])
def test_weights_have_scale_per_channel(form: Format, dtype: np.dtype[Any], tmp_path: Path) -> None:
    """Weights are stored in eight bits with a scale per output channel."""
    rng = np.random.default_rng(0)
    weight, x = (rng.normal(size=shape).astype(np.float32) for shape in ((16, 24), (4, 16)))
    weight[:, 3] = 0
    model = opsets.modern(graph(ONE.format("MatMul (x, w)"), w=weight), {"x": x}, form.opset)
    (method,) = tensorrt_method.methods(model, samples(tmp_path, {"x": x}), LoweringOptions(), form=form)
    lowered = method.lower(())
    values, stored = constants(lowered), dequantizer_before(lowered, "y", 1)
    assert stored is not None
    codes, scale, zero = (values[name] for name in stored.input)
    largest = np.abs(weight).max(axis=0)
    np.testing.assert_array_equal(scale, np.where(largest > 0, largest / np.float32(form.largest), 1), strict=True)
    levels = weight / scale
    np.testing.assert_array_equal(codes, (np.rint(levels) if form is INT8 else levels).astype(dtype), strict=True)
    np.testing.assert_array_equal(zero, np.zeros(24, dtype), strict=True)
    assert axis(stored) == 1
    pair = pair_before(lowered, "y", 0)
    assert pair is not None
    assert values[pair[0].input[1]] == np.float32(np.abs(x).max() / form.largest)
    assert values[pair[0].input[2]].dtype == dtype
    (answer,) = run(lowered, tmp_path, {"x": x})
    data = form.rounded(x, float(values[pair[0].input[1]]))
    by_hand = data @ (codes.astype(np.float32) * scale)
    np.testing.assert_allclose(answer, (1 / (1 + np.exp(-by_hand))) ** 2, atol=1e-5)


HIGH_IN_FP8 = {
    "ConvTranspose": ("ConvTranspose (x, w)", (16, 24, 3, 3), "transposed"),
    "groups": ("Conv <group = 2> (x, w)", (24, 8, 3, 3), "in groups"),
    "a large kernel": ("Conv <pads = [3, 3, 3, 3]> (x, w)", (24, 16, 7, 7), "more than 32 elements"),
}


@pytest.mark.parametrize("case", HIGH_IN_FP8)
def test_convolutions_without_fp8_stay_high(case: str, tmp_path: Path) -> None:
    """Convolutions without an FP8 kernel stay high."""
    node, shape, reason = HIGH_IN_FP8[case]
    rng = np.random.default_rng(0)
    w, v, x = (rng.normal(size=size).astype(np.float32) for size in (shape, (24, 24, 3, 3), (1, 16, 8, 8)))
    nodes = f"y = {node}  r = Conv (y, v)  s = Relu (r)  z = Mul (s, s)"
    model = graph(f"(float[N, 16, 8, 8] x) => (float[N, 24, H, W] z) {{ {nodes} }}", w=w, v=v)
    (method,) = tensorrt_method.methods(model, samples(tmp_path, {"x": x}), LoweringOptions(), form=FP8)
    assert method.lowerable == ("r",)
    assert reason in method.high_reasons["y"]


def test_fp8_has_no_entropy_calibration(tmp_path: Path) -> None:
    model = graph(ONE.format("MatMul (x, w)"), w=np.ones((16, 24), np.float32))
    options = LoweringOptions(calibration="entropy")
    with pytest.raises(ExportError, match="to FP8: entropy calibration") as caught:
        tensorrt_method.methods(model, samples(tmp_path, {"x": np.ones((4, 16), np.float32)}), options, form=FP8)
    assert caught.value.remedy == "set calibration: auto"


@pytest.mark.parametrize(
    ("node", "shape", "expected"),
    [
        ("Conv <pads = [1, 1]>", (24, 16, 3), 0),
        ("ConvTranspose", (16, 24, 3), 1),
        ("Gemm <transB = 1>", (24, 16), 0),
        ("Gemm", (16, 24), 1),
        ("MatMul", (16, 24), 1),
    ],
)
def test_scale_axis_is_output_channels(node: str, shape: tuple[int, ...], expected: int, tmp_path: Path) -> None:
    """The axis of the scales is that of the output channels."""
    dims = "float[N, 16, 8]" if "Conv" in node else "float[N, 16]"
    rng = np.random.default_rng(0)
    model = graph(
        f"({dims} x) => (float[N, M] total) {{ y = {node} (x, w)  z = Sigmoid (y)  total = ReduceMax (z) }}",
        w=rng.normal(size=shape).astype(np.float32),
    )
    x = rng.normal(size=(4, 16, 8) if "Conv" in node else (4, 16)).astype(np.float32)
    (method,) = tensorrt_method.methods(model, samples(tmp_path, {"x": x}), LoweringOptions())
    lowered = method.lower(())
    stored = dequantizer_before(lowered, "y", 1)
    assert stored is not None
    assert axis(stored) == expected
    assert constants(lowered)[stored.input[1]].shape == (24,)


def test_biases_stay_fp32(network: Method) -> None:
    """Biases stay FP32 without a pair."""
    lowered = network.lower(())
    values = constants(lowered)
    convolutions = [n for n in lowered.graph.node if n.op_type == "Conv"]
    assert all(values[n.input[2]].dtype == np.float32 for n in convolutions)
    assert not [name for name, value in values.items() if value.dtype == np.int32]


def test_residual_skip_alone_has_pair(network: Method) -> None:
    """Of a residual sum, only the skip comes through a pair."""
    lowered = network.lower(())
    assert pair_before(lowered, "same", 0) is None
    skip = pair_before(lowered, "same", 1)
    assert skip is not None
    assert skip[0].input[0] == "pooled"
    assert skip == pair_before(lowered, "first", 0), "a tensor has one pair, whoever takes it"
    assert pair_before(lowered, "other", 0) is None, "the later convolution carries the sum"
    shortcut = pair_before(lowered, "other", 1)
    assert shortcut is not None
    assert shortcut[0].input[0] == "shortcut"


def test_convolution_outputs_not_quantised(network: Method) -> None:
    """Outputs of convolutions are not quantised, except for the skip."""
    lowered = network.lower(())
    index = Graph(lowered)
    quantised = {n.input[0] for n in lowered.graph.node if n.op_type == "QuantizeLinear"}
    makers = {t for t in quantised if (p := index.producer(t)) is not None and p.op_type == "Conv"}
    assert makers == {"shortcut"}


def test_high_convolution_skip_without_pair(network: Method) -> None:
    """A skip has no pair when its convolution stays high."""
    lowered = network.lower(["third", "shortcut"])
    assert pair_before(lowered, "other", 0) is None
    assert pair_before(lowered, "other", 1) is None
    assert pair_before(lowered, "third", 0) is None


TWO_SUMS = """(float[N, 16, 8, 8] x) => (float[N, 16, 8, 8] y) {
    skip = Conv (x, w0)
    a = Conv (x, w1)
    b = Conv (x, w2)
    one = Add (a, skip)
    two = Add (skip, b)
    product = Mul (one, two)
    late = Conv (product, w3)
    early = Conv (one, w4)
    three = Add (late, early)
    y = Relu (three)
}"""


def test_every_keep_choice_runs(network: Method, tmp_path: Path) -> None:
    """Every choice of what stays high is written and runs."""
    rng = np.random.default_rng(0)
    kernels: dict[str, Any] = {f"w{i}": rng.normal(size=(16, 16, 1, 1)).astype(np.float32) for i in range(5)}
    feed = {"x": rng.normal(size=(2, 16, 8, 8)).astype(np.float32)}
    (sums,) = tensorrt_method.methods(graph(TWO_SUMS, **kernels), samples(tmp_path, feed), LoweringOptions())
    image = next(iter(images(tmp_path))).feed
    for method, inputs in ((network, image), (sums, feed)):
        (exact,) = run(method.lower(method.lowerable), tmp_path, inputs)
        for count in (0, 1, 2):
            for keep in itertools.combinations(method.lowerable, count):
                (output,) = run(method.lower(keep), tmp_path, inputs)
                assert np.square(output - exact).mean() / np.square(exact).mean() < 5e-3, keep


def test_skip_pair_follows_its_convolution(network: Method) -> None:
    """A pair on a skip stays only while its own convolution is lowered."""
    lowered = network.lower(["third"])
    assert pair_before(lowered, "other", 1) is None, "the other one carries the sum now, and no range was measured"
    assert pair_before(network.lower(["shortcut"]), "other", 1) is not None
    assert pair_before(network.lower(["second"]), "same", 1) is None


def test_shared_skip_has_one_pair(tmp_path: Path) -> None:
    """A skip that two sums take comes through one pair into both."""
    text = """(float[N, 16, 4, 4] x) => (float[N, 16, 4, 4] y) {
        skip = Relu (x)
        a = Conv (skip, w0)
        b = Conv (skip, w1)
        one = Add (a, skip)
        two = Add (b, skip)
        y = Mul (one, two)
    }"""
    kernels: dict[str, Any] = {f"w{i}": np.ones((16, 16, 1, 1), np.float32) for i in range(2)}
    feed = {"x": np.ones((2, 16, 4, 4), np.float32)}
    (method,) = tensorrt_method.methods(graph(text, **kernels), samples(tmp_path, feed), LoweringOptions())
    lowered = method.lower(())
    pairs = [pair_before(lowered, name, 1) for name in ("one", "two")]
    assert pairs[0] is not None
    assert pairs[0] == pairs[1]


def test_depthwise_and_head_stay_high(network: Method) -> None:
    """Depthwise convolutions and the head stay high."""
    assert list(network.lowerable) == ["stem", "first", "second", "shortcut", "third"]
    assert network.high_reasons["deep"].startswith("depthwise")
    assert network.high_reasons["scores"] == "makes an output"


def test_kept_nodes_stay_unchanged(transformer: Method, tmp_path: Path) -> None:
    """What a search or the spec keeps is left as it was."""
    lowered = transformer.lower({"up", "query"})
    assert pair_before(lowered, "up", 0) is None
    assert pair_before(lowered, "up", 1) is None
    assert pair_before(lowered, "query", 0) is None
    assert pair_before(lowered, "key", 0) is not None
    options = LoweringOptions(keep=("up|down", "quer"))
    (method,) = tensorrt_method.methods(encoder(), tokens(tmp_path), options)
    assert list(method.lowerable) == ["query", "key", "value", "projected"], "a pattern matches the whole name"
    assert method.high_reasons["up"] == "kept by the spec: up|down"


def test_lint_clean_and_numbers_near(network: Method, tmp_path: Path) -> None:
    """The lint finds nothing and the numbers are near."""
    cases = images(tmp_path)
    lowered = network.lower(())
    assert lint(lowered, engine=EngineKind.TENSORRT, samples=cases) == []
    feed = next(iter(cases)).feed
    (exact,), (output,) = run(network.lower(network.lowerable), tmp_path, feed), run(lowered, tmp_path, feed)
    assert 0 < np.square(output - exact).mean() / np.square(exact).mean() < 2e-3


def test_scales_per_request_refused(tmp_path: Path) -> None:
    """Scales per request are refused with what to set."""
    with pytest.raises(ExportError, match="static scales only") as caught:
        tensorrt_method.methods(encoder(), tokens(tmp_path), LoweringOptions(quantisation="dynamic"))
    assert "quantisation: static" in caught.value.remedy


def test_graph_without_weights_refused(tmp_path: Path) -> None:
    """A graph without weights is refused."""
    model = graph("(float[N, 4] x) => (float[N, 4] y) { y = Relu (x) }")
    with pytest.raises(ExportError, match="nothing can be lowered"):
        tensorrt_method.methods(model, samples(tmp_path, {"x": np.ones((1, 4), np.float32)}), LoweringOptions())


def test_transposed_weights_are_lowered(tmp_path: Path) -> None:
    """Weights behind a transpose are folded and lowered."""
    model = graph(
        "(float[N, 16] x) => (float[N, 24] total) { t = Transpose (w)  y = MatMul (x, t)  a = Relu (y)"
        "  total = Mul (a, a) }",
        w=np.random.default_rng(0).normal(size=(24, 16)).astype(np.float32),
    )
    before = onnx.ModelProto()
    before.CopyFrom(model)
    x = np.random.default_rng(1).normal(size=(5, 16)).astype(np.float32)
    (method,) = tensorrt_method.methods(model, samples(tmp_path, {"x": x}), LoweringOptions())
    assert method.lowerable == ("y",)
    assert model == before, "the given graph is not changed"
    assert [n.op_type for n in method.lower(["y"]).graph.node] == ["MatMul", "Relu", "Mul"]
