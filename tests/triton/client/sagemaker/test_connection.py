"""What is sent to an endpoint, what is retried, and what is not sent at all."""

from __future__ import annotations

import socket
from typing import Any

import numpy as np
import pytest

from plansmith.client import Encoding, SageMakerClient, Signature
from plansmith.errors import EnvironmentFault, PlansmithError, ServedCheckError, UsageError
from plansmith.records.model import Tensor

from ....support.sagemaker.http_server import HttpAnswer, http_server
from ..served import TINY
from ..test_asking import samples

SIGNATURE = Signature(inputs=TINY.inputs, outputs=TINY.outputs, max_batch_size=8)
HALF = b'{"name": "half", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}'
ANSWER = HttpAnswer(body=b'{"model_version": "1", "outputs": [' + HALF + b"]}")
CUT = HttpAnswer(is_cut=True)


def infer(url: str, *, attempts: int = 5, **settings: Any) -> Any:
    with SageMakerClient("any", signature=SIGNATURE, url=url, attempts=attempts, **settings) as client:
        return client.infer(samples(1), outputs=["half"])["half"].tolist()


@pytest.mark.parametrize(
    "failure",
    [HttpAnswer(500, b'{"error": "the model is being loaded"}'), HttpAnswer(503), CUT],
    ids=["500", "503", "cut"],
)
def test_retry(failure: HttpAnswer, pauses: list[float]) -> None:
    """A model that is being loaded and a lost connection are retried, after pauses that grow."""
    with http_server(failure, failure, ANSWER) as server:
        assert infer(server.url) == [[1, 2, 3]]
    assert len(server.paths) == 3
    assert len(set(server.bodies)) == 1
    assert 0.25 <= pauses[0] <= 0.5 <= pauses[1] <= 1


@pytest.mark.parametrize(
    ("failure", "error_type", "message"),
    [
        (HttpAnswer(503, b"down"), ServedCheckError, "(503), 7 times: down"),
        (CUT, EnvironmentFault, "is not reached"),
    ],
    ids=["503", "cut"],
)
def test_attempts_are_bounded(
    failure: HttpAnswer, error_type: type[PlansmithError], message: str, pauses: list[float]
) -> None:
    """After as many attempts as were asked for, the error tells how many, and may pass."""
    with http_server(failure) as server, pytest.raises(error_type) as error:
        infer(server.url, attempts=7)
    assert (len(server.paths), len(pauses)) == (7, 6)
    assert max(pauses) <= 8
    assert message in error.value.message
    assert ", 7 times" in error.value.message
    assert error.value.transient


def test_timeout_is_not_retried(pauses: list[float]) -> None:
    """The model may still be at work for the first request."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(EnvironmentFault, match=r"did not answer within 0\.1 s\n"):
            infer(url, timeout_seconds=0.1)
    assert pauses == []


@pytest.mark.parametrize(
    ("status", "error_type", "message"),
    [
        (400, ServedCheckError, "(400): no reason was given"),
        (404, ServedCheckError, "(404): any is not loaded"),
        (409, ServedCheckError, "(409): a model of that name is loaded already"),
        (413, UsageError, "takes no request of"),
        (507, EnvironmentFault, "has no memory for any (507)"),
    ],
)
def test_refusal_is_final(status: int, error_type: type[PlansmithError], message: str) -> None:
    """What the front end refuses is not retried, and has a message even without a reason."""
    with http_server(HttpAnswer(status)) as server, pytest.raises(error_type) as error:
        infer(server.url)
    assert len(server.paths) == 1
    assert message in error.value.message
    assert error.value.remedy


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("text/html", b"<html>"),
        ("application/json", b'{"outputs": []'),
        ("application/json", b'{"predictions": [1]}'),
        ("application/json", b"[]"),
        ("application/vnd.sagemaker-triton.binary+json;json-header-size=900", b"{}"),
        ("application/vnd.sagemaker-triton.binary+json;json-header-size=many", b"{}"),
    ],
)
def test_unreadable_answer(content_type: str, body: bytes) -> None:
    """An answer that is not Triton's is an error that says so."""
    answer = HttpAnswer(200, body, {"Content-Type": content_type})
    with http_server(answer) as server, pytest.raises(ServedCheckError) as error:
        infer(server.url)
    assert "cannot be read" in error.value.message or "without its output" in error.value.message


def test_headers() -> None:
    """The target model is in the path as SageMaker writes it, and all settings are headers."""
    settings: dict[str, Any] = {
        "target_model": "bert 1.tar.gz",
        "target_variant": "canary",
        "inference_id": "order-7",
        "custom_attributes": "trace=1",
    }
    with http_server(ANSWER) as server:
        infer(server.url, **settings)
    assert server.paths == ["/models/bert%201.tar.gz/invoke"]
    prefix = "x-amzn-sagemaker-"
    headers = {name.removeprefix(prefix): value for name, value in server.headers[0].items() if name.startswith(prefix)}
    assert headers == {name.replace("_", "-"): value for name, value in settings.items()}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target_model": " minilm.tar.gz"}, "target model"),
        ({"target_variant": "blue_1"}, "name of a variant"),
        ({"inference_id": "x" * 65}, "inference ID"),
        ({"custom_attributes": "two\r\nlines: 1"}, "custom attributes"),
        ({"region": "eu-west-1"}, "no region"),
        ({"url": "ftp://here"}, "no address"),
    ],
)
def test_invalid_settings(settings: dict[str, Any], message: str) -> None:
    """What SageMaker would not take is refused when the client is made."""
    with pytest.raises(UsageError, match=message):
        SageMakerClient("any", signature=SIGNATURE, **{"url": "http://127.0.0.1:1", **settings})


@pytest.mark.parametrize("name", ["", "-prod", "prod_1", "x" * 64, "a/b"])
def test_invalid_endpoint_name(name: str) -> None:
    """A name that no endpoint can have is refused when the client is made."""
    with pytest.raises(UsageError, match="cannot be the name of an endpoint"):
        SageMakerClient(name, signature=SIGNATURE)


@pytest.mark.parametrize("encoding", ["binary", "json"])
def test_large_request(encoding: Encoding) -> None:
    """A request of more than 6 MiB is not sent; JSON is told that binary takes less."""
    feed = {"a": np.zeros((8, 3), np.float32), "ids": np.full((8, 100_000), 10**8, np.int64)}
    with (
        SageMakerClient("any", signature=SIGNATURE, url="http://127.0.0.1:1", encoding=encoding) as client,
        pytest.raises(UsageError, match=r"takes 6291456 \(6.0 MiB\)") as error,
    ):
        client.infer(feed)
    assert ("in binary" in error.value.remedy) == (encoding == "json")


def test_large_part() -> None:
    """Of a batch with one part that is too large, no part is sent."""
    file = Tensor(name="file", dtype="string", dims=("batch", 1))
    signature = Signature(inputs=(file,), outputs=TINY.outputs, max_batch_size=1)
    with (
        http_server(ANSWER) as server,
        SageMakerClient("any", signature=signature, url=server.url) as client,
        pytest.raises(UsageError, match="takes 6291456"),
    ):
        client.infer({"file": [[b"small"], [b"x" * 7_000_000]]})
    assert not server.paths
