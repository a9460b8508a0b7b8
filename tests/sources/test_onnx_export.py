"""The export step for an ONNX file: checked, taken over as it is, and asked in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from plansmith.data.reference import read_case
from plansmith.errors import ExportError, PlansmithError, SourceError, UsageError
from plansmith.records.model import Precision

from ..support.models.graphs import save, save_product, take
from ..support.worker_tasks import compile_engine


def test_reference_is_answer_of_file(tmp_path: Path) -> None:
    """The reference is the file's own answer at the planned shapes."""
    path, weight = save_product(tmp_path)
    model = take(path, tmp_path / "out", shapes={"x": {"min": (1, 3, 64), "opt": (4, 3, 64), "max": (6, 3, 64)}})
    assert (model.exporter, model.attempts, model.reference.guessed) == ("none", (), True)
    assert model.reference.runtime.startswith("the file itself in ONNX Runtime ")
    assert model.reference.runtime.endswith(", graph optimisations off")
    assert [(c.name, c.axes["batch"]) for c in model.reference.cases] == [
        ("traced", 2),
        ("single", 1),
        ("untraced", 3),
        ("opt", 4),
        ("max", 6),
    ]
    for case in model.reference.cases:
        stored = read_case(case, tmp_path / "out")
        np.testing.assert_allclose(
            stored.answer["y"].astype(np.float32), stored.feed["x"].astype(np.float32) @ weight, rtol=1e-4, atol=1e-5
        )


def test_static_dims_and_opset_kept(tmp_path: Path) -> None:
    """Static dims are kept and the opset is not changed."""
    path = save(
        "g (float[5, 3] x) => (float[5, 3] y) { y = Neg (x) }", tmp_path, header='ir_version: 7, opset_import: ["": 11]'
    )
    model = take(path, tmp_path / "out")
    component = model.components["model"]
    assert (component.inputs[0].dims, component.outputs[0].dims) == ((5, 3), (5, 3))
    assert (component.opset, component.ir_version, model.axes) == (11, 7, {})
    assert [case.name for case in model.reference.cases] == ["traced"]


@pytest.mark.parametrize("version", [3, 8])
def test_listed_initialiser_is_no_input(version: int, tmp_path: Path) -> None:
    """An initialiser that is listed as an input is no input."""
    header = f'ir_version: {version}, opset_import: ["": 9]'
    text = "g (float[N, 2] x, float[2] bias) => (float[N, 2] y) { y = Add (x, bias) }"
    path = save(text, tmp_path, header=header, bias=np.ones(2, np.float32))
    component = take(path, tmp_path / "out").components["model"]
    assert [t.name for t in component.inputs] == ["x"]
    listed = [value.name for value in onnx.load(tmp_path / "out" / "model.onnx").graph.input]
    assert listed == (["x", "bias"] if version == 3 else ["x"])


def test_spec_orders_outputs(tmp_path: Path) -> None:
    """The spec picks and orders the outputs."""
    path = save(
        "g (float[N] x) => (float[N] a, float[N] b, float[N] c) { a = Neg (x) b = Abs (x) c = Exp (x) }", tmp_path
    )
    model = take(path, tmp_path / "out", outputs=("c", "a"))
    assert [t.name for t in model.components["model"].outputs] == ["c", "a"]
    assert set(read_case(model.reference.cases[0], tmp_path / "out").answer) == {"c", "a"}
    with pytest.raises(UsageError, match="no output d"):
        take(path, tmp_path / "other", outputs=("a", "d"))


def test_value_dependent_output_keeps_axis(tmp_path: Path) -> None:
    """An output whose size depends on the values keeps an axis of its own."""
    text = "g (float[N, 4] x) => (int64[2, ?] places, float[N, 4] y) { places = NonZero (x) y = Neg (x) }"
    model = take(save(text, tmp_path), tmp_path / "out", shapes={"x": dict.fromkeys(("min", "opt", "max"), (2, 4))})
    assert [t.dims for t in model.components["model"].outputs] == [(2, "places_dim1"), ("batch", 4)]


def test_rankless_input_described_by_spec(tmp_path: Path) -> None:
    """An input of unknown rank is described by the spec."""
    path = save("g (float x) => (float[N, 4] y) { y = Neg (x) }", tmp_path)
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    onnx.save(model, path)
    with pytest.raises(UsageError, match="how many dims its input 'x' has") as caught:
        take(path, tmp_path / "first")
    assert "x: {dims: [batch" in caught.value.remedy
    onnx_model = take(path, tmp_path / "out", inputs={"x": {"dims": ["batch", 4]}})
    assert onnx_model.components["model"].inputs[0].dims == ("batch", 4)


