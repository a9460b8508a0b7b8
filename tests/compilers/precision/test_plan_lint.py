"""Before a plan is built: what profiles leave open, and what TensorRT or Triton cannot do with a graph."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from plansmith.compilers import onnx_files
from plansmith.compilers.precision.lint.linter import Finding
from plansmith.compilers.precision.requests import LintPlanRequest
from plansmith.compilers.shape_inputs import inputs_that_decide, shape_inputs
from plansmith.compilers.trt import lint
from plansmith.compilers.trt.lint import lint_for_plan, lint_plan
from plansmith.errors import ExportError
from plansmith.records.engine import OptimizationProfile
from plansmith.records.model import InputRange, LoweredModel, Precision

from ...support.precision import lint_graphs
from ...support.precision.small_graphs import DOUBTFUL, graph

RELU = "(float[batch,4] x) => (y) { y = Relu(x) }"
RESHAPED = "(float[batch,4] x, int64[2] s) => (float[rows,columns] y) { y = Reshape(x, s) }"


def fixed(*shape: int) -> InputRange:
    return InputRange(min=shape, opt=shape, max=shape)


def profile(name: str = "default", /, **shapes: InputRange) -> OptimizationProfile:
    return OptimizationProfile(name=name, shapes=shapes)


def lint_of(
    model: onnx.ModelProto, folder: Path, *profiles: OptimizationProfile, version: str = "10.16"
) -> list[Finding]:
    path = onnx_files.save(model, folder)
    findings = lint_for_plan(path, profiles=profiles, component=onnx_files.describe(path), tensorrt=version)
    assert all(finding.remedy for finding in findings)
    return findings


def ids(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.id, finding.severity) for finding in findings]


@pytest.mark.parametrize("version", ["10.12", "10.16.1.11", "11.0", "11.4.0.106"])
@pytest.mark.parametrize("make", [lint_graphs.attention, lint_graphs.cnn])
def test_ordinary_graph_has_no_findings(make: object, version: str, tmp_path: Path) -> None:
    """An ordinary graph with its profile has no findings."""
    assert callable(make)
    model = make()
    names = [value.name for value in model.graph.input]
    shapes = {name: fixed(1, 3, 12, 12) if name == "image" else fixed(2, 7) for name in names}
    assert lint_of(model, tmp_path, profile(**shapes), version=version) == []


def test_quantised_graph_gets_lowering_rules(tmp_path: Path) -> None:
    """A quantised graph is looked at with the rules of lowering too."""
    model = lint_graphs.quantised(lint_graphs.cnn(), lint_graphs.LAYERS)
    assert lint_of(model, tmp_path, profile(image=fixed(1, 3, 12, 12))) == []
    zero = next(tensor for tensor in model.graph.initializer if tensor.name == "image_zero")
    zero.CopyFrom(onnx.numpy_helper.from_array(np.asarray(3, np.int8), zero.name))
    findings = lint_of(model, tmp_path, profile(image=fixed(1, 3, 12, 12)))
    assert ("asymmetric-zero-point", "error") in ids(findings)


def test_fixed_graph_needs_no_profile(tmp_path: Path) -> None:
    """A graph of fixed shapes needs no profile."""
    assert lint_of(graph("(float[2,4] x) => (y) { y = Relu(x) }"), tmp_path) == []


def test_what_varies_needs_a_profile(tmp_path: Path) -> None:
    assert ids(lint_of(graph(RELU), tmp_path)) == [("no-profile", "error")]


def test_unnamed_axis_needs_profile(tmp_path: Path) -> None:
    """An axis without a name needs a profile too."""
    model = graph("(float[?,4] x) => (y) { y = Relu(x) }")
    assert ids(lint_of(model, tmp_path)) == [("no-profile", "error")]
    assert lint_of(model, tmp_path, profile(x=fixed(3, 4))) == []


def test_profile_names_varying_inputs(tmp_path: Path) -> None:
    """Every profile has to name every input that varies."""
    model = graph("(float[batch,4] x, float[batch,4] z, float[4] w) => (y) { a = Add(x, z) y = Add(a, w) }")
    both = profile(x=fixed(1, 4), z=fixed(1, 4))
    (finding,) = lint_of(model, tmp_path, both, profile("large", x=fixed(8, 4)))
    assert finding.id == "no-profile"
    assert "'z'" in finding.message
    assert "'large'" in finding.message


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ({"x": fixed(1, 4, 1)}, "gives 3 axes and not 2"),
        ({"x": fixed(1, 5)}, "changes a fixed size"),
        ({"x": InputRange(min=(4, 4), opt=(2, 4), max=(8, 4))}, "is not 0 <= min <= opt <= max"),
        ({"x": fixed(1, 4), "ids": fixed(1, 4)}, "no input 'ids'"),
    ],
)
def test_unfitting_profile_refused(ranges: dict[str, InputRange], words: str, tmp_path: Path) -> None:
    """A profile that does not fit the graph is refused."""
    (finding,) = lint_of(graph(RELU), tmp_path, profile(**ranges))
    assert finding.id == "profile-shape"
    assert words in finding.message


def test_shape_input_needs_profile_values(tmp_path: Path) -> None:
    """An input that holds a shape needs values in every profile."""
    model = graph(RESHAPED)
    without = profile(x=fixed(1, 4))
    with_values = without.model_copy(update={"values": {"s": fixed(2, 2)}})
    assert lint_of(model, tmp_path, with_values) == []
    (finding,) = lint_of(model, tmp_path, with_values, without)
    assert finding.id == "shape-values"
    assert "constant" in finding.remedy


def test_oversized_shape_refused(tmp_path: Path) -> None:
    """A shape of more values than TensorRT reads is refused."""
    text = "(float[batch] x, int64[70] s) => (y) { t = ReduceSum(s) e = Expand(x, t) y = Relu(e) }"
    findings = lint_of(graph(text), tmp_path, profile(x=fixed(1)))
    assert ("shape-values", "error") in ids(findings)


def test_sizes_from_large_input_doubtful(tmp_path: Path) -> None:
    """Sizes out of the contents of a large input are doubtful."""
    text = (
        "(int64[batch,length] ids) => (int64[n] y) { z = Constant<value=int64 {0}>() o = Constant<value=int64 {1}>()"
        " m = ReduceMax<keepdims=0>(ids) y = Range(z, m, o) }"
    )
    assert ids(lint_of(graph(text), tmp_path, profile(ids=fixed(2, 8)))) == [("deciding-contents", "warning")]


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        ("(float[batch,4] x) => (int64[n,2] y) { z = NonZero(x) y = Transpose(z) }", "error"),
        ("(float[batch,4] x) => (int64[2,n] y) { y = NonZero(x) }", "warning"),
        ("(float[4] x) => (int64[n,1] y) { z = NonZero(x) y = Transpose(z) }", "warning"),
    ],
)
def test_content_sized_output_cannot_be_cut(text: str, severity: str, tmp_path: Path) -> None:
    """An output whose length its contents decide cannot be cut by requests."""
    model = graph(text)
    profiles = [profile(x=fixed(1, 4))] if "batch" in text else []
    assert ids(lint_of(model, tmp_path, *profiles)) == [("counted-output", severity)]


def test_written_places_leave_output_length(tmp_path: Path) -> None:
    """Places that are only written to do not decide an output's length."""
    text = (
        "(float[batch,4] x, float[k] u) => (float[batch,4] y)"
        " { i = NonZero(x) t = Transpose(i) y = ScatterND(x, t, u) }"
    )
    assert lint_of(graph(text), tmp_path, profile(x=fixed(1, 4), u=fixed(2))) == []


