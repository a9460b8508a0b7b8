"""Tensor encoding between client and Triton: dtype names, shapes, and the NumPy types for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plansmith.records.model import ANONYMOUS, BATCH, Dim, Record, Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from tritonclient.grpc import model_config_pb2 as pb

    from plansmith.records.release import Package


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
    """Signature: the inputs and outputs of a served model, as clients see them.

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

    def describe(self) -> str:
        """The signature as text, one line for each input and output."""
        rows = [("input", t) for t in self.inputs] + [("output", t) for t in self.outputs]
        lines = [f"{kind} {format_tensor(t)}{', may be left out' * (t.name in self.optional)}" for kind, t in rows]
        if self.max_batch_size:
            lines.append(f"{BATCH} is at most {self.max_batch_size} in a request; larger ones are split")
        return "\n".join(lines)


def format_tensor(tensor: Tensor) -> str:
    """Format a tensor, such as `input_ids: int64 [batch, length]`."""
    return f"{tensor.name}: {tensor.dtype} {format_dims(tensor.dims)}"


def format_dims(dims: tuple[Dim, ...]) -> str:
    """Format dims, such as `[batch, 3]`."""
    return f"[{', '.join(map(str, dims))}]"


def wire_name(dtype: str) -> str:
    """Return the protocol's name of a plansmith dtype."""
    return _WIRE_NAMES[dtype]


def dtype_from_config(name: str) -> str:
    """Return the plansmith dtype of a data type in Triton's model configuration."""
    return _DTYPES[name]


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy type of a plansmith dtype: objects for strings, that of ml_dtypes for bfloat16."""
    import numpy as np

    if name == BFLOAT16:
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return dtype
    return np.dtype(object if name == STRING else name)


def wire_shape(tensor: Tensor, shape: tuple[int, ...], max_batch_size: int) -> tuple[int, ...]:
    """Return the shape of a tensor on the wire: Triton has no scalar samples, so these get one dim."""
    return (*shape, 1) if _is_value(tensor, max_batch_size) else shape


def own_shape(tensor: Tensor, shape: tuple[int, ...], max_batch_size: int) -> tuple[int, ...]:
    """Return the array shape for a wire shape: the inverse of `wire_shape`."""
    return shape[:-1] if _is_value(tensor, max_batch_size) and shape[-1:] == (1,) else shape


def _is_value(tensor: Tensor, max_batch_size: int) -> bool:
    """Whether a tensor holds a single value per sample, or a single value in all without batching."""
    return len(tensor.dims) == (1 if max_batch_size else 0)


def signature_from_config(config: pb.ModelConfig) -> Signature:
    """Return the signature from a configuration as Triton auto-completed it.

    A tensor that is reshaped has for clients the dims of the configuration, and not those of the model; but one that
    is a single value in the model is one for clients, too, and gets its dim on the wire alone (see `wire_shape`).
    """
    batch = config.max_batch_size
    return Signature(
        inputs=_tensors(config.input, batch),
        outputs=_tensors(config.output, batch),
        max_batch_size=batch,
        optional=tuple(entry.name for entry in config.input if entry.optional),
        is_cached=config.response_cache.enable,
        is_decoupled=config.model_transaction_policy.decoupled,
    )


def signature_from_package(package: Package) -> Signature:
    """Return a release's signature, without what only its configuration tells (see `completed_signature`)."""
    return Signature(
        inputs=package.interface.inputs,
        outputs=package.interface.outputs,
        max_batch_size=package.max_batch_size,
        is_decoupled=package.decoupled,
    )


def completed_signature(signature: Signature, config: pb.ModelConfig) -> Signature:
    """Complete a signature from the configuration: optional inputs, and whether responses are cached."""
    complete = signature_from_config(config)
    fields = ("optional", "is_cached", "is_decoupled")
    return signature.model_copy(update={name: getattr(complete, name) for name in fields})


def _tensors(entries: Iterable[pb.ModelInput | pb.ModelOutput], batch: int) -> tuple[Tensor, ...]:
    from plansmith.triton.messages import model_config_pb2 as pb

    tensors = []
    for entry in entries:
        is_value = entry.HasField("reshape") and not entry.reshape.shape and list(entry.dims) == [1]
        own: list[Dim] = [] if is_value else [ANONYMOUS if size == -1 else size for size in entry.dims]
        dtype = dtype_from_config(pb.DataType.Name(entry.data_type))
        tensors.append(Tensor(name=entry.name, dtype=dtype, dims=(BATCH, *own) if batch else tuple(own)))
    return tuple(tensors)
