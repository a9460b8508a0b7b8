"""Encoded request bodies, sent unchanged: one file per model, with an index file."""

from __future__ import annotations

import hashlib
import json
import mmap
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.errors import EnvironmentFault, UsageError, first_line
from plansmith.formatting import format_bytes
from plansmith.loadtest.target import LoadTarget, Service, TargetModel
from plansmith.system.aws.sagemaker_runtime import CONTENT_DIGEST, MAX_BODY_BYTES
from plansmith.system.urls import Protocol
from plansmith.triton.client.messages import Encoding, Parameter, Request, require_parameters
from plansmith.triton.client.sagemaker.invocation import BINARY_TYPE, JSON_TYPE, invocation_from_request
from plansmith.triton.dtypes import STRING, wire_name

if TYPE_CHECKING:
    from tritonclient.grpc import service_pb2

_BODIES, _INDEX = "bodies.bin", "index.json"
PAYLOAD_FILES = (_INDEX, _BODIES)
_JSON_BYTES = "Inference-Header-Content-Length"


@dataclass(frozen=True)
class Payload:
    """Encoded request.

    Attributes:
        body: its bytes.
        headers: those of this body, such as its content type.
        samples: in it.
    """

    body: bytes
    headers: dict[str, str]
    samples: int


def write_payloads(
    folder: Path,
    requests: Iterable[Request],
    protocol: Protocol,
    encoding: Encoding,
    *,
    is_batched: bool,
    service: Service = "triton",
) -> None:
    """Encode requests into a new folder.

    Args:
        folder: takes two files.
        requests: at least one.
        protocol: http or grpc.
        encoding: of HTTP bodies.
        is_batched: the first dim of the inputs counts samples; otherwise each request is one.
        service: what answers; SageMaker describes bodies in the content type.

    Raises:
        UsageError: a request cannot be encoded, or is larger than an endpoint takes.
        EnvironmentFault: tritonclient is not installed, or the folder cannot be written.
    """
    index = []
    try:
        folder.mkdir(parents=True)
        with (folder / _BODIES).open("wb") as bodies:
            for request in requests:
                if service != "triton":
                    body, headers = _sagemaker(request, encoding, service)
                else:
                    body, headers = _grpc(request) if protocol == "grpc" else _http(request, encoding)
                samples = max((tensor.shape[0] for tensor in request.inputs if tensor.shape), default=1)
                row = {"at": bodies.tell(), "bytes": len(body), "headers": headers}
                index.append({**row, "samples": samples if is_batched else 1})
                bodies.write(body)
        (folder / _INDEX).write_text(json.dumps(index))
    except OSError as error:
        raise EnvironmentFault(
            f"requests cannot be written to {folder}: {first_line(error)}", remedy="free some space there"
        ) from error
    assert index


class Payloads(Sequence[Payload]):
    """Payloads of a folder, read from its file on access."""

    def __init__(self, folder: Path) -> None:
        self._index: list[dict[str, Any]] = json.loads((folder / _INDEX).read_text())
        with (folder / _BODIES).open("rb") as bodies:
            self._bodies = mmap.mmap(bodies.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, number: int) -> Payload:  # type: ignore[override]
        row = self._index[number]
        return Payload(self._bodies[row["at"] : row["at"] + row["bytes"]], row["headers"], row["samples"])


class PayloadMix:
    """Payload mix: draws models by weight, and their payloads in shuffled rounds; the same order for the same seed.

    Args:
        target: the models.
        seed: determines the order.
    """

    def __init__(self, target: LoadTarget, seed: str) -> None:
        self._models = target.models
        self._weights = [model.weight for model in target.models]
        self._random = random.Random(seed)  # noqa: S311 - spreads load, keeps no secret
        self._payloads = [Payloads(Path(model.payloads)) for model in target.models]
        self._orders = [_rounds(len(payloads), f"{seed} {number}") for number, payloads in enumerate(self._payloads)]

    def draw(self) -> tuple[int, TargetModel, Payload]:
        """Draw a model and return its number, the model, and one of its payloads."""
        number = 0
        if len(self._models) > 1:
            number = self._random.choices(range(len(self._models)), self._weights)[0]
        return number, self._models[number], self._payloads[number][next(self._orders[number])]


def _rounds(count: int, seed: str) -> Iterator[int]:
    generator = random.Random(seed)  # noqa: S311 - as above
    order = list(range(count))
    while True:
        generator.shuffle(order)
        yield from order


def _http(request: Request, encoding: Encoding) -> tuple[bytes, dict[str, str]]:
    """Encode body and headers for HTTP: the binary tensor data extension of KServe's protocol, or JSON."""
    invocation = invocation_from_request(replace(request, encoding=encoding), {})
    _, binary, json_bytes = invocation.content_type.partition(BINARY_TYPE)
    if not binary:
        return invocation.body, {"Content-Type": JSON_TYPE}
    return invocation.body, {"Content-Type": "application/octet-stream", _JSON_BYTES: json_bytes}


def _sagemaker(request: Request, encoding: Encoding, service: Service) -> tuple[bytes, dict[str, str]]:
    """Encode body and headers of an invocation; for AWS, with the digest that its signature covers."""
    invocation = invocation_from_request(replace(request, encoding=encoding), {})
    if service == "endpoint" and len(invocation.body) > MAX_BODY_BYTES:
        raise UsageError(
            f"a request to {request.model} has {len(invocation.body)} bytes, and an endpoint takes"
            f" {MAX_BODY_BYTES} ({format_bytes(MAX_BODY_BYTES)})",
            remedy="send smaller batches (--batch 1)" + ", or in binary" * (encoding == "json"),
        )
    headers = {"Content-Type": invocation.content_type}
    if service == "endpoint":
        headers[CONTENT_DIGEST] = hashlib.sha256(invocation.body).hexdigest()
    return invocation.body, headers


def _grpc(request: Request) -> tuple[bytes, dict[str, str]]:
    """Encode a ModelInferRequest: github.com/kserve/kserve, docs/predict-api/v2/grpc_predict_v2.proto."""
    try:
        from tritonclient.grpc import service_pb2
    except ImportError as error:
        raise EnvironmentFault(
            f"the client of Triton cannot be imported: {first_line(error)}", remedy="pip install 'plansmith[client]'"
        ) from error
    require_parameters(request.parameters)
    message = service_pb2.ModelInferRequest(model_name=request.model, model_version=request.version)
    for tensor in request.inputs:
        message.inputs.add(name=tensor.name, datatype=wire_name(tensor.dtype), shape=tensor.shape)
        message.raw_input_contents.append(_raw(tensor.dtype, tensor.values))
    for tensor in request.outputs:
        message.outputs.add(name=tensor.name)
    for name, value in request.parameters.items():
        _set_parameter(message, name, value)
    return message.SerializeToString(), {}


def _raw(dtype: str, values: Any) -> bytes:
    """Encode a tensor's values in wire format; strings are prefixed with their length."""
    import numpy as np

    if dtype != STRING:
        return bytes(np.ascontiguousarray(values).tobytes())
    items = (item if isinstance(item, bytes) else str(item).encode() for item in values.flat)
    return b"".join(len(item).to_bytes(4, "little") + item for item in items)


def _set_parameter(message: service_pb2.ModelInferRequest, name: str, value: Parameter) -> None:
    if isinstance(value, bool):
        field = "bool_param"
    elif isinstance(value, int):
        field = "int64_param"
    else:
        field = "double_param" if isinstance(value, float) else "string_param"
    setattr(message.parameters[name], field, value)
