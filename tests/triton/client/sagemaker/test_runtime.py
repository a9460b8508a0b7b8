"""Endpoints over AWS: botocore's own client, and a server that answers as SageMaker's runtime does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from plansmith.client import SageMakerClient, Signature
from plansmith.errors import EnvironmentFault, PlansmithError, ServedCheckError, UsageError

from ....support.sagemaker.http_server import HttpAnswer, HttpRecord, aws_error, http_server
from ..served import TINY
from ..test_asking import samples

pytestmark = pytest.mark.usefixtures("aws")

SIGNATURE = Signature(inputs=TINY.inputs, outputs=TINY.outputs, max_batch_size=8)
LOG = "aws logs tail /aws/sagemaker/Endpoints/prod --region eu-west-1"
BINARY = "application/vnd.sagemaker-triton.binary+json;json-header-size="


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of an endpoint whose region is a server with prepared answers."""

    @contextmanager
    def opened(*answers: HttpAnswer, **settings: Any) -> Iterator[tuple[SageMakerClient, HttpRecord]]:
        with http_server(*answers) as server:
            monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME", server.url)
            defaults: dict[str, Any] = {"signature": SIGNATURE, "model": "tiny", "region": "eu-west-1"}
            with SageMakerClient("prod", **(defaults | settings)) as client:
                yield client, server

    return opened


def zeros(rows: int, variant: str = "green") -> HttpAnswer:
    """The outputs of `tiny` for rows of zeros, in binary as Triton writes them."""
    outputs: dict[str, tuple[str, Any]] = {
        "half": ("FP32", np.zeros((rows, 3), np.float32)),
        "twice": ("INT64", np.zeros((rows, 5), np.int64)),
    }
    described = [
        {"name": name, "datatype": dtype, "shape": list(v.shape), "parameters": {"binary_data_size": v.nbytes}}
        for name, (dtype, v) in outputs.items()
    ]
    head = json.dumps({"model_version": "1", "outputs": described}).encode()
    body = head + b"".join(values.tobytes() for _, values in outputs.values())
    headers = {"Content-Type": f"{BINARY}{len(head)}", "x-Amzn-Invoked-Production-Variant": variant}
    return HttpAnswer(200, body, headers)


def test_call(connect: Any) -> None:
    """The call names the endpoint and all that was asked for, and the answer names its variant."""
    settings = {
        "target_model": "tiny-1.tar.gz",
        "target_variant": "blue",
        "inference_id": "order-7",
        "custom_attributes": "trace=1",
    }
    with connect(zeros(2, "blue"), **settings) as (client, server):
        answer = client.ask(samples(2))
        (invocation,) = client.invocations(samples(2))
    assert server.paths == ["/endpoints/prod/invocations"]
    assert server.bodies == [invocation.body]
    headers = server.headers[0]
    assert headers["content-type"] == invocation.content_type
    assert {name: headers[f"x-amzn-sagemaker-{name.replace('_', '-')}"] for name in settings} == settings
    assert (answer.version, answer.variant, answer.requests) == ("1", "blue", 1)
    assert {name: array.shape for name, array in answer.outputs.items()} == {"half": (2, 3), "twice": (2, 5)}


def test_parts_have_one_variant(connect: Any) -> None:
    """All parts of a batch are answered by the variant that answered the first: variants are different models."""
    with connect(zeros(8), zeros(8), zeros(3)) as (client, server):
        answer = client.ask(samples(19))
    variants = [headers.get("x-amzn-sagemaker-target-variant") for headers in server.headers]
    assert variants == [None, "green", "green"]
    assert (answer.requests, answer.variant, len(answer.outputs["half"])) == (3, "green", 19)


@pytest.mark.parametrize(
    "failure",
    [
        aws_error("ThrottlingException", "not now", 429),
        aws_error("ModelNotReadyException", "not now", 429),
        aws_error("ServiceUnavailable", "not now", 503),
        aws_error("InternalDependencyException", "not now", 530),
        aws_error("ModelError", "not now", 424, OriginalStatusCode=503, OriginalMessage="loading"),
        HttpAnswer(is_cut=True),
    ],
    ids=["throttling", "not ready", "unavailable", "dependency", "loading", "cut"],
)
def test_retry(connect: Any, failure: HttpAnswer, pauses: list[float]) -> None:
    """What may pass is retried here, and not by botocore as well."""
    with connect(failure, failure, zeros(1)) as (client, server):
        assert client.ask(samples(1)).requests == 1
    assert (len(pauses), len(server.paths)) == (2, 3)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("ThrottlingException", "throttles requests, 3 times"),
        ("ModelNotReadyException", "is not ready to answer, 3 times"),
        ("InternalFailure", "did not answer, 3 times"),
    ],
)
def test_attempts_are_bounded(connect: Any, code: str, message: str, pauses: list[float]) -> None:
    """What does not pass is an error that tells how often it was tried, and that it may pass later."""
    with (
        connect(aws_error(code, "slow down", 429), attempts=3) as (client, _),
        pytest.raises(EnvironmentFault) as error,
    ):
        client.infer(samples(1))
    assert error.value.message == f"endpoint prod in eu-west-1 {message}: {code}: slow down"
    assert error.value.transient
    assert len(pauses) == 2


