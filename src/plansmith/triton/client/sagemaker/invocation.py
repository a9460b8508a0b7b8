"""Invocation format of SageMaker's Triton front end: a body, and a content type that describes it.

The binary form is that of KServe's protocol, which begins with JSON; the content type tells how long that is:
github.com/triton-inference-server/server, src/sagemaker_server.cc.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from plansmith.errors import EnvironmentFault, PlansmithError, ServedCheckError, UsageError, first_line
from plansmith.system.aws.sagemaker_runtime import InvocationResponse
from plansmith.triton.client.messages import (
    Reply,
    Request,
    read_reply,
    require_json,
    require_parameters,
    their_inputs,
    their_outputs,
)

JSON_TYPE = "application/json"
BINARY_TYPE = "application/vnd.sagemaker-triton.binary+json;json-header-size="

TARGET_MODEL = "X-Amzn-SageMaker-Target-Model"
TARGET_VARIANT = "X-Amzn-SageMaker-Target-Variant"
INFERENCE_ID = "X-Amzn-SageMaker-Inference-Id"
CUSTOM_ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"

# docs.aws.amazon.com/sagemaker/latest/APIReference/API_runtime_InvokeEndpoint.html, as in botocore's model of it.
_NAME = re.compile(r"[A-Za-z0-9](-*[A-Za-z0-9]){0,62}")
_MAX_LENGTHS = {TARGET_MODEL: 1024, INFERENCE_ID: 64, CUSTOM_ATTRIBUTES: 1024}
_LABELS = {TARGET_MODEL: "target model", INFERENCE_ID: "inference ID", CUSTOM_ATTRIBUTES: "custom attributes"}


@dataclass(frozen=True)
class Invocation:
    """One request to an endpoint.

    Attributes:
        body: its bytes.
        content_type: what they are.
        headers: sent beside the content type.
    """

    body: bytes = field(repr=False)
    content_type: str
    headers: Mapping[str, str]

    @property
    def target_model(self) -> str:
        """The target archive of a multi-model endpoint; empty for a single-model endpoint."""
        return self.headers.get(TARGET_MODEL, "")


def require_headers(headers: Mapping[str, str]) -> None:
    """Require that SageMaker accepts the headers of an invocation.

    Raises:
        UsageError: it does not take one.
    """
    for name, limit in _MAX_LENGTHS.items():
        value = headers.get(name, "")
        if not (value.isascii() and value.isprintable()) or value != value.strip() or len(value) > limit:
            raise UsageError(
                f"{value!r} cannot be the {_LABELS[name]} of an invocation",
                remedy=f"give at most {limit} printable characters of ASCII, without spaces around them",
            )
    if TARGET_VARIANT in headers:
        require_name(headers[TARGET_VARIANT], "a variant")


def require_name(name: str, kind: str) -> None:
    """Require a valid endpoint or variant name; `kind` says which, with its article.

    Raises:
        UsageError: no endpoint or variant can have it.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the name of {kind}",
            remedy="give 1 to 63 letters, digits and hyphens, as the endpoint has it",
        )


def invocation_from_request(request: Request, headers: Mapping[str, str]) -> Invocation:
    """Convert a request to an endpoint invocation.

    Args:
        request: tensors and parameters; its model and version are the endpoint's to choose.
        headers: sent with it.

    Raises:
        UsageError: a dtype or value that JSON cannot carry, or a parameter that cannot be sent.
        EnvironmentFault: tritonclient is not installed.
    """
    try:
        from tritonclient import http
    except ImportError as error:
        raise EnvironmentFault(
            f"the client of Triton cannot be imported: {first_line(error)}", remedy="pip install 'plansmith[client]'"
        ) from error
    if request.encoding == "json":
        require_json(request)
    require_parameters(request.parameters)
    form = {"binary_data": request.encoding == "binary"}
    body, json_bytes = http.InferenceServerClient.generate_request_body(
        their_inputs(http, request, form),
        outputs=their_outputs(http, request, form),
        parameters=dict(request.parameters),
    )
    content_type = JSON_TYPE if json_bytes is None else f"{BINARY_TYPE}{json_bytes}"
    variant = {TARGET_VARIANT: request.variant} if request.variant else {}
    return Invocation(body, content_type, {**headers, **variant})


def reply_from_response(response: InvocationResponse, request: Request) -> Reply:
    """Parse the outputs in the response to a request.

    Raises:
        ServedCheckError: the answer cannot be read, or lacks an output.
    """
    from tritonclient.http import InferResult
    from tritonclient.utils import InferenceServerException

    try:
        result = InferResult.from_response_body(response.body, header_length=_json_bytes(response))
        reply = read_reply(result, request, is_grpc=False)
    except PlansmithError:
        raise
    except (InferenceServerException, ValueError, KeyError, TypeError, AttributeError) as error:
        remedy = "check that the endpoint runs Triton's container"
        if request.encoding == "json":
            remedy = f"ask in binary; or {remedy}"
        raise ServedCheckError(
            f"what {request.model} answered cannot be read, {len(response.body)} bytes of {response.content_type!r}:"
            f" {first_line(error)}",
            remedy=remedy,
        ) from error
    return replace(reply, variant=response.variant)


def _json_bytes(response: InvocationResponse) -> int | None:
    """The length of the JSON part of a response; None where all of it is JSON.

    Raises:
        ValueError: the content type has no such number.
    """
    content_type = response.content_type.replace(" ", "")
    if not content_type.startswith(BINARY_TYPE):
        return None
    number = int(content_type.removeprefix(BINARY_TYPE))
    if not 0 < number <= len(response.body):
        raise ValueError(f"a JSON part of {number} bytes")
    return number
