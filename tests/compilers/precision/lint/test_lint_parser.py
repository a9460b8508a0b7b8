"""What TensorRT's parser reads in part: a graph beyond each limit is refused, one within it has no findings."""

from __future__ import annotations

import onnx
import pytest

from plansmith.compilers.precision.lint import operator_rules, type_rules
from plansmith.compilers.precision.lint.linter import Finding, lint
from plansmith.compilers.precision.lint.view import View
from plansmith.records.model import EngineKind

from ....support.precision.small_graphs import LIMITS, REFUSED_TYPES, SINCE, graph


def findings(model: onnx.ModelProto, version: str = "", *, plugins: bool = False) -> list[Finding]:
    view = View(model, EngineKind.TENSORRT, tensorrt=version, plugins=plugins)
    rules = (*operator_rules.SUPPORT_RULES, *operator_rules.LIMIT_RULES, *type_rules.TENSOR_RULES)
    return [finding for rule in rules for finding in rule(view)]


@pytest.mark.parametrize(("words", "beyond", "within"), LIMITS, ids=[words for words, _, _ in LIMITS])
def test_node_beyond_limit_refused(words: str, beyond: str, within: str) -> None:
    """A node beyond what is read is refused, and one within is not."""
    results = findings(graph(beyond))
    assert any(f.id == "operator-limit" and f.message.startswith(words) and f.remedy for f in results)
    assert {f.id for f in findings(graph(within))} <= {"standard-plugin"}


def test_every_limit_has_graph() -> None:
    """There is a graph for every limit."""
    covered = [description for description, _, _ in LIMITS] + [description for _, description, *_ in SINCE]
    untested = [
        limit.description
        for limit in operator_rules._LIMITS
        if not any(limit.description.startswith(w) for w in covered)
    ]
    assert untested == []


@pytest.mark.parametrize(("kind", "words", "text", "opset", "last", "first"), SINCE, ids=[case[1] for case in SINCE])
def test_newer_features_refused_for_older(kind: str, words: str, text: str, opset: int, last: str, first: str) -> None:
    """What only newer versions read is refused for older ones."""
    model = graph(text, opset)
    assert [f.id for f in findings(model, last) if words in f.message] == [kind]
    assert not [f for f in findings(model, first) if f.id == kind]


@pytest.mark.parametrize(("operator", "kind", "text"), REFUSED_TYPES)
def test_unsupported_type_refused(operator: str, kind: str, text: str) -> None:
    """A type that TensorRT does not take is refused."""
    (finding,) = [f for f in findings(graph(text, 22)) if f.severity == "error"]
    assert finding.id == "refused-type"
    assert finding.message.startswith(f"is {operator} of {kind}, ")


def test_every_operator_has_refused_type() -> None:
    """There is a graph for every operator, with a type of it that is refused."""
    refused = {operator for operators, _, _, until in type_rules._REFUSED if until is None for operator in operators}
    assert refused - {operator for operator, _, _ in REFUSED_TYPES} == {"Range"}  # of which ONNX has no such types


def test_future_operator_is_unknown() -> None:
    """An operator that ONNX is yet to have is unknown."""
    model = graph("(float[N] x) => (y) { y = Relu(x) }")
    model.graph.node[0].op_type = "Levitate"
    assert [f.id for f in findings(model)] == ["unknown-operator"]


def test_plugin_operators_left_to_libraries() -> None:
    """Operators of plugins are left to the libraries that are named."""
    text = "(float[N] x) => (y) { y = com.acme.Fold(x) }"
    model = graph(text, domain="com.acme")
    assert [f.id for f in findings(model)] == ["foreign-operator"]
    assert "plugins" in findings(model)[0].remedy
    assert findings(model, plugins=True) == []


def test_parser_and_library_operators_pass() -> None:
    """The parser's own operators and its library's pass."""
    own = graph("(float[N] x, float s) => (y) { y = trt.TRT_FP8QuantizeLinear(x, s) }", domain="trt")
    assert findings(own) == []
    library = graph("(float[N] x) => (y) { y = trt.EfficientNMS_TRT(x) }", domain="trt")
    assert [(f.id, f.severity) for f in findings(library)] == [("library-plugin", "warning")]


def test_constant_condition_reads_one_branch() -> None:
    """One branch of a constant condition is read, so that ranks may differ."""
    text = (
        "(float[N,4] x) => (y) { c = Constant<value=bool {1}>() y = If (c) <then_branch = t () => (a) { a = Relu(x) },"
        " else_branch = e () => (b) { i = Constant<value=int64[1] {0}>() b = Unsqueeze(x, i) }> }"
    )
    assert lint(graph(text), engine=EngineKind.TENSORRT) == []


LOOP = (
    "(float[4] x) => (y, ys) { n = Constant<value=int64 {3}>() t = Constant<value=bool {1}>() y, ys = Loop (n, t, x)"
    " <body = b (int64 i, bool k, float[4] v) => (bool k2, float[4] v2, float[4] s)"
    " { k2 = Identity(k) v2 = Relu(v) s = Neg(v) }> }"
)
WITHOUT_CONDITION = LOOP.replace("(n, t, x)", "(n, , x)")


def test_counted_loop_passes() -> None:
    """A loop with a count and fixed shapes passes."""
    assert lint(graph(LOOP), engine=EngineKind.TENSORRT) == []


def test_loop_without_condition_refused() -> None:
    """A loop without the condition that its body reads is refused."""
    (finding,) = lint(graph(WITHOUT_CONDITION), engine=EngineKind.TENSORRT)
    assert (finding.id, finding.severity) == ("loop-condition", "error")


def test_branch_constants_count() -> None:
    """Constants inside of a branch count as constants."""
    text = (
        "(float[N,4] x, bool c) => (y) { y = If (c)"
        " <then_branch = t () => (a) { i = Constant<value=int64[1] {1}>() a = ReduceSum(x, i) },"
        " else_branch = e () => (b) { j = Constant<value=int64[1] {1}>() b = ReduceMax(x, j) }> }"
    )
    assert lint(graph(text), engine=EngineKind.TENSORRT) == []


def test_pixels_stay_bytes() -> None:
    """Pixels come in as bytes and leave as bytes."""
    text = "(uint8[N,4] x) => (y) { f = Cast<to=1>(x) z = Relu(f) y = Cast<to=2>(z) }"
    assert lint(graph(text), engine=EngineKind.TENSORRT) == []


@pytest.mark.parametrize(
    "text",
    [
        "(float16[N,4] x, float16[4,4] w) => (y) { y = Gemm<transB=1>(x, w) }",
        "(float[N,4] x, float[4,4] w) => (y) { y = Gemm<alpha=0.5>(x, w) }",
        "(float16[N,4] x) => (y) { y = IsInf(x) }",
        "(float[4] x, int64[2] i, float[2] u) => (y) { y = ScatterElements(x, i, u) }",
        (
            "(float16[2,8] x, float[1] e) => (y) { t = Constant<value=float {2}>() a = Constant<value=int64[1] {-1}>()"
            " z = Cast<to=1>(x) p = Pow(z, t) m = ReduceMean(p, a) s = Add(m, e) q = Sqrt(s) y = Div(z, q) }"
        ),
        "(int64 n) => (y) { o = Constant<value=int64 {1}>() y = Range(o, n, o) }",
    ],
)
def test_supported_types_pass(text: str) -> None:
    """Types that the parser takes pass."""
    assert lint(graph(text), engine=EngineKind.TENSORRT) == []
