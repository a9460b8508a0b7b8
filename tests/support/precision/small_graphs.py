"""Small graphs in ONNX's own text, each with one thing that TensorRT's parser refuses or reads in part."""

from __future__ import annotations

import onnx

_OPSET = 21
_OPSETS = {"Attention": 23, "TensorScatter": 24}


def graph(text: str, opset: int = 0, domain: str = "") -> onnx.ModelProto:
    """`(inputs) => (outputs) { nodes }` as a model, whose outputs have the types that ONNX finds.

    For opset 0, of one that has its operators.
    """
    opset = opset or next((first for operator, first in _OPSETS.items() if operator in text), _OPSET)
    domains = f'"" : {opset}' + (f', "{domain}" : 1' if domain else "")
    model = onnx.parser.parse_model(f"<ir_version: 10, opset_import: [{domains}]> g {text}")
    return onnx.shape_inference.infer_shapes(model)


# Words of the limit, a node beyond it, and the same operator within it.
LIMITS: tuple[tuple[str, str, str], ...] = (
    (
        "pools with dilations",
        "(float[N,3,8,8] x) => (y) { y = MaxPool<kernel_shape=[2,2], dilations=[2,2]>(x) }",
        "(float[N,3,8,8] x) => (y) { y = MaxPool<kernel_shape=[2,2], dilations=[1,1]>(x) }",
    ),
    (
        "pools over other than",
        "(float[N,3,8,8,8,8] x) => (y) { y = AveragePool<kernel_shape=[2,2,2,2]>(x) }",
        "(float[N,3,8] x) => (y) { y = AveragePool<kernel_shape=[2]>(x) }",
    ),
    (
        "convolves over other than",
        "(float[N,3,8,8,8,8] x, float[2,3,1,1,1,1] w) => (y) { y = Conv(x, w) }",
        "(float[N,3,8] x, float[2,3,1] w) => (y) { y = Conv(x, w) }",
    ),
    (
        "gives the places of the maxima",
        "(float[N,3,8,8] x) => (y, i) { y, i = MaxPool<kernel_shape=[2,2]>(x) }",
        "(float[N,3,8,8] x) => (y) { y = MaxPool<kernel_shape=[2,2]>(x) }",
    ),
    (
        "gives statistics too",
        "(float[N,3] x, float[3] s) => (y, m, v) { y, m, v = BatchNormalization<training_mode=1>(x, s, s, s, s) }",
        "(float[N,3] x, float[3] s) => (y) { y = BatchNormalization(x, s, s, s, s) }",
    ),
    (
        "normalises by the batch",
        "(float[N,3] x, float[3] s) => (y, m, v) { y, m, v = BatchNormalization<training_mode=1>(x, s, s, s, s) }",
        "(float[N,3] x, float[3] s) => (y) { y = BatchNormalization<training_mode=0>(x, s, s, s, s) }",
    ),
    (
        "gives the mean or the deviation",
        "(float[N,3] x, float[3] s) => (y, d) { y, , d = LayerNormalization(x, s) }",
        "(float[N,3] x, float[3] s) => (y) { y = LayerNormalization(x, s) }",
    ),
    (
        "has fewer than three axes",
        "(float[N,3] x, float[3] s) => (y) { y = InstanceNormalization(x, s, s) }",
        "(float[N,3,4] x, float[3] s) => (y) { y = InstanceNormalization(x, s, s) }",
    ),
    (
        "takes another norm",
        "(float[N,3,8,8] x) => (y) { y = LpPool<kernel_shape=[2,2], p=3>(x) }",
        "(float[N,3,8,8] x) => (y) { y = LpPool<kernel_shape=[2,2], p=1>(x) }",
    ),
    (
        "pools by a norm",
        "(float[N,3,8] x) => (y) { y = LpPool<kernel_shape=[2]>(x) }",
        "(float[N,3,8,8] x) => (y) { y = LpPool<kernel_shape=[2,2]>(x) }",
    ),
    (
        "looks for the place",
        "(float[4] x) => (y) { y = ArgMax<axis=0>(x) }",
        "(float[N,4] x) => (y) { y = ArgMax<axis=1>(x) }",
    ),
    (
        "wants more than 3840 values",
        "(float[N,5000] x) => (v, i) { k = Constant<value=int64[1] {4000}>() v, i = TopK(x, k) }",
        "(float[N,5000] x) => (v, i) { k = Constant<value=int64[1] {3840}>() v, i = TopK(x, k) }",
    ),
    (
        "scatters with a reduction",
        '(float[4] x, int64[2,1] i, float[2] u) => (y) { y = ScatterND<reduction="add">(x, i, u) }',
        '(float[4] x, int64[2,1] i, float[2] u) => (y) { y = ScatterND<reduction="none">(x, i, u) }',
    ),
    (
        "has a coordinate mode of its own",
        (
            "(float[N,3,8,8] x) => (y) { s = Constant<value=int64[4] {1,3,4,4}>()"
            ' y = Resize<coordinate_transformation_mode="half_pixel_symmetric">(x, , , s) }'
        ),
        '(float[N,3,8,8] x) => (y) { s = Constant<value=int64[4] {1,3,4,4}>() y = Resize<mode="cubic">(x, , , s) }',
    ),
    (
        "smooths while it shrinks",
        '(float[N,3,8,8] x, int64[4] s) => (y) { y = Resize<mode="linear", antialias=1>(x, , , s) }',
        '(float[N,3,8,8] x, int64[4] s) => (y) { y = Resize<mode="linear">(x, , , s) }',
    ),
    (
        "keeps the aspect ratio",
        '(float[N,3,8,8] x, int64[4] s) => (y) { y = Resize<keep_aspect_ratio_policy="not_larger">(x, , , s) }',
        '(float[N,3,8,8] x, int64[4] s) => (y) { y = Resize<keep_aspect_ratio_policy="stretch">(x, , , s) }',
    ),
    (
        "interpolates over more axes",
        '(float[N,3,8,8] x) => (y) { f = Constant<value=float[4] {1,2,2,2}>() y = Resize<mode="cubic">(x, , f) }',
        '(float[N,3,8,8] x) => (y) { f = Constant<value=float[4] {1,2,2,2}>() y = Resize<mode="linear">(x, , f) }',
    ),
    (
        "reduces over axes that are computed",
        "(float[N,4] x, int64[1] a) => (y) { y = ReduceSum(x, a) }",
        "(float[N,4] x) => (y) { a = Constant<value=int64[1] {1}>() y = ReduceSum(x, a) }",
    ),
    (
        "takes an axis or depth that is computed",
        "(float[N,4] x, int64 a) => (y) { y = CumSum(x, a) }",
        "(float[N,4] x) => (y) { a = Constant<value=int64 {1}>() b = Neg(a) y = CumSum(x, b) }",
    ),
    (
        "couples the input and forget gates",
        "(float[S,N,4] x, float[1,8,4] w, float[1,8,2] r) => (y) { y = LSTM<hidden_size=2, input_forget=1>(x, w, r) }",
        "(float[S,N,4] x, float[1,8,4] w, float[1,8,2] r) => (y) { y = LSTM<hidden_size=2>(x, w, r) }",
    ),
    (
        "takes the batch first",
        "(float[N,S,4] x, float[1,6,4] w, float[1,6,2] r) => (y) { y = GRU<hidden_size=2, layout=1>(x, w, r) }",
        "(float[S,N,4] x, float[1,6,4] w, float[1,6,2] r) => (y) { y = GRU<hidden_size=2, layout=0>(x, w, r) }",
    ),
    (
        "has other activations on the way back",
        (
            "(float[S,N,4] x, float[2,2,4] w, float[2,2,2] r) => (y)"
            ' { y = RNN<hidden_size=2, direction="bidirectional", activations=["Tanh","Relu"]>(x, w, r) }'
        ),
        (
            "(float[S,N,4] x, float[2,2,4] w, float[2,2,2] r) => (y)"
            ' { y = RNN<hidden_size=2, direction="bidirectional", activations=["Relu","Relu"]>(x, w, r) }'
        ),
    ),
    (
        "attends over cached keys",
        "(float[N,2,S,4] q) => (y) { y = Attention<softcap=30.0>(q, q, q) }",
        "(float[N,2,S,4] q) => (y) { y = Attention<is_causal=1>(q, q, q) }",
    ),
    (
        "gives its softmax a precision",
        "(float[N,2,S,4] q) => (y) { y = Attention<softmax_precision=1>(q, q, q) }",
        "(float[N,2,S,4] q) => (y) { y = Attention(q, q, q) }",
    ),
    (
        "drops out at inference",
        "(float[N,4] x, float r, bool t) => (y) { y = Dropout(x, r, t) }",
        "(float[N,4] x, float r) => (y) { y = Dropout(x, r) }",
    ),
    (
        "makes an identity of a size that varies",
        "(float[N,4] x) => (y) { y = EyeLike(x) }",
        "(float[3,4] x) => (y) { y = EyeLike(x) }",
    ),
    (
        "takes the largest along an axis that varies",
        "(float[4,N] x) => (y) { y = Hardmax<axis=1>(x) }",
        "(float[N,4] x) => (y) { y = Hardmax<axis=1>(x) }",
    ),
    (
        "convolves over more than two axes",
        "(float[N,3,8,8,8] x, float[2,3,1,1,1] w, float[N,3,8,8,8] o) => (y) { y = DeformConv(x, w, o) }",
        "(float[N,3,8,8] x, float[2,3,1,1] w, float[N,2,8,8] o) => (y) { y = DeformConv(x, w, o) }",
    ),
    (
        "pads one end more than the other",
        "(float[N,3,8,8] x, float[2,3,1,1] w, float[N,2,9,9] o) => (y) { y = DeformConv<pads=[0,0,1,1]>(x, w, o) }",
        "(float[N,3,8,8] x, float[2,3,1,1] w, float[N,2,10,10] o) => (y) { y = DeformConv<pads=[1,1,1,1]>(x, w, o) }",
    ),
    (
        "takes other than 4-D images",
        "(float[N,8,2] x) => (float[N,C,L] y) { y = DepthToSpace<blocksize=2>(x) }",
        "(float[N,8,2,2] x) => (y) { y = DepthToSpace<blocksize=2>(x) }",
    ),
    (
        "takes a step, window or length",
        "(float[N,64] x, int64 s, float[16] w) => (y) { y = STFT(x, s, w) }",
        "(float[N,64] x) => (y) { s = Constant<value_int=8>() l = Constant<value=int64 {16}>() y = STFT(x, s, , l) }",
    ),
    (
        "transforms complex numbers",
        (
            "(float[N,64,2] x) => (y) { s = Constant<value=int64 {8}>() l = Constant<value=int64 {16}>()"
            " y = STFT<onesided=0>(x, s, , l) }"
        ),
        (
            "(float[N,64,1] x) => (y) { s = Constant<value=int64 {8}>() l = Constant<value=int64 {16}>()"
            " y = STFT<onesided=1>(x, s, , l) }"
        ),
    ),
    (
        "names axes by other than small letters",
        '(float[N,4] x, float[4,5] w) => (y) { y = Einsum<equation="Bd,de->Be">(x, w) }',
        '(float[N,4] x, float[4,5] w) => (y) { y = Einsum<equation="bd, de -> be">(x, w) }',
    ),
    (
        "holds text or a sparse tensor",
        '(float[N] x) => (y, s) { y = Relu(x) s = Constant<value_string="a">() }',
        "(float[N] x) => (y, s) { y = Relu(x) s = Constant<value_int=1>() }",
    ),
    (
        "draws other than FP32 or FP16",
        "(float[N] x) => (y) { y = RandomNormalLike<dtype=16>(x) }",
        "(float[N] x) => (y) { y = RandomNormalLike<dtype=10>(x) }",
    ),
    *(
        (words, beyond, "(float[1,2,8,4] c, float[1,2,1,4] u, int64[1] i) => (y) { y = TensorScatter(c, u, i) }")
        for words, beyond in (
            ("updates other than 4-D caches", "(float[2,8,4] c, float[2,8,4] u) => (y) { y = TensorScatter(c, u) }"),
            (
                "updates along another axis than the third",
                "(float[1,2,8,4] c, float[1,2,8,4] u) => (y) { y = TensorScatter<axis=1>(c, u) }",
            ),
            (
                "updates around the end",
                '(float[1,2,8,4] c, float[1,2,8,4] u) => (y) { y = TensorScatter<mode="circular">(c, u) }',
            ),
        )
    ),
)