@pytest.mark.parametrize(
    ("status", "reason", "error_type", "message"),
    [
        (400, '{"error":"unexpected shape"}', ServedCheckError, "(400): unexpected shape"),
        (404, "", ServedCheckError, "(404): tiny-1.tar.gz is not loaded"),
        (507, '{"error":"CUDA out of memory"}', EnvironmentFault, "has no memory for tiny (507): CUDA out of memory"),
        (0, "Your invocation timed out", EnvironmentFault, "did not answer within the time that SageMaker gives"),
    ],
)
def test_container_error(
    connect: Any, status: int, reason: str, error_type: type[PlansmithError], message: str, pauses: list[float]
) -> None:
    """An error of the container has its reason and the command that reads its log, and is not retried."""
    failure = aws_error("ModelError", "", 424, OriginalStatusCode=status, OriginalMessage=reason)
    with connect(failure, target_model="tiny-1.tar.gz") as (client, _), pytest.raises(error_type) as error:
        client.infer(samples(1))
    assert message in error.value.message
    assert LOG in error.value.remedy or status == 507
    assert not pauses


@pytest.mark.parametrize(
    ("code", "reason", "error_type", "message", "remedy"),
    [
        ("ValidationError", "Endpoint prod of account 1 not found.", UsageError, "does not exist", "--region"),
        (
            "ValidationError",
            "Endpoint prod is not a multi-model endpoint and does not support target model header.",
            UsageError,
            "does not take this request",
            "leave --target-model out",
        ),
        (
            "ValidationError",
            "Failed to download model data(bucket: b). Please ensure that there is an object located at the URL",
            UsageError,
            "has no archive tiny-1.tar.gz",
            "aws s3 ls",
        ),
        ("ValidationError", "missing a target model header", UsageError, "does not take", "--target-model"),
        ("ValidationError", "Variant blue not found for endpoint", UsageError, "does not take", "--target-variant"),
        ("ValidationError", "Endpoint prod is not InService", EnvironmentFault, "in its state", "aws sagemaker wait"),
        ("AccessDeniedException", "User is not allowed", EnvironmentFault, "may not", "sagemaker:InvokeEndpoint"),
        ("ExpiredTokenException", "The token is expired", EnvironmentFault, "does not accept these", "log in"),
        ("SomethingNew", "who knows", EnvironmentFault, "did not answer: SomethingNew: who knows", LOG),
    ],
)
def test_service_error(
    connect: Any,
    code: str,
    reason: str,
    error_type: type[PlansmithError],
    message: str,
    remedy: str,
    pauses: list[float],
) -> None:
    """An error of AWS says what to type next, and is not retried."""
    settings = {"target_model": "tiny-1.tar.gz", "target_variant": "blue"}
    with connect(aws_error(code, reason), **settings) as (client, _), pytest.raises(error_type) as error:
        client.infer(samples(1))
    assert message in error.value.message
    assert reason in error.value.message
    assert remedy in error.value.remedy
    assert not pauses


def test_missing_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without credentials the error tells how to get some."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with SageMakerClient("prod", signature=SIGNATURE) as client, pytest.raises(EnvironmentFault) as error:
        client.infer(samples(1))
    assert "no usable AWS credentials" in error.value.message


def test_missing_profile() -> None:
    """A profile that does not exist is named."""
    with (
        SageMakerClient("prod", signature=SIGNATURE, profile="nobody") as client,
        pytest.raises(UsageError, match="nobody"),
    ):
        client.infer(samples(1))


def test_proxy_page(connect: Any) -> None:
    """The page of a proxy that refuses the call is shown in one line, without its tags."""
    page = b"<!doctype html>\n<html><title>403 Forbidden</title>\n<p>Ask your administrator.</p></html>"
    answer = HttpAnswer(403, page, {"Content-Type": "text/html"})
    with connect(answer) as (client, _), pytest.raises(EnvironmentFault) as error:
        client.infer(samples(1))
    assert len(error.value.message.splitlines()) == 1
    assert "<" not in error.value.message
