"""A service of AWS: asked with the credentials of the usual chain, and its errors in our words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from plansmith.errors import EnvironmentFault, PlansmithError, UsageError
from plansmith.system.aws.client import create_client, default_region, not_installed
from plansmith.system.aws.errors import credential_errors, cut_errors, no_credentials
from plansmith.system.aws.s3.errors import refusal_in

_ATTEMPTS = 3
_THROTTLED = {"OverLimit", "RequestThrottled", "Throttling", "ThrottlingException", "TooManyRequestsException"}
_TRANSIENT = {"ConflictException", "InternalError", "InternalFailure", "ServiceUnavailable"}
_QUOTA = {"LimitExceededException", "ResourceLimitExceeded", "ServiceQuotaExceededException"}
_INVALID = {"ValidationException", "ValidationError", "ResourceNotFound"}
_DENIED = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"}
_CREDENTIALS = {
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
}

_NAMED_ACTION = re.compile(r"to perform: ([a-z0-9-]+:\w+)")
_NAMED_RESOURCE = re.compile(r"on resource: (\S+)")
_NAMED_QUOTA = re.compile(r"(?:service limit|quota) '([^']+)'")


class AwsService:
    """A service of AWS; nothing is asked of it until something is needed.

    Args:
        name: botocore's, such as sqs.
        subject: what is asked about, with its article, such as "the queue https://…".
        region: of it; that of the environment where it is empty.
        endpoint_url: where it is not AWS's own.
        read_seconds: how long an answer may take.
        settings: the names of the settings that say where it is, as a person reads them.
        remedy: what to type where it refuses.
        permissions: what prints all permissions that are needed, such as a command; empty for nothing.
    """

    def __init__(
        self,
        name: str,
        subject: str,
        *,
        region: str = "",
        endpoint_url: str = "",
        read_seconds: float = 30,
        settings: str,
        remedy: str,
        permissions: str = "",
    ) -> None:
        self._name = name
        self._subject = subject
        self._region = region
        self._endpoint_url = endpoint_url
        self._read_seconds = read_seconds
        self._settings = settings
        self._remedy = remedy
        self._permissions = permissions
        self._client: Any = None

    def call(self, operation: str, **parameters: Any) -> Any:
        """What the service answers.

        Args:
            operation: a method of botocore's client.
            parameters: of the method.

        Raises:
            UsageError: it knows no such thing, or does not take it.
            EnvironmentFault: botocore is not installed, or the service cannot be asked.
        """
        try:
            from botocore import exceptions
        except ImportError as error:
            raise not_installed() from error
        try:
            if self._client is None:
                self._client = self._connect()
            return getattr(self._client, operation)(**parameters)
        except (exceptions.BotoCoreError, exceptions.ClientError, *cut_errors(), ValueError) as error:
            raise self._fault(error, operation) from error

    def pages(self, operation: str, field: str, **parameters: Any) -> Iterator[Any]:
        """All that the service lists under a field of its answers, page by page.

        Args:
            operation: a method of botocore's client whose answers have a NextToken.
            field: of the answers, a list.
            parameters: of the method.

        Raises:
            PlansmithError: as `call`.
        """
        while True:
            page = self.call(operation, **parameters)
            yield from page.get(field, ())
            if not page.get("NextToken"):
                return
            parameters["NextToken"] = page["NextToken"]

    def close(self) -> None:
        """Let go of connections."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connect(self) -> Any:
        from botocore.session import Session

        session = Session()
        return create_client(
            session,
            self._name,
            self._region or default_region(session),
            endpoint_url=self._endpoint_url,
            attempts=_ATTEMPTS,
            read_seconds=self._read_seconds,
        )

    def _fault(self, error: Exception, operation: str) -> PlansmithError:
        if isinstance(error, credential_errors()):
            return no_credentials(error, self._subject)
        refusal = refusal_in(error)
        if refusal is None:
            return EnvironmentFault(
                f"{self._subject} cannot be reached: {type(error).__name__}",
                remedy=f"see that {self._settings} are right, and that it can be reached from here",
                transient=True,
            )
        return self._refused(refusal.code.rpartition(".")[2], refusal.message, operation)

    def _refused(self, code: str, message: str, operation: str) -> PlansmithError:
        summary = f"{self._subject} refuses {operation.replace('_', ' ')}: {code}"
        if code in _INVALID:
            return UsageError(f"{summary}: {message}", remedy=self._remedy)
        if code in _CREDENTIALS:
            return EnvironmentFault(
                f"{self._subject}: AWS does not accept these credentials ({code})",
                remedy="see which ones are used: aws configure list; log in again, or name others: AWS_PROFILE",
            )
        if code in _DENIED:
            return self._denied(message, operation)
        if code in _QUOTA:
            return self._quota_exceeded(message)
        if code in _THROTTLED:
            return EnvironmentFault(
                f"{self._subject} went on to answer {code} to {operation.replace('_', ' ')}",
                remedy="do the same again in a minute: it goes on where it was",
                transient=True,
            )
        full = f"{summary}: {message}" if message else summary
        return EnvironmentFault(full, remedy=self._remedy, transient=code in _TRANSIENT)

    def _denied(self, message: str, operation: str) -> EnvironmentFault:
        """A permission that is missing, by its name, which AWS tells in most of its refusals."""
        named, resource = _NAMED_ACTION.search(message), _NAMED_RESOURCE.search(message)
        standard = "".join(part.capitalize() for part in operation.split("_"))
        action = named[1] if named else f"{self._name}:{standard}"
        missing = f"{action} on {resource[1]}" if resource else action
        hint = f" ({self._permissions})" if self._permissions else ""
        return EnvironmentFault(
            f"{self._subject}: these credentials are not allowed {missing}",
            remedy=f"allow {missing} to them{hint}; or use others: AWS_PROFILE",
        )

    def _quota_exceeded(self, message: str) -> EnvironmentFault:
        quota, region = _NAMED_QUOTA.search(message), self._client.meta.region_name
        name = f"the quota {quota[1]!r}" if quota else "a quota"
        page = f"https://console.aws.amazon.com/servicequotas/home/services/{self._name}/quotas?region={region}"
        return EnvironmentFault(
            f"{name} of this account in {region} is exceeded: {message}",
            remedy=f"ask for an increase at {page}; or request fewer or smaller instances",
        )