# The same, of what some versions read: the last of those that do not, and the first of those that do.
SINCE: tuple[tuple[str, str, str, int, str, str], ...] = (
    (
        "operator-limit",
        "attends without an axis of heads",
        "(float[N,S,8] q) => (y) { y = Attention<q_num_heads=2, kv_num_heads=2>(q, q, q) }",
        23,
        "10.14",
        "10.15",
    ),
    ("operator-limit", "names no axes", "(float[1,N] x) => (y) { y = Squeeze(x) }", 21, "11.4.0.106", "11.5"),
    (
        "operator-limit",
        "samples other than 4-D images",
        "(float[N,3,8,8,8] x, float[N,4,4,4,3] g) => (y) { y = GridSample(x, g) }",
        21,
        "11.1",
        "11.2",
    ),
    (
        "unknown-operator",
        "before 10.14",
        "(float[N,2,S,4] q) => (y) { y = Attention(q, q, q) }",
        23,
        "10.13.3",
        "10.14",
    ),
    (
        "unknown-operator",
        "before 10.15",
        "(float[N,4] x, float[4] s) => (y) { y = RMSNormalization(x, s) }",
        23,
        "10.14",
        "10.15",
    ),
    (
        "unknown-operator",
        "before 11.2",
        "(float[N,8,1] x) => (y) { a = Constant<value=int64 {1}>() y = DFT(x, , a) }",
        21,
        "11.1",
        "11.2",
    ),
    (
        "parser-constants",
        "is Gemm of FLOAT16",
        "(float16[N,4] x, float16[4,4] w) => (y) { y = Gemm<alpha=0.5>(x, w) }",
        21,
        "11.3",
        "11.4",
    ),
    (
        "parser-constants",
        "is IsInf of BFLOAT16",
        "(bfloat16[N,4] x) => (y) { y = IsInf<detect_negative=0>(x) }",
        21,
        "11.3",
        "11.4",
    ),
    (
        "parser-constants",
        "is RNN of FLOAT16",
        ("(float16[S,N,4] x, float16[1,2,4] w, float16[1,2,2] r) => (y) { y = RNN<hidden_size=2>(x, w, r) }"),
        21,
        "11.3",
        "11.4",
    ),
    (
        "refused-type",
        "is STFT of FLOAT16",
        "(float16[N,64] x) => (y) { s = Constant<value_int=8>() l = Constant<value=int64 {16}>() y = STFT(x, s, , l) }",
        21,
        "11.3",
        "11.4",
    ),
    (
        "refused-type",
        "is GridSample of BFLOAT16",
        "(bfloat16[N,3,8,8] x, bfloat16[N,4,4,2] g) => (y) { y = GridSample(x, g) }",
        22,
        "11.1",
        "11.2",
    ),
    ("opset", "9 to 23", "(float[N] x) => (y) { y = Relu(x) }", 24, "10.14", "10.15"),
    ("opset", "9 to 24", "(float[N] x) => (y) { y = Relu(x) }", 25, "11.4", "11.5"),
)

