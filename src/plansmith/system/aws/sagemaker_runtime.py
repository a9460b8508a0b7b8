"""SageMaker Runtime client, which invokes endpoints: one request, and AWS's errors with their codes."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from plansmith.errors import EnvironmentFault, PlansmithError, UsageError, first_line
from plansmith.system.aws.client import (
    create_client,
    credential_errors,
    cut_errors,
    no_credentials,
    not_installed,
    require_region,
)

MODEL_ERROR = "ModelError"
"""SageMaker's code for an answer of the container that is an error."""

MAX_BODY_BYTES = 6 * 2**20
"""The largest body that `InvokeEndpoint` takes: the length of `BodyBlob` in botocore's model of the service."""

CONTENT_DIGEST = "X-Amz-Content-SHA256"
"""The header with the SHA-256 of the body in hexadecimal, which a signature covers."""

_REUSE_SECONDS = 60


class EndpointError(Exception):
    """Error response of an endpoint.

    Attributes:
        code: SageMaker's; `MODEL_ERROR` where the container answered.
        status: the container's where it answered, else SageMaker's; 0 where the container did not answer in time.
        message: the reason.
    """

    def __init__(self, code: str, status: int, message: str) -> None:
        super().__init__(f"{code} {status}: {message}")
        self.code = code
        self.status = status
        self.message = message


@dataclass(frozen=True)
class InvocationResponse:
    """The response to one invocation.

    Attributes:
        body: its bytes.
        content_type: what they are.
        variant: the production variant that answered; empty where the endpoint does not tell.
    """

    body: bytes = field(repr=False)
    content_type: str
    variant: str = ""


class SageMakerRuntime:
    """`InvokeEndpoint` client for one endpoint; makes no AWS request before the first call, and no retries.

    Args:
        endpoint: its name.
        region: where it is; that of the environment and the AWS configuration when empty.
        profile: of the AWS configuration files; empty for what the environment says.
        timeout_seconds: how long an answer may take.
    """

    def __init__(self, endpoint: str, *, region: str = "", profile: str = "", timeout_seconds: float) -> None:
        self._endpoint = endpoint
        self._region = region
        self._profile = profile
        self._timeout_seconds = timeout_seconds
        self._client: Any = None

    @property
    def region(self) -> str:
        """The region of the endpoint; empty until it is given or resolved."""
        return self._region if self._client is None else str(self._client.meta.region_name)

    def url(self) -> str:
        """Return the service URL in the region, or the one set in the environment; makes no request.

        Raises:
            UsageError: a profile or a region that does not exist.
            EnvironmentFault: botocore is not installed.
        """
        try:
            from botocore import exceptions
        except ImportError as error:
            raise not_installed() from error
        try:
            if self._client is None:
                self._client = self._connect()
            return str(self._client.meta.endpoint_url)
        except exceptions.BotoCoreError as error:
            raise self._fault(error) from error

    def invoke(self, body: bytes, content_type: str, **parameters: str) -> InvocationResponse:
        """Send a request and wait for the response.

        Args:
            body: of at most `MAX_BODY_BYTES`.
            content_type: what it is.
            parameters: others of `InvokeEndpoint`, such as TargetModel.

        Raises:
            EndpointError: SageMaker or the container answers with an error.
            UsageError: a profile or a region that does not exist.
            EnvironmentFault: botocore is not installed, there are no credentials, or the endpoint is not reached.
        """
        try:
            from botocore import exceptions
        except ImportError as error:
            raise not_installed() from error
        try:
            if self._client is None:
                self._client = self._connect()
            answer = self._client.invoke_endpoint(
                EndpointName=self._endpoint, Body=body, ContentType=content_type, **parameters
            )
            return InvocationResponse(
                body=answer["Body"].read(),
                content_type=answer.get("ContentType", ""),
                variant=answer.get("InvokedProductionVariant", ""),
            )
        except exceptions.ClientError as error:
            raise _endpoint_error(error.response) from error
        except (exceptions.BotoCoreError, *cut_errors()) as error:
            raise self._fault(error) from error

    def is_connection_lost(self, error: EnvironmentFault) -> bool:
        """Whether `invoke` failed to connect or lost the connection before the response; not a timeout."""
        from botocore.exceptions import ReadTimeoutError

        cause = error.__cause__
        return isinstance(cause, cut_errors()) and not isinstance(cause, ReadTimeoutError)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connect(self) -> Any:
        from botocore.session import Session

        session = Session(profile=self._profile or None)
        return create_client(
            session,
            "sagemaker-runtime",
            self._region or require_region(session),
            attempts=1,
            read_seconds=self._timeout_seconds,
        )

    def _fault(self, error: Exception) -> PlansmithError:
        from botocore import exceptions

        place = f"endpoint {self._endpoint}" + f" in {self.region}" * bool(self.region)
        if isinstance(error, exceptions.ProfileNotFound):
            return UsageError(first_line(error), remedy="name another --profile: aws configure list-profiles")
        if isinstance(error, exceptions.InvalidRegionError):
            return UsageError(first_line(error), remedy="write --region like eu-west-1")
        if isinstance(error, credential_errors()):
            return no_credentials(error, place)
        if isinstance(error, exceptions.ReadTimeoutError):
            return EnvironmentFault(
                f"{place} did not answer within {self._timeout_seconds:g} s",
                remedy="give it more time (--timeout; SageMaker ends what takes a model longer than 60 s), or send less"
                " at once",
                transient=True,
            )
        return EnvironmentFault(
            f"{place} is not reached: {first_line(error)}",
            remedy="check the name of the region (--region), and that AWS can be reached from here",
            transient=True,
        )


