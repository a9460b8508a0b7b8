"""Graphs of their own that TensorRT has no types, loops or branches for."""

from __future__ import annotations

import onnx

from plansmith.compilers.precision.graph import Graph

from .planting import TENSORRT, Mistake
from .small_graphs import graph

_TEXTS = (
    (
        "more_axes_than_eight",
        "many-axes",
        ("(float[2,2] x) => (y) { s = Constant<value=int64[9] {1,1,1,1,1,1,1,2,2}>() y = Reshape(x, s) }"),
    ),
    ("short_integers", "tensor-type", "(int16[N] x) => (y) { y = Cast<to=1>(x) }"),
    ("short_integers_inside", "tensor-type", "(float[N] x) => (y) { z = Cast<to=5>(x) y = Cast<to=1>(z) }"),
    ("bytes_that_are_moved", "uint8-inside", "(uint8[N,4] x) => (y) { z = Transpose(x) y = Cast<to=1>(z) }"),
    ("clients_send_doubles", "double-interface", "(double[N] x) => (y) { y = Cast<to=1>(x) }"),
    ("cast_to_eight_bits", "low-cast", "(float[N] x) => (y) { z = Cast<to=17>(x) y = Cast<to=1>(z) }"),
    ("product_of_integers", "refused-type", "(int64[N,4] x, int64[4,4] w) => (y) { y = MatMul(x, w) }"),
    ("range_in_half", "refused-type", "(float16 x) => (y) { o = Constant<value=float16 {1}>() y = Range(o, x, o) }"),
    ("mean_in_half", "parser-constants", "(float16[N,4] x) => (y) { y = Mean(x, x) }"),
    (
        "normalisation_in_half",
        "parser-constants",
        "(float16[N,3,4,4] x) => (y) { y = MeanVarianceNormalization(x) }",
    ),
    (
        "branches_of_other_ranks",
        "branch-ranks",
        (
            "(float[N,4] x, bool c) => (y) { y = If (c)"
            " <then_branch = t () => (a) { a = Relu(x) },"
            " else_branch = e () => (b) { i = Constant<value=int64[1] {0}>() b = Unsqueeze(x, i) }> }"
        ),
    ),
    (
        "loop_without_a_count",
        "loop-length",
        (
            "(float[4] x, bool c) => (y, ys) { y, ys = Loop ( , c, x)"
            " <body = b (int64 i, bool k, float[4] v) => (bool k2, float[4] v2, float[4] s)"
            " { k2 = Identity(k) v2 = Relu(v) s = Neg(v) }> }"
        ),
    ),
    (
        "loop_without_the_condition_that_it_reads",
        "loop-condition",
        (
            "(float[4] x) => (y) { n = Constant<value=int64 {3}>() y = Loop (n, , x)"
            " <body = b (int64 i, bool k, float[4] v) => (bool k2, float[4] v2) { k2 = Identity(k) v2 = Relu(v) }> }"
        ),
    ),
    (
        "loop_that_grows",
        "loop-shape",
        (
            "(float[4] x) => (y) { n = Constant<value=int64 {3}>() y = Loop (n, , x)"
            " <body = b (int64 i, bool k, float[4] v) => (bool k2, v2) { k2 = Not(k) v2 = Concat<axis=0>(v, v) }> }"
        ),
    ),
    (
        "scan_without_a_state",
        "scan-state",
        ("(float[S,4] x) => (ys) { ys = Scan <num_scan_inputs=1, body = b (float[4] v) => (s) { s = Relu(v) }>(x) }"),
    ),
    (
        "pooling_inside_of_a_branch",
        "operator-limit",
        (
            "(float[N,3,8,8] x, bool c) => (y) { y = If (c)"
            " <then_branch = t () => (a) { a = MaxPool<kernel_shape=[2,2], dilations=[2,2]>(x) },"
            " else_branch = e () => (b) { b = MaxPool<kernel_shape=[3,3]>(x) }> }"
        ),
    ),
)


def _planted(name: str, finding: str, text: str) -> Mistake:
    def plant(_: Graph) -> onnx.ModelProto:
        return graph(text)

    return Mistake(name, "plain cnn", finding, TENSORRT, plant)


MISTAKES = [_planted(*mistake) for mistake in _TEXTS]
