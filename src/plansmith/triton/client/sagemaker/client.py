"""SageMaker client for one model behind an endpoint."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from textwrap import shorten
from typing import TYPE_CHECKING, Protocol

from plansmith.errors import EnvironmentFault, PlansmithError, ServedCheckError, UsageError
from plansmith.formatting import format_bytes
from plansmith.system.aws.sagemaker_runtime import MAX_BODY_BYTES, MODEL_ERROR, EndpointError, InvocationResponse
from plansmith.triton.client.messages import Encoding, Parameter, Reply, Request
from plansmith.triton.client.model_client import Answer, ModelClient
from plansmith.triton.client.sagemaker.invocation import (
    CUSTOM_ATTRIBUTES,
    INFERENCE_ID,
    TARGET_MODEL,
    TARGET_VARIANT,
    Invocation,
    invocation_from_request,
    reply_from_response,
    require_headers,
)
from plansmith.triton.client.sagemaker.transports import FrontEndTransport, RuntimeTransport

if TYPE_CHECKING:
    from plansmith.triton.dtypes import Signature


# Codes of InvokeEndpoint and of all services: docs.aws.amazon.com/sagemaker/latest/APIReference, under
# API_runtime_InvokeEndpoint and CommonErrors; botocore has a shorter name for some.
_NOT_READY = "ModelNotReadyException"
_THROTTLED = {
    "RequestThrottled",
    "RequestThrottledException",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
}
_UNAVAILABLE = {
    "InternalDependencyException",
    "InternalFailure",
    "InternalServerException",
    "ServiceUnavailable",
    "ServiceUnavailableException",
}
_INVALID = {"ValidationError", "ValidationException"}
_DENIED = {"AccessDenied", "AccessDeniedException"}
_BAD_CREDENTIALS = {
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "MissingAuthenticationToken",
    "UnrecognizedClientException",
}

_TIMED_OUT = 0
_NOT_LOADED = 404
_ALREADY_LOADED = 409
_TOO_LARGE = 413
_NO_MEMORY = 507
_TRANSIENT_STATUS = {500, 502, 503}

_TAGS = re.compile("<[^>]*>")
_MAX_MESSAGE = 300

DEFAULT_ATTEMPTS = 5
_sleep = time.sleep
_FIRST_PAUSE_SECONDS = 0.5
_MAX_PAUSE_SECONDS = 8
DEFAULT_TIMEOUT_SECONDS = 70
"""A little more than the 60 s that SageMaker gives a model, so that its own message arrives."""


@dataclass(frozen=True)
class InvocationAttempt:
    """A sent invocation, for error messages about it.

    Attributes:
        model: the name of the model.
        place: the endpoint, as the beginning of a sentence.
        log: the command that reads the log of the container, or where it is.
        invocation: the request.
        attempts: how often it was sent.
    """

    model: str
    place: str
    log: str
    invocation: Invocation
    attempts: int = 1

    @property
    def times(self) -> str:
        """The number of attempts as text after a comma; empty for one."""
        return f", {self.attempts} times" if self.attempts > 1 else ""


def is_transient(error: EndpointError) -> bool:
    """Whether a retry may succeed soon; never for a request that the model refused."""
    if error.code == MODEL_ERROR:
        return error.status in _TRANSIENT_STATUS
    return error.code in {*_THROTTLED, *_UNAVAILABLE, _NOT_READY}


def container_message(text: str) -> str:
    """Return the error message in a container's response: Triton's are JSON with a field `error`."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return text.strip()
    message = document.get("error") if isinstance(document, dict) else None
    return message if isinstance(message, str) else text.strip()


