"""Contract of Triton's ONNX Runtime backend: requirements on a configuration and its ONNX file.

The rules are read from `src/onnxruntime.cc` and `src/onnxruntime_utils.cc` of the repository
triton-inference-server/onnxruntime_backend and from `src/backend_common.cc` of triton-inference-server/backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Config = dict[str, Any]

DATATYPE_OF = {
    "float": "FP32",
    "float16": "FP16",
    "double": "FP64",
    "bool": "BOOL",
    "string": "STRING",
    **{f"{sign}int{bits}": f"{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


class UnservableModel(Exception):
    """The model cannot be served as it is configured."""


@dataclass(frozen=True)
class Tensor:
    """One input or output of the ONNX file.

    Args:
        name: as in the graph.
        datatype: Triton's name without `TYPE_`, or "" for a type that Triton does not know.
        shape: -1 for every dimension that has no fixed size.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


def tensor_from_onnxruntime(name: str, onnx_type: str, shape: Sequence[int | str | None]) -> Tensor:
    """Return a `Tensor` from ONNX Runtime's description, such as `x`, `tensor(float)` and `["batch", 3]`."""
    if not onnx_type.startswith("tensor("):
        raise UnservableModel(f"unsupported ONNX type {onnx_type} of '{name}': Triton serves plain tensors only")
    datatype = DATATYPE_OF.get(onnx_type.removeprefix("tensor(").removesuffix(")"), "")
    return Tensor(name, datatype, tuple(size if isinstance(size, int) else -1 for size in shape))


def check_served_here(config: Config, kind: str) -> None:
    """Refuse settings that the real backend supports and this stand-in does not.

    Args:
        config: the model's configuration as Triton completed it.
        kind: the instance's kind, `CPU`, `GPU` or `MODEL`.
    """
    beyond = {
        "sequence_batching": "sequence batching and its control inputs",
        "batch_input": "batch_input",
        "batch_output": "batch_output",
        "model_operations": "libraries of custom operators",
    }
    unsupported = [description for key, description in beyond.items() if config.get(key)]
    if config.get("model_transaction_policy", {}).get("decoupled"):
        unsupported.append("decoupled responses")
    if any(tensor.get("allow_ragged_batch") for tensor in config["input"]):
        unsupported.append("ragged batches")
    if any(tensor["data_type"] == "TYPE_STRING" for tensor in [*config["input"], *config["output"]]):
        unsupported.append("string tensors (TYPE_STRING)")
    if not config["input"] or not config["output"]:
        unsupported.append("configurations without inputs or outputs (it completes none)")
    if kind == "GPU":
        unsupported.append("KIND_GPU instances: it runs on the CPU only")
    if unsupported:
        raise UnservableModel(f"the stand-in for the ONNX Runtime backend does not serve {'; nor '.join(unsupported)}")


def check_inputs(config: Config, required: Sequence[Tensor], initializers: Sequence[Tensor]) -> None:
    """Check the configured inputs against those of the model.

    Args:
        config: the model's configuration.
        required: the graph's inputs that have no default.
        initializers: the graph's inputs that an initializer gives a default.
    """
    listed = [tensor for tensor in config["input"] if not tensor.get("optional")]
    if len(listed) != len(required):
        raise UnservableModel(
            f"the configuration expects {len(listed)} inputs ({_names(tensor['name'] for tensor in listed)}), "
            f"the model provides {len(required)} ({_names(tensor.name for tensor in required)})"
        )
    for tensor in config["input"]:
        if tensor.get("optional") and config["max_batch_size"] != 0:
            raise UnservableModel(f"optional input '{tensor['name']}' is not supported together with batching")
        _check_tensor("input", tensor, [*required, *initializers], config["max_batch_size"])


def check_outputs(config: Config, provided: Sequence[Tensor]) -> None:
    """Check the configured outputs against those of the model, which may have more than the configuration lists."""
    for tensor in config["output"]:
        _check_tensor("output", tensor, provided, config["max_batch_size"])


def _check_tensor(role: str, configured: Config, provided: Sequence[Tensor], max_batch_size: int) -> None:
    name = configured["name"]
    actual = next((tensor for tensor in provided if tensor.name == name), None)
    if actual is None:
        raise UnservableModel(
            f"unexpected inference {role} '{name}', allowed {role}s are: {_names(tensor.name for tensor in provided)}"
        )
    datatype = configured["data_type"].removeprefix("TYPE_")
    if datatype not in DATATYPE_OF.values():
        raise UnservableModel(f"unsupported datatype TYPE_{datatype} of {role} '{name}'")
    if datatype != actual.datatype:
        raise UnservableModel(
            f"the configuration expects datatype TYPE_{datatype} for {role} '{name}', "
            f"the model provides {f'TYPE_{actual.datatype}' if actual.datatype else 'one that Triton does not know'}"
        )
    dims = tuple(int(size) for size in configured.get("reshape", {}).get("shape", configured["dims"]))
    if actual.shape:
        _check_dims(actual, dims, max_batch_size, exact=role == "output")
        return
    if any(size != 1 for size in dims):
        raise UnservableModel(
            f"scalar tensor '{name}' takes only dimensions of 1, the configuration has {_shape(dims)}"
        )
    if max_batch_size > 0:
        raise UnservableModel(
            f"the stand-in for the ONNX Runtime backend does not serve scalar tensor '{name}' with batching"
        )


def _check_dims(actual: Tensor, dims: tuple[int, ...], max_batch_size: int, *, exact: bool) -> None:
    """Compare shapes: an input's free dimension takes any size, an output's must be -1 on both sides."""
    if max_batch_size > 0 and actual.shape[0] != -1:
        raise UnservableModel(
            f"tensor '{actual.name}': batching (max_batch_size {max_batch_size}) needs a first dimension of -1, "
            f"but the shape that the model expects is {_shape(actual.shape)}"
        )
    full = (-1, *dims) if max_batch_size > 0 else dims
    agree = len(full) == len(actual.shape) and all(
        size == actual_size or (actual_size == -1 and not exact)
        for size, actual_size in zip(full, actual.shape, strict=True)
    )
    if not agree:
        why = " with the batch dimension that max_batch_size > 0 puts first" if max_batch_size > 0 else ""
        raise UnservableModel(
            f"tensor '{actual.name}': the model expects {len(actual.shape)} dimensions (shape {_shape(actual.shape)}) "
            f"but the configuration specifies {len(full)} dimensions (shape {_shape(full)}{why})"
        )


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _shape(shape: tuple[int, ...]) -> str:
    return f"[{','.join(str(size) for size in shape)}]"
