"""One way to ask a running Triton over both protocols, and what its statistics and metrics say afterwards."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, Self

import grpc
import numpy as np
import tritonclient.grpc
import tritonclient.http
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import np_to_triton_dtype

from plansmith.triton.server.server import TritonServer

Arrays = Mapping[str, NDArray[Any]]

PROTOCOLS = ("http", "grpc")
SECONDS = 60
_NO_PROXY = [("grpc.enable_http_proxy", 0)]
_METRIC = re.compile(r"^(?P<name>\w+)\{(?P<labels>[^}]*)\} (?P<value>\S+)$", re.MULTILINE)
_CONTENTS = {"INT64": "int64_contents", "FP32": "fp32_contents", "BYTES": "bytes_contents"}


class Asker:
    """A client of one protocol, for one thread.

    Args:
        server: who is asked.
        protocol: "http" or "grpc".
    """

    def __init__(self, server: TritonServer, protocol: str) -> None:
        self.protocol = protocol
        self.module: Any = tritonclient.http if protocol == "http" else tritonclient.grpc
        if protocol == "http":
            self.client = self.module.InferenceServerClient(server.http_url, network_timeout=SECONDS)
        else:
            self.client = self.module.InferenceServerClient(server.grpc_url, channel_args=_NO_PROXY)
            self._channel = grpc.insecure_channel(server.grpc_url, options=_NO_PROXY)
            self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        if self.protocol == "grpc":
            self._channel.close()

    def ask(self, model: str, feed: Arrays, *, outputs: Sequence[str] = (), **options: Any) -> dict[str, NDArray[Any]]:
        """The outputs of a model, all of them or those that are named; texts are bytes.

        Args:
            model: its name.
            feed: arrays as they are sent, with the batch first.
            outputs: which are wanted.
            options: of the client's `infer`, such as model_version.
        """
        inputs = [self.tensor(name, array) for name, array in feed.items()]
        requested = [self.module.InferRequestedOutput(name) for name in outputs] or None
        return arrays_of(self.client.infer(model, inputs, outputs=requested, **self._limit(), **options))

    def ask_spelled_out(
        self, model: str, feed: Arrays, outputs: Sequence[str], *, version: str = "", binary_answer: bool = False
    ) -> dict[str, NDArray[Any]]:
        """The same with every element by itself: numbers and texts in JSON, or protobuf's typed fields.

        Args:
            model: its name.
            feed: arrays as they are sent, with the batch first.
            outputs: which are wanted.
            version: the newest if empty.
            binary_answer: over HTTP, whether the answer is to be binary all the same.
        """
        if self.protocol == "http":
            inputs = [self.tensor(name, array, binary_data=False) for name, array in feed.items()]
            requested = [self.module.InferRequestedOutput(name, binary_data=binary_answer) for name in outputs]
            return arrays_of(self.client.infer(model, inputs, outputs=requested, model_version=version))
        request = service_pb2.ModelInferRequest(model_name=model, model_version=version)
        for name, array in feed.items():
            kind = np_to_triton_dtype(array.dtype)
            tensor = request.inputs.add(name=name, datatype=kind, shape=array.shape)
            getattr(tensor.contents, _CONTENTS[kind]).extend(array.ravel().tolist())
        for name in outputs:
            request.outputs.add(name=name)
        return arrays_of(self.module.InferResult(self.stub.ModelInfer(request, timeout=SECONDS)))

    def tensor(self, name: str, array: NDArray[Any], **options: Any) -> Any:
        """An input with its data."""
        tensor = self.module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array, **options)
        return tensor

    def statistics(self, model: str, version: str = "1") -> dict[str, Any]:
        """What Triton counted for a version of a model, counts as numbers."""
        if self.protocol == "http":
            response = self.client.get_inference_statistics(model, version)
        else:
            response = self.client.get_inference_statistics(model, version, as_json=True)
        (counted,) = response["model_stats"]
        return dict(counted)

    def counts(self, model: str, version: str = "1") -> tuple[int, int]:
        """How many rows were answered, and in how many runs of the model."""
        counted = self.statistics(model, version)
        return int(counted.get("inference_count", 0)), int(counted.get("execution_count", 0))

    def _limit(self) -> dict[str, int]:
        return {"client_timeout": SECONDS} if self.protocol == "grpc" else {}


def arrays_of(answer: Any) -> dict[str, NDArray[Any]]:
    """The arrays of an answer of either client; texts, which JSON gives as such, are bytes."""
    response = answer.get_response()
    outputs = response["outputs"] if isinstance(response, dict) else response.outputs
    names = [output["name"] if isinstance(output, dict) else output.name for output in outputs]
    arrays = {name: answer.as_numpy(name) for name in names}
    return {name: _as_bytes(array) if array.dtype == object else array for name, array in arrays.items()}


def metrics(server: TritonServer, model: str) -> dict[str, float]:
    """The counters and gauges of a model in Prometheus' text, summed over its versions and reasons."""
    with urllib.request.urlopen(f"http://{server.metrics_url}/metrics", timeout=SECONDS) as page:
        text = page.read().decode()
    sums: dict[str, float] = {}
    for match in _METRIC.finditer(text):
        if f'model="{model}"' in match["labels"]:
            sums[match["name"]] = sums.get(match["name"], 0) + float(match["value"])
    return sums


def _as_bytes(texts: NDArray[Any]) -> NDArray[Any]:
    plain = [text.encode() if isinstance(text, str) else text for text in texts.ravel()]
    return np.array(plain, dtype=object).reshape(texts.shape)
