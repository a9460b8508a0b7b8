"""What a written configuration says, in the words of rules: dtypes, devices, names and lines."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING, Any

from plansmith.triton.checker.model_folder import CheckContext, ModelFolder

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

_NUMPY = {
    "TYPE_BOOL": "bool",
    "TYPE_FP16": "float16",
    "TYPE_FP32": "float32",
    "TYPE_FP64": "float64",
    "TYPE_BF16": "bfloat16",
    "TYPE_STRING": "string",
    **{f"TYPE_{sign}INT{bits}": f"{sign}int{bits}".lower() for sign in ("", "U") for bits in (8, 16, 32, 64)},
}

_WRITTEN = {name: written for written, name in _NUMPY.items()}

_NO_COMPLETION = ("--disable-auto-complete-config", "--disable-auto-complete-config=true", "--strict-model-config=true")


def data_type(entry: pb.ModelInput | pb.ModelOutput) -> str:
    """The name that Triton has for the dtype of an entry, such as "TYPE_INT64"."""
    from tritonclient.grpc import model_config_pb2 as pb

    return enum_name(pb.DataType, entry.data_type)


def numpy_name(written: str) -> str:
    """NumPy's name of a dtype of Triton's, empty for none."""
    return _NUMPY.get(written, "")


def triton_name(dtype: str) -> str:
    """Triton's name of a dtype, empty where it has none."""
    return _WRITTEN.get(dtype, "")


def inner_dims(entry: pb.ModelInput | pb.ModelOutput) -> tuple[int, ...]:
    """The dims that the model gets of an entry, without the batch: those of its reshape, where it has one."""
    return tuple(entry.reshape.shape if entry.HasField("reshape") else entry.dims)


def format_config_dims(dims: Iterable[int | str]) -> str:
    """Dims as in a configuration; "?" for one of which nothing is said."""
    return f"[{', '.join(str(dim) if dim != '' else '?' for dim in dims)}]"


def kinds(config: pb.ModelConfig | None) -> tuple[str, ...]:
    """The kinds of the instance groups, such as "KIND_GPU"; none where none is written."""
    if config is None:
        return ()
    return tuple(enum_name(group.Kind, group.kind) for group in config.instance_group)


def entry_line(model: ModelFolder, name: str) -> int:
    """The line of the configuration that names a tensor; 0 where none does."""
    return model.line_of(f'"{name}"') or model.line_of(f"'{name}'")


def completes(surroundings: CheckContext) -> bool:
    """Whether the server completes configurations, as it does unless it is told not to."""
    return not any(argument in _NO_COMPLETION for argument in surroundings.arguments)


def generated_inputs(config: pb.ModelConfig) -> tuple[str, ...]:
    """Inputs of the model that Triton makes itself: controls and states of sequences, and those of `batch_input`."""
    controls = (control.name for control in config.sequence_batching.control_input)
    states = (state.input_name for state in config.sequence_batching.state)
    batches = (name for batch_input in config.batch_input for name in batch_input.target_name)
    return (*controls, *states, *batches)


def has_own_batch(config: pb.ModelConfig, entry: pb.ModelInput | pb.ModelOutput) -> bool:
    """Whether the batch of a tensor is not its first dim in the model: of ragged inputs, and in `batch_output`."""
    targets = {name for batch_output in config.batch_output for name in batch_output.target_name}
    return bool(getattr(entry, "allow_ragged_batch", False)) or entry.name in targets


def backend_setting(surroundings: CheckContext, backend: str, setting: str) -> str:
    """What the server's arguments say of a backend's setting; the last one counts; empty where none does."""
    wanted = f"{backend},{setting}="
    found = [value for value in surroundings.argument("backend-config") if value.startswith(wanted)]
    return found[-1].removeprefix(wanted) if found else ""


def enum_name(enum: Any, number: int) -> str:
    """The name of a value of an enum; its digits where it has none."""
    return str(enum.Name(number)) if number in enum.values() else str(number)


_SIZES = {
    "TYPE_BOOL": 1,
    "TYPE_UINT8": 1,
    "TYPE_INT8": 1,
    "TYPE_UINT16": 2,
    "TYPE_INT16": 2,
    "TYPE_FP16": 2,
    "TYPE_BF16": 2,
    "TYPE_UINT32": 4,
    "TYPE_INT32": 4,
    "TYPE_FP32": 4,
    "TYPE_UINT64": 8,
    "TYPE_INT64": 8,
    "TYPE_FP64": 8,
}

_LENGTH_BYTES = 4


def bytes_of(data_type: int, dims: Iterable[int]) -> int | None:
    """What a tensor takes; None of strings and of what has no data type, which have no size of their own.

    Args:
        data_type: of Triton's protobuf.
        dims: all of them fixed.
    """
    from tritonclient.grpc import model_config_pb2 as pb

    size = _SIZES.get(enum_name(pb.DataType, data_type))
    return None if size is None else size * prod(dims)


def count_strings(content: bytes) -> int | None:
    """How many strings there are, each behind its length in 4 bytes (little-endian); None where that is not so."""
    count = start = 0
    while start < len(content):
        length = int.from_bytes(content[start : start + _LENGTH_BYTES], "little")
        start += _LENGTH_BYTES + length
        count += 1
    return count if start == len(content) else None