def plansmith_error(error: EndpointError, attempt: InvocationAttempt) -> PlansmithError:
    """Convert an endpoint's error to one of plansmith's, with a remedy."""
    if error.code == MODEL_ERROR:
        return _container_error(error, attempt)
    if error.code in _INVALID:
        return _validation_error(error.message, attempt)
    if is_transient(error):
        return _transient_error(error, attempt)
    reason = shorten(_TAGS.sub(" ", error.message), _MAX_MESSAGE, placeholder=" …")  # of a proxy it may be a page
    message, remedy = f"{attempt.place} did not answer: {error.code}: {reason}", f"see: {attempt.log}"
    if error.code in _DENIED:
        message = f"{attempt.place} may not be invoked with these credentials: {error.message}"
        remedy = "allow them sagemaker:InvokeEndpoint on it; aws sts get-caller-identity tells whose they are"
    if error.code in _BAD_CREDENTIALS:
        message = f"{attempt.place}: AWS does not accept these credentials: {error.message}"
        remedy = "log in again, or set AWS_PROFILE; see: aws sts get-caller-identity"
    return EnvironmentFault(message, remedy=remedy)


def _transient_error(error: EndpointError, attempt: InvocationAttempt) -> EnvironmentFault:
    """The error for a transient failure that persisted through all attempts."""
    message, remedy = f"{attempt.place} did not answer", "ask again in a minute"
    if error.code in _THROTTLED:
        message = f"{attempt.place} throttles requests"
        remedy = (
            "ask again in a moment, or more often (--attempts); for steady load, scale the endpoint, or have the quota"
            " of invocations raised"
        )
    if error.code == _NOT_READY:
        message = f"{attempt.place} is not ready to answer"
        remedy = (
            "ask again in a minute, or more often (--attempts): loading a model takes its time, and so does scaling an"
            " endpoint from zero"
        )
    return EnvironmentFault(f"{message}{attempt.times}: {error.code}: {error.message}", remedy=remedy, transient=True)


def _container_error(error: EndpointError, attempt: InvocationAttempt) -> PlansmithError:
    """The error for a response of the container."""
    reason, log = container_message(error.message), f"see: {attempt.log}"
    if error.status == _TIMED_OUT:
        return EnvironmentFault(
            f"{attempt.model} did not answer within the time that SageMaker gives a model: {reason}",
            remedy=f"send less at once, or take a larger instance; {log}",
        )
    if error.status == _NO_MEMORY:
        return EnvironmentFault(
            f"{attempt.place} has no memory for {attempt.model} (507): {reason or 'no reason was given'}",
            remedy="send a smaller batch, or take a larger instance type, or fewer models in the endpoint",
        )
    if error.status == _TOO_LARGE:
        return UsageError(
            f"{attempt.place} takes no request of {len(attempt.invocation.body)} bytes (413): {reason}",
            remedy="send less at once",
        )
    remedy, default_reason = f"correct what it names; or {log}", "no reason was given"
    if error.status == _NOT_LOADED:
        target = attempt.invocation.target_model
        remedy = f"check that {target} is a model that is loaded there; or {log}"
        if not target:
            remedy = f"name the archive, if the endpoint has several models: --target-model NAME.tar.gz; or {log}"
        default_reason = f"{target or attempt.model} is not loaded"
    if error.status == _ALREADY_LOADED:
        remedy = f"give the models of the endpoint different names; or {log}"
        default_reason = "a model of that name is loaded already"
    if is_transient(error):
        remedy = f"ask again in a minute; or {log}"
    return ServedCheckError(
        f"{attempt.place} refused a request to {attempt.model} ({error.status}){attempt.times}:"
        f" {reason or default_reason}",
        remedy=remedy,
        transient=is_transient(error),
    )


def _validation_error(reason: str, attempt: InvocationAttempt) -> PlansmithError:
    """The error for a request that SageMaker refuses: all cases share one code and differ only in the message."""
    target, variant = attempt.invocation.target_model, attempt.invocation.headers.get(TARGET_VARIANT, "")
    message, remedy = f"{attempt.place} does not take this request", "correct what it names"
    if "InService" in reason or "in service" in reason:
        return EnvironmentFault(
            f"{attempt.place} does not answer in its state: {reason}",
            remedy="wait until it is InService: aws sagemaker wait endpoint-in-service --endpoint-name NAME",
            transient=True,
        )
    if "not a multi-model endpoint" in reason:
        remedy = "leave --target-model out"
    elif "missing a target model" in reason:
        remedy = "name the archive: --target-model NAME.tar.gz"
    elif target and ("download model data" in reason or "object located" in reason):
        message = f"{attempt.place} has no archive {target}, or may not read it"
        remedy = (
            "name one below the prefix of its model data (aws s3 ls); the role of the endpoint needs s3:GetObject there"
        )
    elif variant and variant in reason and "ariant" in reason:
        remedy = "name one of its variants, or leave --target-variant out: aws sagemaker describe-endpoint lists them"
    elif "not found" in reason or "ould not find" in reason:
        message = f"{attempt.place} does not exist"
        remedy = "check its name and --region: aws sagemaker list-endpoints"
    return UsageError(f"{message}: {reason}", remedy=remedy)