def test_refused_axis_found_with_limit(tmp_path: Path) -> None:
    """The axis that a model refuses is found and its limit told."""
    text = """
    positions (int64[N, S] input_ids) => (float[N, S, 2] y) {
        word = Gather (words, input_ids)
        shape = Shape <start = 1, end = 2> (input_ids)
        cut = Slice (places, zero, shape, zero)
        y = Add (word, cut)
    }"""
    weights: dict[str, Any] = {"words": np.ones((9, 2), np.float32), "places": np.ones((40, 2), np.float32)}
    path = save(text, tmp_path, zero=np.array([0]), **weights)
    ranges = {"input_ids": {"min": (1, 1), "opt": (2, 8), "max": (4, 64)}}
    with pytest.raises(UsageError, match="fails at batch 4, S 64") as caught:
        take(path, tmp_path / "out", shapes=ranges)
    assert "It is 'S': the model works up to 40" in caught.value.message
    assert '--shapes "input_ids=1x1:2x8:4x40"' in caught.value.remedy


def test_memory_lack_not_blamed_on_axes(tmp_path: Path) -> None:
    """A lack of memory is not looked for among the axes."""
    text = """
    pairs (float[N, S] x) => (float[N, S, S] y) {
        column = Unsqueeze (x, last)
        row = Unsqueeze (x, first)
        y = Mul (column, row)
    }"""
    path = save(text, tmp_path, first=np.array([1]), last=np.array([2]))
    messages: list[str] = []
    ranges = {"x": {"min": (1, 1), "opt": (1, 8), "max": (1, 4_000_000)}}
    with pytest.raises(Exception, match="Failed to allocate memory") as caught:
        take(path, tmp_path / "out", shapes=ranges, progress=messages.append)
    assert not isinstance(caught.value, PlansmithError)
    assert messages[-1].startswith("asking the source model at max")


def test_equal_axes_need_one_name(tmp_path: Path) -> None:
    """Two axes that must be equal are told to get one name."""
    path = save("g (float[N, A] x, float[N, B] z) => (float[N, C] y) { y = Add (x, z) }", tmp_path)
    with pytest.raises(UsageError, match="fails at batch 2, A 16, B 21") as caught:
        take(path, tmp_path / "first")
    assert "give them the same name" in caught.value.remedy
    named = {name: {"dims": ["batch", "n"]} for name in ("x", "z")}
    assert take(path, tmp_path / "out", inputs=named).components["model"].outputs[0].dims == ("batch", "n")


def test_local_functions_are_taken(tmp_path: Path) -> None:
    header = 'ir_version: 8, opset_import: ["": 18, "local": 1]'
    text = """g (float[N] x) => (float[N] y) { y = local.Twice (x) }
    <domain: "local", opset_import: ["": 18]> Twice (a) => (b) { b = Add (a, a) }"""
    model = take(save(text, tmp_path, header=header), tmp_path / "out")
    stored = read_case(model.reference.cases[0], tmp_path / "out")
    np.testing.assert_array_equal(stored.answer["y"], 2 * stored.feed["x"])


def test_dependent_samples_make_no_batch(tmp_path: Path) -> None:
    """A first dim whose samples depend on each other is no batch."""
    text = "g (float[?, n] x) => (float[?, n] y) { mean = ReduceMean (x) y = Sub (x, mean) }"
    path = save(text, tmp_path)
    with pytest.raises(UsageError, match="a sample's 'y' depends on the samples beside it") as caught:
        take(path, tmp_path / "first")
    assert "x: {dims: [rows, n]}" in caught.value.remedy
    model = take(path, tmp_path / "out", inputs={"x": {"dims": ["rows", "n"]}})
    assert model.components["model"].outputs[0].dims == ("rows", "n")


def test_chosen_operators_stay(tmp_path: Path) -> None:
    """Operators that the author chose stay, though plansmith would not add them."""
    header = 'ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]'
    path = save("g (float[N, 4] x) => (float[N, 4] y) { y = com.microsoft.QuickGelu (x) }", tmp_path, header=header)
    model = take(path, tmp_path / "out")
    (tmp_path / "engine").mkdir()
    compile_engine(model, tmp_path / "out", tmp_path / "engine")
    assert [n.op_type for n in onnx.load(tmp_path / "engine" / "model.onnx").graph.node] == ["QuickGelu"]


LOWERED = {
    "FP16": (
        "g (float16[N, 2] x) => (float16[N, 2] y) { y = MatMul (x, half) }",
        {"half": np.ones((2, 2), np.float16)},
        Precision.FP16,
    ),
    "FP16 without weights": ("g (float16[N, 2] x) => (float16[N, 2] y) { y = Relu (x) }", {}, Precision.FP16),
    "INT8 with scales for every request": (
        """g (float[N, 8] x) => (float[N, 4] y) {
            q, scale, zero = DynamicQuantizeLinear (x)
            sums = MatMulInteger (q, weight, zero)
            wide = Cast <to = 1> (sums)
            y = Mul (wide, scale)
        }""",
        {"weight": np.random.default_rng(0).integers(-64, 64, (8, 4)).astype(np.int8)},
        Precision.INT8,
    ),
}


FP8 = """g (float[N, 8] x) => (float[N, 4] y) {
    q = QuantizeLinear <output_dtype = 17> (x, scale)
    a = DequantizeLinear (q, scale)
    b = DequantizeLinear (weight, scale)
    y = MatMul (a, b)
}"""


