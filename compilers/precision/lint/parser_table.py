"""What TensorRT's ONNX parser reads, by version: operators, opsets, types.

From the parser's own table (docs/operators.md of onnx-tensorrt for TensorRT 10.15), its changelog (docs/Changelog.md,
10.12 to 10.15) and NVIDIA's release notes (github.com/NVIDIA/TensorRT/releases, v11.0 to v11.5). A version that is not
known yet is taken for the newest one that is.
"""

from __future__ import annotations

OLDEST_OPSET = 9

Version = tuple[int, int]
NEWEST: Version = (11, 5)
# The version whose API TensorRT-RTX 1.7.1 has; its parser takes some things that the sources of 10.15 refuse.
RTX_API: Version = (11, 4)
COMMON: Version = (10, 15)

# ONNX 1.18 (opset 23) from 10.11 on, the table of 10.15 and 11.2 ends at 24, 11.5 adds 25.
_OPSETS: tuple[tuple[Version, int], ...] = (((11, 5), 25), ((10, 15), 24), ((10, 0), 23))

# Operators of ONNX itself that versions before these lack.
_SINCE: dict[str, Version] = {
    "Attention": (10, 14),
    "RMSNormalization": (10, 15),
    "RotaryEmbedding": (10, 15),
    "TensorScatter": (10, 15),
    "Swish": (11, 0),
    "DFT": (11, 2),
}

_READ = """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization BlackmanWindow Cast
    CastLike Ceil Celu Clip Concat Constant ConstantOfShape Conv ConvTranspose Cos Cosh CumSum DeformConv DepthToSpace
    DequantizeLinear Div Dropout Einsum Elu Equal Erf Exp Expand EyeLike Flatten Floor GRU Gather GatherElements
    GatherND Gelu Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool Greater GreaterOrEqual GridSample
    GroupNormalization HammingWindow HannWindow HardSigmoid HardSwish Hardmax Identity If ImageScaler
    InstanceNormalization IsInf IsNaN LRN LSTM LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax Loop
    LpNormalization LpPool MatMul Max MaxPool Mean MeanVarianceNormalization Min Mish Mod Mul Neg NonMaxSuppression
    NonZero Not OneHot Or PRelu Pad ParametricSoftplus Pow QuantizeLinear RNN RandomNormal RandomNormalLike
    RandomUniform RandomUniformLike Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax
    ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize ReverseSequence RoiAlign Round STFT
    ScaledTanh Scan Scatter ScatterElements ScatterND Selu Shape Shrink Sigmoid Sign Sin Sinh Size Slice Softmax
    Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Tan Tanh ThresholdedRelu Tile TopK Transpose Trilu
    Unsqueeze Upsample Where Xor
"""

# Operators that it builds with plugins of libnvinfer_plugin (onnxOpImporters.cpp; DFT: NVIDIA's release notes of 11.2).
_BY_PLUGIN = frozenset({"DFT", "DeformConv", "RoiAlign"})

# Operators of the parser's own, in any domain: those of NVIDIA's quantiser, and layers of TensorRT.
_OWN = """
    TRT_Attention TRT_BlockDequantize TRT_BlockQuantize TRT_DynamicQuantize TRT_FP4DynamicQuantize
    TRT_FP8DequantizeLinear TRT_FP8QuantizeLinear TRT_INT4DequantizeLinear TRT_INT4QuantizeLinear TRT_KVCacheUpdate
    TRT_MXFP8DequantizeLinear TRT_MXFP8DynamicQuantize TRT_MXFP8QuantizeLinear TRT_MoE TRT_QuantizedAttention
"""
_LIBRARY_SUFFIX = "_TRT"

# What `convertDtype` of its importerUtils.cpp knows; FP64 becomes FP32.
TYPES = frozenset(
    {
        "BFLOAT16",
        "BOOL",
        "DOUBLE",
        "FLOAT",
        "FLOAT16",
        "FLOAT4E2M1",
        "FLOAT8E4M3FN",
        "INT32",
        "INT4",
        "INT64",
        "INT8",
        "UINT8",
    }
)
MOST_DIMS = 8


def version_of(text: str) -> Version:
    """The version of a text such as "10.16.1.11"; the newest known for an empty one."""
    numbers = text.split(".")
    return (int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 0) if text else NEWEST


def before(version: Version | None) -> str:
    """The end of a sentence on what a version is the first to read, such as " before 11.2"; empty for None."""
    return f" before {version[0]}.{version[1]}" if version else ""


def newest_opset(version: Version) -> int:
    """The newest opset of ONNX that a version's parser reads."""
    return next((opset for since, opset in _OPSETS if version >= since), _OPSETS[-1][1])


def since(operator: str) -> Version | None:
    """The first version that reads an operator of ONNX; None where no known one does."""
    return (10, 0) if operator in _READ.split() else _SINCE.get(operator)


def is_by_plugin(operator: str, reduction: str) -> bool:
    """Whether the parser builds an operator of ONNX with a plugin of TensorRT's library: some, or what reduces."""
    return operator in _BY_PLUGIN or (operator in {"Scatter", "ScatterElements"} and reduction != "none")


def is_own(operator: str) -> bool:
    """Whether the parser reads an operator of another domain by itself."""
    return operator in _OWN.split()


def is_library_plugin(operator: str) -> bool:
    """Whether an operator has the name of a plugin in NVIDIA's own library."""
    return operator.endswith(_LIBRARY_SUFFIX)