class Transport(Protocol):
    """Transport: sends invocations to an endpoint."""

    @property
    def place(self) -> str:
        """The endpoint, as the start of a sentence."""
        ...

    @property
    def log(self) -> str:
        """The command that shows the container's log, or the log's location."""
        ...

    def invoke(self, invocation: Invocation) -> InvocationResponse:
        """Send one request and wait for the response.

        Raises:
            EndpointError: the endpoint or its container answers with an error.
            EnvironmentFault: it is not reached, or not in time.
        """
        ...

    def is_connection_lost(self, error: EnvironmentFault) -> bool:
        """Whether `invoke` failed to connect or lost the connection before the response; not a timeout."""
        ...

    def close(self) -> None:
        """Close the connections. Idempotent."""
        ...


class EndpointConnection:
    """Connection to one endpoint, with retries.

    Retried are throttling, a model that is being loaded, a front end that is not there yet, and a lost connection: an
    inference changes nothing, so that it may be done twice. The pause doubles, and half of it is random, so that
    clients do not return together. Not retried are what a model refused, and what was not answered in time: the model
    may still be at it.

    Args:
        transport: carries the requests; closed with the connection.
        headers: sent with each.
        attempts: how often one is sent at most.

    Raises:
        UsageError: headers that SageMaker does not take.
    """

    def __init__(self, transport: Transport, *, headers: Mapping[str, str], attempts: int = DEFAULT_ATTEMPTS) -> None:
        require_headers(headers)
        self._transport = transport
        self._headers = dict(headers)
        self._attempts = attempts

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._transport.close()

    def invocation(self, request: Request) -> Invocation:
        """Return the invocation for a request.

        Raises:
            UsageError: it cannot be sent, or is larger than SageMaker takes.
        """
        invocation = invocation_from_request(request, self._headers)
        size = len(invocation.body)
        if size > MAX_BODY_BYTES:
            binary = "ask in binary, which takes less room, or " if request.encoding == "json" else ""
            limit = f"{MAX_BODY_BYTES} ({format_bytes(MAX_BODY_BYTES)})"
            raise UsageError(
                f"the request has {size} bytes, and {self._transport.place} takes {limit}",
                remedy=f"{binary}send fewer samples at once, or smaller ones",
            )
        return invocation

    def ask(self, request: Request) -> Reply:
        """Send a request and wait for the reply.

        Raises:
            UsageError: it cannot be sent, or the endpoint does not take it.
            ServedCheckError: the model refuses it, with its reason, or the answer cannot be read.
            EnvironmentFault: the endpoint is not reached, not ready, or not in time.
        """
        return reply_from_response(self.send(self.invocation(request), request.model), request)

    def stream(self, request: Request) -> Iterator[Reply]:
        """Raise UsageError: SageMaker's front end does not serve decoupled models.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            f"{request.model} is decoupled, and SageMaker's front end of Triton serves no such model",
            remedy="serve a version of it that answers once, or ask it on a Triton (plansmith infer)",
        )

    def send(self, invocation: Invocation, model: str) -> InvocationResponse:
        """Send an invocation and wait for the response; `model` names it in messages. Raises as `ask`."""
        for number in range(1, self._attempts + 1):
            attempt = InvocationAttempt(model, self._transport.place, self._transport.log, invocation, number)
            try:
                return self._transport.invoke(invocation)
            except EndpointError as error:
                if number == self._attempts or not is_transient(error):
                    raise plansmith_error(error, attempt) from error
            except EnvironmentFault as error:
                if number == self._attempts or not self._transport.is_connection_lost(error):
                    message = f"{error.message}{attempt.times}"
                    raise EnvironmentFault(message, remedy=error.remedy, transient=error.transient) from error
            _sleep(_pause_seconds(number))
        raise AssertionError("the last attempt answers or raises")


def _pause_seconds(attempts: int) -> float:
    """Exponential backoff with jitter: the pause doubles after each attempt, and half of it is random."""
    longest = min(_FIRST_PAUSE_SECONDS * 2.0 ** (attempts - 1), _MAX_PAUSE_SECONDS)
    return longest / 2 + random.uniform(0, longest / 2)  # noqa: S311 - spreads load, keeps no secret


class SageMakerClient(ModelClient):
    """Inference client for one model of a SageMaker endpoint, for use from one thread; a context manager.

    SageMaker does not tell what a model takes, so that a signature is needed: `signature_from_package` makes one of a
    release's manifest, `plansmith.sagemaker.signatures` of a release, an archive or a configuration.

    Args:
        endpoint: its name.
        signature: what the model takes and answers.
        model: its name in messages; the endpoint's when empty.
        region: where the endpoint is; that of AWS_REGION and the AWS configuration when empty.
        profile: of the AWS configuration files.
        url: a front end that answers without AWS, such as http://127.0.0.1:8080.
        target_model: the archive of a multi-model endpoint, such as minilm-3.tar.gz.
        target_variant: the production variant; when empty, they share requests by weight.
        inference_id: joins captured data with ground truth that arrives later.
        custom_attributes: for the endpoint's own code.
        encoding: "binary", or "json" for bodies that are JSON throughout.
        timeout_seconds: how long an answer may take.
        attempts: how often a request is sent at most, where it is throttled or the model is not ready.

    Raises:
        UsageError: names or an address that cannot be, or arguments that contradict each other.
    """

    def __init__(  # noqa: PLR0913 - an endpoint has as many settings, and most callers need two of them
        self,
        endpoint: str,
        *,
        signature: Signature,
        model: str = "",
        region: str = "",
        profile: str = "",
        url: str = "",
        target_model: str = "",
        target_variant: str = "",
        inference_id: str = "",
        custom_attributes: str = "",
        encoding: Encoding = "binary",
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        attempts: int = DEFAULT_ATTEMPTS,
    ) -> None:
        transport: Transport
        if url and (region or profile):
            raise UsageError(
                "a front end that is reached by its address has no region and no profile", remedy="leave them out"
            )
        if url:
            transport = FrontEndTransport(url, timeout_seconds=timeout_seconds)
        else:
            transport = RuntimeTransport(endpoint, region=region, profile=profile, timeout_seconds=timeout_seconds)
        headers = {
            TARGET_MODEL: target_model,
            TARGET_VARIANT: target_variant,
            INFERENCE_ID: inference_id,
            CUSTOM_ATTRIBUTES: custom_attributes,
        }
        self._endpoint = EndpointConnection(
            transport, headers={name: value for name, value in headers.items() if value}, attempts=attempts
        )
        super().__init__(self._endpoint, model=model or endpoint, version="", encoding=encoding, signature=signature)

    def ask(
        self,
        feed: Mapping[str, object],
        *,
        outputs: Collection[str] = (),
        parameters: Mapping[str, Parameter] | None = None,
    ) -> Answer:
        """Run inference on a feed, with the version that answered; arguments and errors as for `ModelClient.ask`.

        Raises:
            UsageError: also for a part of the batch that is larger than SageMaker takes; then no part is sent.
        """
        for request in self.requests(feed, outputs=outputs, parameters=parameters)[1:]:
            self._endpoint.invocation(request)
        return super().ask(feed, outputs=outputs, parameters=parameters)

    def invocations(
        self,
        feed: Mapping[str, object],
        *,
        outputs: Collection[str] = (),
        parameters: Mapping[str, Parameter] | None = None,
    ) -> list[Invocation]:
        """Return the invocations that `ask` would send, without sending them. Raises UsageError as `ask` does."""
        requests = self.requests(feed, outputs=outputs, parameters=parameters)
        return [self._endpoint.invocation(request) for request in requests]
