"""What TensorRT's parser reads in part: a graph beyond each limit is refused, one within it has no findings."""

from __future__ import annotations

import onnx
import pytest

from plansmith.compilers.precision.lint import operator_limits, parser_support, tensor_types
from plansmith.compilers.precision.lint.linter import Finding, lint
from plansmith.compilers.precision.lint.view import View
from plansmith.records.model import EngineKind

from ....support.precision.small_graphs import LIMITS, REFUSED_TYPES, SINCE, graph


def findings(model: onnx.ModelProto, version: str = "", *, plugins: bool = False) -> list[Finding]:
    view = View(model, EngineKind.TENSORRT, tensorrt=version, plugins=plugins)
    rules = (*parser_support.RULES, *operator_limits.RULES, *tensor_types.RULES)
    return [finding for rule in rules for finding in rule(view)]


@pytest.mark.parametrize(("words", "beyond", "within"), LIMITS, ids=[words for words, _, _ in LIMITS])
def test_a_node_beyond_what_is_read_is_refused_and_one_within_is_not(words: str, beyond: str, within: str) -> None:
    found = findings(graph(beyond))
    assert any(f.id == "operator-limit" and f.words.startswith(words) and f.remedy for f in found)
    assert {f.id for f in findings(graph(within))} <= {"standard-plugin"}


def test_there_is_a_graph_for_every_limit() -> None:
    covered = [words for words, _, _ in LIMITS] + [words for _, words, *_ in SINCE]
    untested = [limit.words for limit in operator_limits._LIMITS if not any(limit.words.startswith(w) for w in covered)]
    assert untested == []


@pytest.mark.parametrize(("kind", "words", "text", "opset", "last", "first"), SINCE, ids=[case[1] for case in SINCE])
def test_what_newer_versions_read_is_refused_for_older_ones_only(
    kind: str, words: str, text: str, opset: int, last: str, first: str
) -> None:
    model = graph(text, opset)
    assert [f.id for f in findings(model, last) if words in f.words] == [kind]
    assert not [f for f in findings(model, first) if f.id == kind]


@pytest.mark.parametrize(("operator", "kind", "text"), REFUSED_TYPES)
def test_a_type_that_tensorrt_does_not_take_is_refused(operator: str, kind: str, text: str) -> None:
    (finding,) = [f for f in findings(graph(text, 22)) if f.severity == "error"]
    assert finding.id == "refused-type"
    assert finding.words.startswith(f"is {operator} of {kind}, ")


def test_there_is_a_graph_for_every_operator_and_a_type_of_it_that_is_refused() -> None:
    refused = {operator for operators, _, _, until in tensor_types._REFUSED if until is None for operator in operators}
    assert refused - {operator for operator, _, _ in REFUSED_TYPES} == {"Range"}  # of which ONNX has no such types


def test_an_operator_that_onnx_will_have_is_unknown() -> None:
    model = graph("(float[N] x) => (y) { y = Relu(x) }")
    model.graph.node[0].op_type = "Levitate"
    assert [f.id for f in findings(model)] == ["unknown-operator"]


def test_operators_of_plugins_are_left_to_the_libraries_that_are_named() -> None:
    text = "(float[N] x) => (y) { y = com.acme.Fold(x) }"
    model = graph(text, domain="com.acme")
    assert [f.id for f in findings(model)] == ["foreign-operator"]
    assert "plugins" in findings(model)[0].remedy
    assert findings(model, plugins=True) == []


def test_the_parsers_own_operators_and_its_librarys_pass() -> None:
    own = graph("(float[N] x, float s) => (y) { y = trt.TRT_FP8QuantizeLinear(x, s) }", domain="trt")
    assert findings(own) == []
    library = graph("(float[N] x) => (y) { y = trt.EfficientNMS_TRT(x) }", domain="trt")
    assert [(f.id, f.severity) for f in findings(library)] == [("library-plugin", "warning")]


def test_one_branch_of_a_constant_condition_is_read_so_that_ranks_may_differ() -> None:
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


def test_a_loop_with_a_count_and_fixed_shapes_passes() -> None:
    assert lint(graph(LOOP), engine=EngineKind.TENSORRT) == []


def test_a_loop_without_the_condition_that_its_body_reads_is_refused() -> None:
    (found,) = lint(graph(WITHOUT_CONDITION), engine=EngineKind.TENSORRT)
    assert (found.id, found.severity) == ("loop-condition", "error")


def test_constants_inside_of_a_branch_count_as_constants() -> None:
    text = (
        "(float[N,4] x, bool c) => (y) { y = If (c)"
        " <then_branch = t () => (a) { i = Constant<value=int64[1] {1}>() a = ReduceSum(x, i) },"
        " else_branch = e () => (b) { j = Constant<value=int64[1] {1}>() b = ReduceMax(x, j) }> }"
    )
    assert lint(graph(text), engine=EngineKind.TENSORRT) == []


def test_pixels_come_in_as_bytes_and_leave_as_bytes() -> None:
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
def test_types_that_the_parser_takes_pass(text: str) -> None:
    assert lint(graph(text), engine=EngineKind.TENSORRT) == []
