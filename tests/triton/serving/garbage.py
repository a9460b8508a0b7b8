"""Requests that are wrong, as they could come from anybody: what each says, and the words of Triton's answer."""

from __future__ import annotations

import http.client
import json
import socket
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from tritonclient.grpc import service_pb2

from plansmith.triton.server.server import TritonServer

from .asking import SECONDS
from .models import LARGEST

MODEL = "together"
LENGTH_HEADER = "Inference-Header-Content-Length"
NOISE = np.random.default_rng(0).bytes(600)


class Wrong(NamedTuple):
    """Arrays and options of a client's request, and what the answer must say over either protocol."""

    message: str
    feed: Mapping[str, np.ndarray[Any, Any]]
    model: str = MODEL
    outputs: tuple[str, ...] = ()
    version: str = ""


def feed(rows: int = 1, **others: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """What the model takes, or with some inputs otherwise."""
    return {"ids": np.ones((rows, 1), np.int64), "a": np.ones((rows, 2), np.float32), **others}


WRONG = {
    "no rows": Wrong("byte size mismatch", feed(0)),
    "beyond the maximum": Wrong(f"batch-size must be <= {LARGEST}", feed(LARGEST + 1)),
    "far beyond the maximum": Wrong(f"batch-size must be <= {LARGEST}", feed(100_000)),
    "rows that disagree": Wrong("batch size does not match", feed(ids=np.ones((2, 1), np.int64))),
    "an input of another name": Wrong("unexpected inference input 'b'", {"ids": feed()["ids"], "b": feed()["a"]}),
    "an input too few": Wrong("expected 2 inputs but got 1", {"ids": feed()["ids"]}),
    "an input too many": Wrong("expected 2 inputs but got 3", feed(c=np.ones((1, 2), np.float32))),
    "another width of integers": Wrong("data-type is 'INT32'", feed(ids=np.ones((1, 1), np.int32))),
    "floats for integers": Wrong("data-type is 'FP32'", feed(ids=np.ones((1, 1), np.float32))),
    "texts for floats": Wrong("data-type is 'BYTES'", feed(a=np.array([[b"1", b"2"]], dtype=object))),
    "another size": Wrong("unexpected shape for input 'a'", feed(a=np.ones((1, 3), np.float32))),
    "a dimension too many": Wrong("unexpected shape for input 'ids'", feed(ids=np.ones((1, 1, 1), np.int64))),
    "no batch dimension": Wrong("batch size does not match", feed(a=np.ones(2, np.float32))),
    "an unknown model": Wrong("unknown model: 'nobody'", feed(), model="nobody"),
    "an unknown version": Wrong("version 7 is not", feed(), version="7"),
    "an unknown output": Wrong("unexpected inference output 'total'", feed(), outputs=("total",)),
}


def _tensor(name: str, datatype: str, shape: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, **more}


IDS = _tensor("ids", "INT64", [1, 1], data=[1])
A = _tensor("a", "FP32", [1, 2], data=[1, 2])


def body(*inputs: Any) -> bytes:
    """A request in JSON."""
    return json.dumps({"inputs": inputs}).encode()


def binary(size: object, data: bytes, header_length: object = None) -> tuple[bytes, dict[str, str]]:
    """A request of which `a` is binary: what its JSON says of its size, and the bytes that follow."""
    document = body(IDS, _tensor("a", "FP32", [1, 2], parameters={"binary_data_size": size}))
    return document + data, {LENGTH_HEADER: str(len(document) if header_length is None else header_length)}


WHOLE = struct.pack("<ff", 1, 2)
HTTP_BODIES: dict[str, tuple[bytes, dict[str, str]]] = {
    "noise": (NOISE, {}),
    "nothing": (b"", {}),
    "null": (b"null", {}),
    "a list": (b"[]", {}),
    "an empty object": (b"{}", {}),
    "cut off": (body(IDS, A)[:-9], {}),
    "brackets only": (b"[" * 10_000, {}),  # 150,000 end Triton 2.51: github.com/triton-inference-server/common/pull/156
    "inputs that are a text": (b'{"inputs": "ids"}', {}),
    "inputs that are numbers": (b'{"inputs": [1, 2]}', {}),
    "no shape and no type": (body(IDS, {"name": "a"}), {}),
    "no data": (body(IDS, _tensor("a", "FP32", [1, 2])), {}),
    "a type that does not exist": (body(IDS, {**A, "datatype": "FP33"}), {}),
    "a negative size": (body(IDS, {**A, "shape": [1, -2]}), {}),
    "half a row": (body(IDS, {**A, "shape": [1.5, 2]}), {}),
    "a shape that is a text": (body(IDS, {**A, "shape": "1x2"}), {}),
    "no dimensions": (body(IDS, {**A, "shape": []}), {}),
    "more elements than memory has": (body(IDS, {**A, "shape": [2**40, 2**40]}), {}),
    "a number of elements that overflows": (body(IDS, {**A, "shape": [2**62, 4]}), {}),
    "elements too few": (body(IDS, {**A, "data": [1]}), {}),
    "elements too many": (body(IDS, {**A, "data": [1, 2, 3]}), {}),
    "texts for numbers": (body(IDS, {**A, "data": ["1", "2"]}), {}),
    "nothing for a number": (body(IDS, {**A, "data": [None, 1]}), {}),
    "objects for numbers": (body(IDS, {**A, "data": [{}, {}]}), {}),
    "an integer of 71 bits": (body({**IDS, "data": [2**70]}, A), {}),
    "a fraction for an integer": (body({**IDS, "data": [1.5]}, A), {}),
    "the same input twice": (body(IDS, A, A), {}),
    "memory that nobody registered": (
        body(IDS, _tensor("a", "FP32", [1, 2], parameters={"shared_memory_region": "x", "shared_memory_byte_size": 8})),
        {},
    ),
    "fewer bytes than told": binary(8, WHOLE[:4]),
    "more bytes than told": binary(8, WHOLE + WHOLE),
    "a size that does not fit the shape": binary(4, WHOLE[:4]),
    "a size beyond the shape": binary(16, WHOLE + WHOLE),
    "a size below 0": binary(-8, WHOLE),
    "a size of 64 bits": binary(2**63, WHOLE),
    "a size that is a text": binary("8", WHOLE),
    "a header longer than the body": binary(8, WHOLE, 10**6),
    "a header below 0": binary(8, WHOLE, -1),
    "a header of no length": binary(8, WHOLE, "many"),
    "a header that is cut off": binary(8, WHOLE, 20),
    "noise for gzip": (NOISE, {"Content-Encoding": "gzip"}),
    "noise for deflate": (NOISE, {"Content-Encoding": "deflate"}),
    "a compression that does not exist": (body(IDS, A), {"Content-Encoding": "br"}),
}


def post(server: TritonServer, model: str, content: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
    """Status and body of the answer to a request as it is."""
    connection = http.client.HTTPConnection(server.http_url, timeout=SECONDS)
    try:
        connection.request("POST", f"/v2/models/{model}/infer", content, dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def message(
    raw: tuple[bytes, ...] = (), shape: tuple[int, ...] = (1, 2), contents: Mapping[str, list[Any]] | None = None
) -> bytes:
    """A gRPC request of which `a` has this shape and these contents, and what follows in raw bytes."""
    request = service_pb2.ModelInferRequest(model_name=MODEL)
    request.inputs.add(name="ids", datatype="INT64", shape=(1, 1))
    tensor = request.inputs.add(name="a", datatype="FP32", shape=shape)
    for field, values in (contents or {}).items():
        getattr(tensor.contents, field).extend(values)
    request.raw_input_contents.extend(raw)
    return bytes(request.SerializeToString())


ONE = struct.pack("<q", 1)
GRPC_MESSAGES = {
    "noise": NOISE,
    "nothing": b"",
    "cut off": message((ONE, WHOLE))[:-5],
    "no data": message(),
    "data of one input only": message((ONE,)),
    "fewer bytes than the shape has": message((ONE, WHOLE[:4])),
    "more bytes than the shape has": message((ONE, WHOLE * 2)),
    "typed fields beside raw bytes": message((ONE, WHOLE), contents={"fp32_contents": [1, 2]}),
    "typed fields of another type": message(contents={"int64_contents": [1, 2]}),
    "a negative size": message((ONE, WHOLE), shape=(-1, -2)),
    "more elements than memory has": message((ONE, WHOLE), shape=(2**40, 2**40)),
    "no dimensions": message((ONE, WHOLE), shape=()),
}

# Texts travel as a length in four bytes and then so many bytes.
_LONG = struct.pack("<I", 3) + b"abc"
TEXT_BYTES = {
    "a length beyond the end": struct.pack("<I", 10**6) + b"abc",
    "a length of 32 bits": b"\xff" * 7,
    "half a length": b"\x01\x02",
    "a text too many": _LONG * 2,
    "no text": b"",
}


def text_body(data: bytes) -> tuple[bytes, dict[str, str]]:
    """One text over HTTP, given as bytes."""
    document = body(_tensor("text", "BYTES", [1, 1], parameters={"binary_data_size": len(data)}))
    return document + data, {LENGTH_HEADER: str(len(document))}


def text_message(data: bytes) -> bytes:
    """One text over gRPC, given as bytes."""
    request = service_pb2.ModelInferRequest(model_name="text", raw_input_contents=[data])
    request.inputs.add(name="text", datatype="BYTES", shape=(1, 1))
    return bytes(request.SerializeToString())


def leave_in_the_middle(url: str, content: bytes) -> None:
    """Send half of a request and go."""
    host, port = url.split(":")
    with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
        head = f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(content)}\r\n\r\n"
        connection.sendall(head.encode() + content[: len(content) // 2])


def send_noise(url: str) -> None:
    """Speak neither HTTP nor gRPC."""
    host, port = url.split(":")
    with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
        connection.sendall(NOISE)