# Types that ONNX allows for an operator and TensorRT does not: the operator, the type, a graph.
REFUSED_TYPES: tuple[tuple[str, str, str], ...] = (
    ("MatMul", "INT64", "(int64[2,4] x, int64[4,4] w) => (y) { y = MatMul(x, w) }"),
    ("Gemm", "INT32", "(int32[2,4] x, int32[4,4] w) => (y) { y = Gemm(x, w) }"),
    ("Einsum", "INT64", '(int64[2,4] x, int64[4,5] w) => (y) { y = Einsum<equation="bd,de->be">(x, w) }'),
    ("PRelu", "INT64", "(int64[2,4] x, int64[4] s) => (y) { y = PRelu(x, s) }"),
    ("ReduceMax", "BOOL", "(bool[2,4] x) => (y) { y = ReduceMax(x) }"),
    ("ReduceMin", "BOOL", "(bool[2,4] x) => (y) { y = ReduceMin(x) }"),
    ("DepthToSpace", "BOOL", "(bool[2,8,2,2] x) => (y) { y = DepthToSpace<blocksize=2>(x) }"),
    ("SpaceToDepth", "BOOL", "(bool[2,8,2,2] x) => (y) { y = SpaceToDepth<blocksize=2>(x) }"),
    ("GridSample", "BOOL", "(bool[2,3,8,8] x, float[2,4,4,2] g) => (y) { y = GridSample(x, g) }"),
    ("Resize", "BOOL", "(bool[2,3,8,8] x) => (y) { f = Constant<value=float[4] {1,1,2,2}>() y = Resize(x, , f) }"),
    (
        "DeformConv",
        "BFLOAT16",
        "(bfloat16[2,3,8,8] x, bfloat16[2,3,1,1] w, bfloat16[2,2,8,8] o) => (y) { y = DeformConv(x, w, o) }",
    ),
    (
        "GRU",
        "BFLOAT16",
        "(bfloat16[5,2,4] x, bfloat16[1,6,4] w, bfloat16[1,6,2] r) => (y) { y = GRU<hidden_size=2>(x, w, r) }",
    ),
    ("GlobalLpPool", "BFLOAT16", "(bfloat16[2,3,8,8] x) => (y) { y = GlobalLpPool(x) }"),
    ("LpPool", "BFLOAT16", "(bfloat16[2,3,8,8] x) => (y) { y = LpPool<kernel_shape=[2,2]>(x) }"),
    ("Mish", "BFLOAT16", "(bfloat16[2,4] x) => (y) { y = Mish(x) }"),
    ("NonZero", "BFLOAT16", "(bfloat16[4] x) => (y) { y = NonZero(x) }"),
    ("RoiAlign", "BFLOAT16", "(bfloat16[2,3,8,8] x, bfloat16[3,4] r, int64[3] b) => (y) { y = RoiAlign(x, r, b) }"),
)