def _endpoint_error(response: dict[str, Any]) -> EndpointError:
    """The error of AWS, or of the container behind it, from a response."""
    error = response.get("Error", {})
    code, message = str(error.get("Code", "")), str(error.get("Message", ""))
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code == MODEL_ERROR:
        return EndpointError(
            code, int(response.get("OriginalStatusCode", status)), str(response.get("OriginalMessage") or message)
        )
    return EndpointError(code, status, message)


def error_from_answer(status: int, error_type: str, body: bytes) -> EndpointError:
    """Return the error in a service response that botocore has not parsed.

    Args:
        status: of the answer.
        error_type: its header `x-amzn-ErrorType`: a code, which may be followed by a colon and an address.
        body: JSON with `Message`, and for a `ModelError` with the status and the message of the container.
    """
    text = body.decode(errors="replace")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = {}
    fields = document if isinstance(document, dict) else {}
    code = error_type.partition(":")[0] or str(fields.get("Code") or fields.get("__type") or "").rpartition("#")[2]
    message = str(fields.get("Message") or fields.get("message") or text)
    if code == MODEL_ERROR:
        status, message = int(fields.get("OriginalStatusCode", status)), str(fields.get("OriginalMessage") or message)
    return EndpointError(code, status, message)


# AWS takes a signature for five minutes: docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-troubleshooting.html


class RequestSigner:
    """Request signer for one service, with credentials of the usual AWS chain.

    Signing takes longer than sending a small request. The headers of a request that is sent again are therefore used
    again for a minute.

    Args:
        service: its name in signatures, such as sagemaker.
        region: where it is.
        profile: of the AWS configuration files; empty for what the environment says.
    """

    def __init__(self, service: str, region: str, profile: str = "") -> None:
        self._service = service
        self._region = region
        self._profile = profile
        self._credentials: Any = None
        self._signed: dict[tuple[str, tuple[str, ...]], dict[str, str]] = {}
        self._since = 0.0

    def headers(self, url: str, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers of a signed POST request.

        Args:
            url: of the request.
            headers: of the request, with `CONTENT_DIGEST`.

        Raises:
            EnvironmentFault: botocore is not installed, or there are no credentials.
        """
        now = time.monotonic()
        if now - self._since > _REUSE_SECONDS:
            self._signed, self._since = {}, now
        key = (url, tuple(headers.values()))
        signed = self._signed.get(key)
        if signed is None:
            signed = self._signed[key] = self._sign(url, headers)
        return signed

    def _sign(self, url: str, headers: Mapping[str, str]) -> dict[str, str]:
        try:
            from botocore.auth import SigV4Auth
            from botocore.awsrequest import AWSRequest
            from botocore.session import Session
        except ImportError as error:
            raise not_installed() from error
        request = AWSRequest("POST", url, headers=dict(headers))
        try:
            if self._credentials is None:
                self._credentials = Session(profile=self._profile or None).get_credentials()
            current = self._credentials and self._credentials.get_frozen_credentials()
            SigV4Auth(current, self._service, self._region).add_auth(request)
        except credential_errors() as error:
            raise no_credentials(error, f"the service {self._service}") from error
        return dict(request.headers.items())
