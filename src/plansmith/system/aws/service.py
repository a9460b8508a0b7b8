"""AWS service client: uses the default credential chain and readable errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic import Field

from plansmith.errors import EnvironmentFault, InternalError, PlansmithError, UsageError
from plansmith.formatting import count
from plansmith.records.model import Record
from plansmith.system.aws.client import (
    create_client,
    credential_errors,
    cut_errors,
    no_credentials,
    not_installed,
    require_region,
)
from plansmith.system.aws.s3_errors import refusal_in

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

_JAVA_ESCAPE = re.compile(r"\\[pu]")


class AwsService:
    """An AWS service client; makes no request until one is needed.

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
        """Call an operation and return the response.

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
        """Yield all items of a paginated listing, from a field of the responses.

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
        """Close the connections."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connect(self) -> Any:
        from botocore.session import Session

        session = Session()
        return create_client(
            session,
            self._name,
            self._region or require_region(session),
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
        """A missing permission, by its action name, which AWS gives in most access-denied messages."""
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


class Call(Record):
    """An AWS request.

    Attributes:
        service: botocore's name, such as sagemaker.
        operation: a method of boto3's client, such as create_model.
        parameters: of the method.
    """

    service: str
    operation: str
    parameters: dict[str, Any] = Field(default_factory=dict)

    @property
    def action(self) -> str:
        """The operation's name in the AWS documentation, such as CreateModel."""
        return "".join(part.capitalize() for part in self.operation.split("_"))

    @property
    def summary(self) -> str:
        """One-line summary for display: `create model bert-main-0a1b2c`."""
        names = ("ModelName", "EndpointConfigName", "EndpointName", "Key", "ResourceId", "ResourceArn")
        order = names[2:] if self.operation in {"create_endpoint", "update_endpoint", "delete_endpoint"} else names
        name = next((str(self.parameters[field]) for field in order if field in self.parameters), "")
        return f"{self.operation.replace('_', ' ')} {name}".rstrip()


def require_valid(call: Call, *, enums: bool = False) -> None:
    """Validate a request against AWS's service description; nothing is sent.

    Args:
        call: the request.
        enums: also check texts that are one of a list. AWS adds to these lists, and an older botocore knows fewer.

    Raises:
        UsageError: a value is longer than AWS takes it, or has other characters.
        InternalError: AWS has no such request.
        EnvironmentFault: botocore is not installed.
    """
    try:
        from botocore.validate import ParamValidator
    except ImportError as error:
        raise not_installed() from error
    shape = _service_model(call.service).operation_model(call.action).input_shape
    report = ParamValidator().validate(call.parameters, shape)
    if report.has_errors():
        raise InternalError(
            f"{call.service} {call.action} is no valid request: {report.generate_report()}",
            remedy="report it with the endpoint's file; nothing was sent",
        )
    problems = [
        problem
        for value, kind, place in _values(call.parameters, shape, call.action)
        for problem in _value_problems(value, kind, place, enums=enums)
    ]
    if problems:
        raise UsageError(
            "\n  ".join([f"AWS would refuse {count(len(problems), 'value')}:", *problems]),
            remedy="change them in the endpoint's file; nothing was sent",
        )


@cache
def _service_model(service: str) -> Any:
    from botocore.loaders import Loader
    from botocore.model import ServiceModel

    return ServiceModel(Loader().load_service_model(service, "service-2"), service)


def _values(value: Any, shape: Any, place: str) -> Iterator[tuple[Any, Any, str]]:
    """Yield a value and all nested values, each with its shape and its path."""
    yield value, shape, place
    if shape.type_name == "structure":
        for name, inner in value.items():
            yield from _values(inner, shape.members[name], f"{place}.{name}")
    elif shape.type_name == "list":
        for number, inner in enumerate(value):
            yield from _values(inner, shape.member, f"{place}[{number}]")
    elif shape.type_name == "map":
        for name, inner in value.items():
            yield name, shape.key, f"{place} (name)"
            yield from _values(inner, shape.value, f"{place}.{name}")


def _value_problems(value: Any, shape: Any, place: str, *, enums: bool) -> Iterator[str]:
    """Check the limits that botocore leaves to the server: lengths, patterns, lists of strings.

    Patterns with escapes that Java knows and Python does not are left out.
    """
    longest, pattern = shape.metadata.get("max"), shape.metadata.get("pattern", "")
    if longest is not None and shape.type_name in {"string", "list", "map"} and len(value) > longest:
        yield f"{place} is longer than {longest}"
    if shape.type_name != "string":
        return
    if pattern and not _JAVA_ESCAPE.search(pattern) and not re.fullmatch(pattern, value):
        yield f"{place} does not match {pattern}: {value}"
    if enums and shape.enum and value not in shape.enum:
        yield f"{place} is none of AWS's {len(shape.enum)} values: {value}"