@pytest.mark.parametrize(("finding", "text"), DOUBTFUL)
def test_conditional_support_is_warning(finding: str, text: str, tmp_path: Path) -> None:
    """What TensorRT takes under a condition is a warning."""
    assert set(ids(lint_of(graph(text), tmp_path))) == {(finding, "warning")}


def test_shape_findings_have_tests() -> None:
    """Every finding on shapes has a test."""
    finding_ids = set(re.findall(r'Finding\(\s*"([a-z0-9-]+)"', Path(lint.__file__).read_text()))
    assert len(finding_ids) == 5
    tests = Path(__file__).read_text()
    assert [name for name in finding_ids if f'"{name}"' not in tests] == []


def test_outside_weights_not_read(tmp_path: Path) -> None:
    """Weights beside the graph are not read."""
    model = lint_graphs.cnn()
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True, location="w", size_threshold=64)
    (tmp_path / "w").unlink()
    path = tmp_path / "model.onnx"
    profiles = [profile(image=fixed(1, 3, 12, 12))]
    assert lint_for_plan(path, profiles=profiles, component=onnx_files.describe(path), tensorrt="10.16") == []


def test_needed_outside_value_is_read(tmp_path: Path) -> None:
    """A value that a rule needs is read from a file beside the graph."""
    model = lint_graphs.quantised(lint_graphs.cnn(), lint_graphs.LAYERS)
    scale = next(tensor for tensor in model.graph.initializer if tensor.name == "conv1_w_scale")
    scale.CopyFrom(onnx.numpy_helper.from_array(np.zeros(8, np.float32), scale.name))
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w", size_threshold=0)
    profiles = [profile(image=fixed(1, 3, 12, 12))]
    findings = lint_for_plan(path, profiles=profiles, component=onnx_files.describe(path), tensorrt="10.16")
    assert {finding.id for finding in findings} == {"bad-scale"}


