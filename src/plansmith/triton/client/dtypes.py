"""How tensors travel between a client and Triton: names of dtypes, shapes, and NumPy's own types for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plansmith.records.model import BATCH, Dim, Record, Tensor

if TYPE_CHECKING:
    import numpy as np

STRING = "string"
BFLOAT16 = "bfloat16"

# The tensor data types of the KServe protocol: github.com/kserve/kserve, docs/predict-api/v2/required_api.md; Triton's
# own BF16 beside them.
_WIRE_NAMES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    BFLOAT16: "BF16",
    STRING: "BYTES",
}
CONFIG_TYPES = {dtype: f"TYPE_{'STRING' if dtype == STRING else name}" for dtype, name in _WIRE_NAMES.items()}
"""The names of the dtypes in Triton's model configuration."""

_DTYPES = {name: dtype for dtype, name in CONFIG_TYPES.items()}


class Signature(Record):
    """What a served model takes and answers, as its clients see it.

    The first dim of every tensor is "batch" where `max_batch_size` is above 0; a dim "?" takes any size, and dims of
    one name have one size in a request. A dtype is NumPy's name, "bfloat16" or "string".

    `optional` are the inputs that may be left out; `is_cached`, whether the server keeps answers; `is_decoupled`,
    whether a request may get several.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    max_batch_size: int
    optional: tuple[str, ...] = ()
    is_cached: bool = False
    is_decoupled: bool = False

    def words(self) -> str:
        """A line for each input and output."""
        rows = [("input", t) for t in self.inputs] + [("output", t) for t in self.outputs]
        lines = [f"{kind} {format_tensor(t)}{', may be left out' * (t.name in self.optional)}" for kind, t in rows]
        if self.max_batch_size:
            lines.append(f"{BATCH} is at most {self.max_batch_size} in a request; larger ones are split")
        return "\n".join(lines)


def format_tensor(tensor: Tensor) -> str:
    """Such as `input_ids: int64 [batch, length]`."""
    return f"{tensor.name}: {tensor.dtype} {format_dims(tensor.dims)}"


def format_dims(dims: tuple[Dim, ...]) -> str:
    """Such as `[batch, 3]`."""
    return f"[{', '.join(map(str, dims))}]"


def wire_name(dtype: str) -> str:
    """The protocol's name of a dtype of ours."""
    return _WIRE_NAMES[dtype]


def dtype_from_config(name: str) -> str:
    """Our name of a dtype of Triton's model configuration."""
    return _DTYPES[name]


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's type for a dtype of ours: objects for strings, ml_dtypes' own for bfloat16."""
    import numpy as np

    if name == BFLOAT16:
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return dtype
    return np.dtype(object if name == STRING else name)


def wire_shape(tensor: Tensor, shape: tuple[int, ...], max_batch_size: int) -> tuple[int, ...]:
    """The shape in which an array of a tensor travels: Triton knows no sample without dims, so that one gets a dim."""
    return (*shape, 1) if _is_value(tensor, max_batch_size) else shape


def own_shape(tensor: Tensor, shape: tuple[int, ...], max_batch_size: int) -> tuple[int, ...]:
    """The shape of an array that travelled in `shape`: the way back from `wire_shape`."""
    return shape[:-1] if _is_value(tensor, max_batch_size) and shape[-1:] == (1,) else shape


def _is_value(tensor: Tensor, max_batch_size: int) -> bool:
    """Whether a sample is a single value; without batching, whether all there is is one."""
    return len(tensor.dims) == (1 if max_batch_size else 0)