# What TensorRT takes under a condition: what the lint of plans says of it, and a graph.
DOUBTFUL: tuple[tuple[str, str], ...] = (
    (
        "standard-plugin",
        '(float[4] x, int64[2] i, float[2] u) => (y) { y = ScatterElements<reduction="add">(x, i, u) }',
    ),
    (
        "standard-plugin",
        (
            "(float[2,3,8,8] x, float[3,4] r, int64[3] b) => (y)"
            " { y = RoiAlign<output_height=2, output_width=2>(x, r, b) }"
        ),
    ),
    (
        "deciding-contents",
        "(float n) => (y) { z = Constant<value=float {0}>() o = Constant<value=float {1}>() y = Range(z, n, o) }",
    ),
    ("uint8-inside", "(uint8[2,4] x) => (y) { y = Cast<to=7>(x) }"),
    (
        "computed-scale",
        (
            "(float[2,4] x) => (y) { s = ReduceMax<keepdims=0>(x) z = Constant<value=int8 {0}>()"
            " q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) y = Relu(d) }"
        ),
    ),
    (
        "branch-names",
        (
            "(float[2,4] x, bool c) => (y) { y = If (c) <then_branch = t () => (a) { a = Relu(x) },"
            " else_branch = e () => (a) { a = Neg(x) }> }"
        ),
    ),
    *(
        (
            "half-norm",
            (
                f"(float16[2,8] x, float16[8] w, float16[1] e) => (y) {{ a = Constant<value=int64[1] {{-1}}>()"
                f" t = Constant<value=float16 {{16384}}>() p = {square} m = ReduceMean(p, a) s = Add(m, e) q = Sqrt(s)"
                " d = Div(x, q) y = Mul(d, w) }"
            ),
        )
        for square in ("Pow(x, t)", "Mul(x, x)")  # t is 2, by its bits
    ),
    ("double-precision", "(float[2] x) => (y) { z = Cast<to=11>(x) y = Cast<to=1>(z) }"),
)