@pytest.mark.parametrize("stored", ["float8_e4m3fn", "int8"])
def test_fp8_pairs_make_fp8_file(stored: str, tmp_path: Path) -> None:
    """Its codes are seen in what is stored, or in what a QuantizeLinear is told to make."""
    weight = np.ones((8, 4)).astype(stored)
    path = save(FP8, tmp_path, header='ir_version: 10, opset_import: ["": 21]', weight=weight, scale=np.float32(1))
    assert take(path, tmp_path / "out").precision is Precision.FP8


@pytest.mark.parametrize(("text", "weights", "precision"), LOWERED.values(), ids=LOWERED)
def test_lower_precision_file_unchanged(
    text: str, weights: dict[str, Any], precision: Precision, tmp_path: Path
) -> None:
    """A file in a lower precision is taken as it is."""
    path = save(text, tmp_path, **weights)
    model = take(path, tmp_path / "out")
    assert model.precision is precision
    written, original = (onnx.load(p).graph for p in (tmp_path / "out" / "model.onnx", path))
    assert list(written.node) == list(original.node)
    assert list(written.initializer) == list(original.initializer)
    (tmp_path / "engine").mkdir()
    engine = compile_engine(model, tmp_path / "out", tmp_path / "engine")
    assert engine.precision == precision
    assert onnx.load(tmp_path / "engine" / "model.onnx") == onnx.load(tmp_path / "out" / "model.onnx")


HALF = {"half": np.ones((2, 2), np.float16)}
REFUSED = {
    "no inputs": (
        "g () => (float[2] y) { y = Constant <value = float[2] {1, 2}> () }",
        {},
        (SourceError, "net.onnx has no inputs", "what varies as an input"),
    ),
    "an input that is only an initialiser": (
        "g (float16[2, 2] half) => (float16[2, 2] y) { y = Neg (half) }",
        HALF,
        (SourceError, "net.onnx has no inputs", "what varies as an input"),
    ),
    "an input that is a sequence": (
        "g (seq(float[2]) x) => (seq(float[2]) y) { y = Identity (x) }",
        {},
        (SourceError, "input 'x' of net.onnx is a sequence", "export it as a tensor"),
    ),
    "an output that is a sequence": (
        "g (float[N, 2] x) => (seq(float[2]) y) { y = SequenceConstruct (x) }",
        {},
        (SourceError, "output 'y' of net.onnx is a sequence", "zipmap"),
    ),
    "text": (
        "g (string[N] x) => (string[N] y) { y = Identity (x) }",
        {},
        (SourceError, "input 'x' of net.onnx has dtype string", "cast it"),
    ),
    "a scalar": (
        "g (float x) => (float y) { y = Neg (x) }",
        {},
        (SourceError, "input 'x' of net.onnx is a scalar", "one dim"),
    ),
    "weights that a CPU has no kernels for": (
        "g (float[N, 2] x) => (float[N, 2] y) { z = Cast <to = 16> (x) w = MatMul (z, brain) y = Cast <to = 1> (w) }",
        {"brain": np.ones((2, 2), ml_dtypes.bfloat16)},
        (ExportError, "has weights in BF16, for which ONNX Runtime has no kernels", "--precision bf16"),
    ),
    "a graph that draws lots": (
        "g (float[N, 2] x) => (float[N, 2] y) { noise = RandomNormalLike (x) y = Add (x, noise) }",
        {},
        (SourceError, "gives different answers to the same inputs: 'y'", "random"),
    ),
    "an operator of nobody": (
        "g (float[N, 2] x) => (float[N, 2] y) { y = others.Foo (x) }",
        {},
        (SourceError, "ONNX Runtime refuses the graph: Fatal error: others:Foo(-1) is not a registered", "operators"),
    ),
    "an unknown operator": (
        "g (float[N, 2] x) => (float[N, 2] y) { y = Nonsense (x) }",
        {},
        (SourceError, "onnx finds net.onnx wrong: No Op registered for Nonsense", "export the model again"),
    ),
    "shapes that contradict the operators": (
        "g (float[N, 2] x) => (float[N, 3] y) { y = Neg (x) }",
        {},
        (SourceError, "Inferred shape and existing shape differ", "export the model again"),
    ),
}


@pytest.mark.parametrize(("text", "weights", "expected"), REFUSED.values(), ids=REFUSED)
def test_unservable_graph_refused_with_reason(
    text: str, weights: dict[str, Any], expected: tuple[type[PlansmithError], str, str], tmp_path: Path
) -> None:
    """A graph that cannot be served is refused with a reason."""
    path = save(text, tmp_path, header='ir_version: 8, opset_import: ["": 18, "others": 1]', **weights)
    kind, says, remedy = expected
    with pytest.raises(kind) as caught:
        take(path, tmp_path / "out")
    assert says in caught.value.message
    assert remedy in caught.value.remedy
    assert str(tmp_path / "out") not in str(caught.value)
