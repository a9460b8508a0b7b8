"""Errors of an endpoint: which of them pass, and a message with a remedy for each."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from textwrap import shorten

from plansmith.errors import EnvironmentFault, PlansmithError, ServedCheckError, UsageError
from plansmith.system.aws.sagemaker_runtime import MODEL_ERROR, EndpointError
from plansmith.triton.client.sagemaker.invocation import TARGET_VARIANT, Invocation

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


@dataclass(frozen=True)
class InvocationAttempt:
    """An invocation that was sent, for messages about it.

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
        """How often it was sent, behind a comma; empty for once."""
        return f", {self.attempts} times" if self.attempts > 1 else ""


def is_transient(error: EndpointError) -> bool:
    """Whether the same request may well be answered in a moment; never what a model refused."""
    if error.code == MODEL_ERROR:
        return error.status in _TRANSIENT_STATUS
    return error.code in {*_THROTTLED, *_UNAVAILABLE, _NOT_READY}


def container_message(text: str) -> str:
    """The reason in the answer of a container: Triton's are JSON with a field `error`."""
    try:
        document = json.loads(text)
    except ValueError:
        return text.strip()
    message = document.get("error") if isinstance(document, dict) else None
    return message if isinstance(message, str) else text.strip()


def plansmith_error(error: EndpointError, attempt: InvocationAttempt) -> PlansmithError:
    """The error of an endpoint as one of plansmith's, with what to type next."""
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
    """What may pass, and did not within all attempts."""
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
    """An answer of the container."""
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
    """What SageMaker does not take: the cases have one code, and differ in the message alone."""
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
