"""Request and response records, in our form and in tritonclient's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from plansmith.errors import ServedCheckError, UsageError
from plansmith.triton.dtypes import STRING, wire_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

Encoding = Literal["binary", "json"]

Parameter = str | int | float | bool
"""A value that goes with a request, beside its tensors."""

# Both as tritonclient has them: it, or Triton, gives them a meaning of its own.
_RESERVED = {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output"}
_RESERVED_PREFIX = "triton_"
_INTEGERS = range(-(2**63), 2**63)

# "receiving FP16 data via JSON is not supported", says Triton 2.51; NaN and Inf it takes and gives, though no JSON has.
_NOT_IN_JSON = {"float16", "bfloat16"}


@dataclass(frozen=True)
class WireTensor:
    """A tensor of a request: its plansmith dtype and, for an input, its shape and values on the wire.

    `region`: the shared memory that holds the values instead, or takes an output: the server's name for it, how many
    bytes of it, and where they begin.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    values: NDArray[Any] | None = None
    region: tuple[str, int, int] | None = None


@dataclass(frozen=True)
class Request:
    """Inference request to a model; with an empty version, Triton chooses one.

    `variant`: the production variant of a SageMaker endpoint that shall answer; empty for any.
    """

    model: str
    version: str
    inputs: Sequence[WireTensor]
    outputs: Sequence[WireTensor]
    encoding: Encoding = "binary"
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    variant: str = ""


@dataclass(frozen=True)
class Reply:
    """Inference reply: the version that answered, and each output's shape and values (None if in shared memory).

    `variant`: the production variant of a SageMaker endpoint that answered.
    """

    version: str
    shapes: dict[str, tuple[int, ...]]
    values: dict[str, NDArray[Any] | None]
    variant: str = ""


def require_json(request: Request) -> None:
    """Require that all tensors of a request can be encoded as JSON.

    Raises:
        UsageError: it has no form for one.
    """
    for tensor in (*request.inputs, *request.outputs):
        if tensor.dtype in _NOT_IN_JSON:
            raise UsageError(
                f"{tensor.name!r} is {tensor.dtype}, for which Triton has no form in JSON", remedy="ask in binary"
            )
    for tensor in request.inputs:
        if tensor.values is not None and tensor.dtype == STRING:
            for item in tensor.values.flat:
                _require_text(tensor.name, item)


def require_parameters(parameters: Mapping[str, Parameter]) -> None:
    """Require that values are valid request parameters.

    Raises:
        UsageError: a name that is Triton's own, or a value that its protocol has no form for.
    """
    for name, value in parameters.items():
        if not name or name in _RESERVED or name.startswith(_RESERVED_PREFIX):
            raise UsageError(
                f"{name!r} cannot be the name of a parameter: it means something to Triton itself",
                remedy="name it as the model does",
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"parameter {name!r} is {value}, which is no number", remedy="send it as text")
        if isinstance(value, int) and value not in _INTEGERS:
            raise UsageError(f"parameter {name!r} does not fit into 64 bits", remedy="send it as text")


def their_inputs(kinds: Any, request: Request, form: dict[str, bool]) -> list[Any]:
    """Convert the inputs for tritonclient; `kinds` is its module, `form` the options for its HTTP module."""
    wire_inputs = []
    for tensor in request.inputs:
        theirs = kinds.InferInput(tensor.name, list(tensor.shape), wire_name(tensor.dtype))
        if tensor.region is not None:
            name, size, start = tensor.region
            theirs.set_shared_memory(name, size, start)
        else:
            theirs.set_data_from_numpy(tensor.values, **form)
        wire_inputs.append(theirs)
    return wire_inputs


def their_outputs(kinds: Any, request: Request, form: dict[str, bool]) -> list[Any]:
    """Convert the requested outputs for tritonclient, as `their_inputs`."""
    wire_outputs = []
    for tensor in request.outputs:
        theirs = kinds.InferRequestedOutput(tensor.name, **form)
        if tensor.region is not None:
            name, size, start = tensor.region
            theirs.set_shared_memory(name, size, start)
        wire_outputs.append(theirs)
    return wire_outputs


def read_reply(result: Any, request: Request, *, is_grpc: bool) -> Reply:
    """Parse the response that tritonclient received.

    Raises:
        ServedCheckError: an output is not in it.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    values: dict[str, NDArray[Any] | None] = {}
    for tensor in request.outputs:
        output = result.get_output(tensor.name)
        if output is None:
            raise ServedCheckError(
                f"{request.model} answered without its output {tensor.name!r}",
                remedy="correct the model: it has to give every output that its configuration names; or, where"
                " response_cache is on and somebody else asked for fewer outputs, start the server anew and have all"
                " clients ask for all of them",
            )
        shapes[tensor.name] = tuple(int(size) for size in (output.shape if is_grpc else output["shape"]))
        values[tensor.name] = None if tensor.region is not None else _values(tensor, result)
    response = result.get_response()
    version = response.model_version if is_grpc else response.get("model_version", "")
    return Reply(str(version), shapes, values)


def _values(tensor: WireTensor, result: Any) -> NDArray[Any]:
    """The values of an output; strings are bytes, whichever protocol carried them."""
    import numpy as np

    array: NDArray[Any] = result.as_numpy(tensor.name)
    if tensor.dtype == STRING:
        items = [item.encode() if isinstance(item, str) else item for item in array.flat]
        return np.array(items, dtype=object).reshape(array.shape)
    return array


def _require_text(name: str, item: bytes) -> None:
    try:
        item.decode()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"input {name!r} has bytes that are no UTF-8, for which JSON has no form", remedy="ask in binary"
        ) from error