def lowered(folder: Path, text: str) -> LoweredModel:
    path = onnx_files.save(graph(text), folder)
    return LoweredModel(
        components={"model": onnx_files.describe(path)}, precision=Precision.FP32, recipe=None, trials=(), layers=()
    )


def test_worker_refuses_unbuildable_graph(tmp_path: Path) -> None:
    """The worker refuses what cannot be built and passes on what is doubtful."""
    messages: list[str] = []
    request = LintPlanRequest(
        lowered=lowered(tmp_path, "(float[batch,3,8,8] x) => (y, i) { y, i = MaxPool<kernel_shape=[2,2]>(x) }"),
        folder=tmp_path,
        profiles=(profile(x=fixed(1, 3, 8, 8)),),
        tensorrt="11.4",
    )
    with pytest.raises(ExportError, match=r"for TensorRT 11\.4.*\n.*\[operator-limit\]") as refused:
        lint_plan(request, messages.append)
    assert "set engine: onnxruntime" in refused.value.remedy
    accepting = request.model_copy(update={"accepted": ("operator-limit",)})
    (warning,) = lint_plan(accepting, messages.append).warnings
    assert warning.endswith("[operator-limit]")
    assert len(messages) == 2


SHAPES = [
    (RESHAPED, ("s",)),
    (
        "(float[n] x, int64 a) => (y) { z = Constant<value=int64[1] {0}>() b = Unsqueeze(a, z) y = Expand(x, b) }",
        ("a",),
    ),
    ("(float[n,m] x, int64[2] s) => (y) { f = Shape(s) y = Expand(x, f) }", ()),
    ("(int64[n] ids, float[9,4] w) => (y) { y = Gather(w, ids) }", ()),
    ("(float[n] x, int32[1] a) => (y) { b = Cast<to=7>(a) c = Add(b, b) y = Tile(x, c) }", ("a",)),
    ("(float[n] x, float[1] a) => (y) { b = Cast<to=7>(a) y = Tile(x, b) }", ()),
]


@pytest.mark.parametrize(("text", "names"), SHAPES)
def test_shape_inputs_found_through_arithmetic(text: str, names: tuple[str]) -> None:
    """Inputs that hold a shape are found through the arithmetic of shapes."""
    assert shape_inputs(graph(text)) == names


def test_branch_size_counts() -> None:
    """A size inside of a branch counts too."""
    text = (
        "(float[n] x, int64[1] s, bool c) => (y) { y = If (c) <then_branch = t () => (a) { a = Expand(x, s) },"
        " else_branch = e () => (b) { b = Relu(x) }> }"
    )
    assert shape_inputs(graph(text)) == ("s",)
    assert set(inputs_that_decide(graph(text))) == {"s"}
