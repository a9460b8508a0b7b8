"""What goes wrong with S3, in our words: which permission, which bucket, which region, and what to type next.

The codes are those of docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html; other servers use them, too, and
leave some out, so that the HTTP status counts where there is no code.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from plansmith.errors import EnvironmentFault, PlansmithError, RepositoryError, first_line

ABSENT = "NoSuchKey"
UNMET = "PreconditionFailed"
CONFLICT = "ConditionalRequestConflict"
NOT_OFFERED = "NotImplemented"
NO_UPLOAD = "NoSuchUpload"
WRONG_PART = "InvalidPart"
DENIED = "AccessDenied"

_BY_STATUS = {
    403: DENIED,
    404: ABSENT,
    409: CONFLICT,
    412: UNMET,
    429: "TooManyRequests",
    500: "InternalError",
    501: NOT_OFFERED,
    503: "ServiceUnavailable",
    507: "InsufficientStorage",
}
_SAME = {"NotFound": ABSENT, "AllAccessDisabled": DENIED, "AccountProblem": DENIED, "Forbidden": DENIED}
_CREDENTIALS = {
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "InvalidToken",
    "ExpiredToken",
    "ExpiredTokenException",
    "TokenRefreshRequired",
    "InvalidSecurity",
}
_BUSY = {
    "SlowDown",
    "InternalError",
    "ServiceUnavailable",
    "RequestLimitExceeded",
    "RequestTimeout",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    "OperationAborted",
    CONFLICT,
}
DAMAGED = {
    "BadDigest",
    "InvalidDigest",
    "XAmzContentChecksumMismatch",
    "XAmzContentSHA256Mismatch",
    "IncompleteBody",
}
_FULL = {"InsufficientStorage", "QuotaExceeded", "XMinioStorageFull", "EntityTooLarge", "ServiceQuotaExceeded"}
_REGION = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301", "307"}
_CLOCK = {"RequestTimeTooSkewed", "RequestExpired"}

# docs.aws.amazon.com/AmazonS3/latest/userguide/using-with-s3-policy-actions.html; what is not named here has the name
# of its operation. Those of the bucket itself are allowed on its ARN, without a key.
_ACTIONS = {
    "head_object": "s3:GetObject",
    "upload_part": "s3:PutObject",
    "upload_part_copy": "s3:PutObject",
    "copy_object": "s3:PutObject",
    "create_multipart_upload": "s3:PutObject",
    "complete_multipart_upload": "s3:PutObject",
    "list_parts": "s3:ListMultipartUploadParts",
    "list_objects_v2": "s3:ListBucket",
    "list_multipart_uploads": "s3:ListBucketMultipartUploads",
}
_OF_BUCKET = {"s3:ListBucket", "s3:ListBucketMultipartUploads"}
_NAMED_ACTION = re.compile(r"to perform: ([a-z0-9-]+:\w+)")
_NAMED_REGION = re.compile(r"expecting '([a-z0-9-]+)'")


@dataclass(frozen=True)
class Asked:
    """What was asked of a server: a method of botocore's client, and the key in full where it is about an object."""

    place: str
    bucket: str
    server: str
    region: str
    operation: str
    key: str | None

    @property
    def host(self) -> str:
        """The server, without anything that an address may hold besides."""
        parts = urlsplit(self.server)
        return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)

    @property
    def what(self) -> str:
        """What it was about, as a person may read it."""
        name = "".join(word.capitalize() for word in self.operation.split("_"))
        return f"{name} of s3://{self.bucket}/{self.key or ''}"


def code_of(error: Exception) -> str:
    """The code of a server's refusal; empty where it is none."""
    response = _response(error)
    code = str(response.get("Error", {}).get("Code", ""))
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if status == 501:
        return NOT_OFFERED
    if not code or code.isdecimal():
        return _BY_STATUS.get(status, code)
    return _SAME.get(code, code)


def headers_of(error: Exception) -> dict[str, str]:
    """What came with a server's refusal."""
    headers: dict[str, str] = _response(error).get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return headers


def fault_from(error: Exception, asked: Asked) -> PlansmithError | None:
    """The error of ours for one of botocore's; None for one that is not."""
    from botocore import exceptions, parsers

    if isinstance(error, exceptions.ClientError):
        return _refusal(error, asked)
    if isinstance(error, parsers.ResponseParserError):
        return _no_s3(asked)
    if isinstance(error, (*_credential_errors(), exceptions.SSLError, *cut_errors())):
        return _fault_of_environment(error, asked)
    if isinstance(error, exceptions.BotoCoreError):
        return RepositoryError(f"{asked.what} cannot be asked for: {first_line(error)}", remedy=_see(asked))
    return None


def cut_errors() -> tuple[type[Exception], ...]:
    """What is raised where a server is not there, or a connection to it ends before the answer does."""
    from botocore import exceptions
    from urllib3.exceptions import HTTPError

    return (exceptions.HTTPClientError, exceptions.ConnectionError, exceptions.IncompleteReadError, HTTPError)


def _fault_of_environment(error: Exception, asked: Asked) -> EnvironmentFault:
    from botocore import exceptions

    if isinstance(error, exceptions.SSLError):
        return EnvironmentFault(
            f"{asked.host} is not trusted, or does not speak TLS: {_reason(error)}",
            remedy="name the certificates to trust with --ca-bundle, or see that the endpoint is right: http or https",
        )
    if isinstance(error, _credential_errors()):
        return EnvironmentFault(
            f"{asked.place}: there are no usable AWS credentials here: {first_line(error)}",
            remedy="set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; see: aws configure list",
        )
    return EnvironmentFault(
        f"{asked.place} cannot be reached at {asked.host}: {_reason(error)}",
        remedy="see that the server runs and the endpoint is right, then run the same command again: it goes on",
        transient=True,
    )


def _response(error: Exception) -> dict[str, Any]:
    response: dict[str, Any] = getattr(error, "response", None) or {}
    return response


def _credential_errors() -> tuple[type[Exception], ...]:
    from botocore import exceptions

    return (
        exceptions.NoCredentialsError,
        exceptions.PartialCredentialsError,
        exceptions.CredentialRetrievalError,
        exceptions.TokenRetrievalError,
        exceptions.NoAuthTokenError,
        exceptions.SSOError,
        exceptions.RefreshWithMFAUnsupportedError,
        exceptions.MetadataRetrievalError,
        exceptions.ConfigParseError,
    )


def _reason(error: Exception) -> str:
    """The innermost thing that an HTTP client says; the outer ones repeat the address."""
    inner: Any = getattr(error, "kwargs", {}).get("error", error)
    while isinstance(getattr(inner, "reason", None), Exception):
        inner = inner.reason
    return first_line(inner)


def _refusal(error: Exception, asked: Asked) -> PlansmithError:
    code = code_of(error)
    if code == DENIED:
        return _denied(error, asked)
    if code in _REGION:
        return _other_region(error, asked)
    if code in _CLOCK:
        return _wrong_clock(error, asked)
    return _passing_refusal(code, asked) or _refusal_of_place(code, error, asked)


def _passing_refusal(code: str, asked: Asked) -> PlansmithError | None:
    """One that may not come again, with other credentials or at another time."""
    if code in _CREDENTIALS:
        return EnvironmentFault(
            f"{asked.place}: {asked.host} does not accept these AWS credentials ({code})",
            remedy="see which ones are used: aws configure list; log in again, or name others with --profile",
        )
    if code in _BUSY:
        return EnvironmentFault(
            f"{asked.host} went on to answer {code} to {asked.what}",
            remedy="run the same command again later: it goes on where it was",
            transient=True,
        )
    if code in DAMAGED:
        return RepositoryError(
            f"{asked.what} arrived otherwise than it was sent ({code})",
            remedy="run the same command again; if it stays so, something between here and there changes the bytes",
            transient=True,
        )
    return None


def _refusal_of_place(code: str, error: Exception, asked: Asked) -> PlansmithError:
    if code == "NoSuchBucket":
        endpoint = "" if "amazonaws" in asked.host else f" --endpoint-url {asked.server}"
        return RepositoryError(
            f"there is no bucket {asked.bucket!r} at {asked.host}",
            remedy=f"name another, or make it: aws s3 mb s3://{asked.bucket}{endpoint}",
        )
    if code == ABSENT:
        return RepositoryError(
            f"there is no s3://{asked.bucket}/{asked.key or ''} at {asked.host}",
            remedy=f"see what is: plansmith verify --store {asked.place}",
        )
    if code in _FULL:
        return RepositoryError(
            f"{asked.host} takes no more: {code}", remedy=f"make room: plansmith prune --store {asked.place}"
        )
    if code == NOT_OFFERED:
        return RepositoryError(
            f"{asked.host} does not offer {asked.what} as it was asked for ({code})",
            remedy=f"see what it can do: plansmith store --probe --store {asked.place}",
        )
    if not code or code.isdecimal():
        return _no_s3(asked, code)
    message = str(_response(error).get("Error", {}).get("Message", "")).splitlines()
    return RepositoryError(f"{asked.host} refuses {asked.what}: {': '.join([code, *message[:1]])}", remedy=_see(asked))


def _denied(error: Exception, asked: Asked) -> PlansmithError:
    message = str(_response(error).get("Error", {}).get("Message", ""))
    named = _NAMED_ACTION.search(message)
    standard = "s3:" + "".join(word.capitalize() for word in asked.operation.split("_"))
    action = named.group(1) if named else _ACTIONS.get(asked.operation, standard)
    arn = f"arn:aws:s3:::{asked.bucket}"
    resource = arn if action in _OF_BUCKET else f"{arn}/{asked.place.removeprefix(f's3://{asked.bucket}').strip('/')}"
    resource += "" if action in _OF_BUCKET else "*" if resource.endswith("/") else "/*"
    return RepositoryError(
        f"{asked.place}: these credentials are not allowed {action} ({asked.what})",
        remedy=f"allow {action} on {resource}, or use others: --profile, AWS_PROFILE",
    )


def _other_region(error: Exception, asked: Asked) -> PlansmithError:
    response = _response(error)
    message = str(response.get("Error", {}).get("Message", ""))
    named = _NAMED_REGION.search(message)
    region = (
        headers_of(error).get("x-amz-bucket-region")
        or response.get("Error", {}).get("Region")
        or (named.group(1) if named else "")
    )
    lies = f"in {region}" if region else f"elsewhere ({code_of(error)})"
    return RepositoryError(
        f"bucket {asked.bucket} lies {lies}, not in {asked.region}",
        remedy=f"name the region: --region {region or 'REGION'}"
        + ("" if region else f"; aws s3api get-bucket-location --bucket {asked.bucket} tells it"),
    )


def _wrong_clock(error: Exception, asked: Asked) -> PlansmithError:
    date = headers_of(error).get("date")
    off = f" by {abs(time.time() - parsedate_to_datetime(date).timestamp()):.0f} s" if date else ""
    return EnvironmentFault(
        f"the clock of this machine differs from that of {asked.host}{off}, which refuses its requests",
        remedy="set the clock, such as with: timedatectl set-ntp true",
    )


def _no_s3(asked: Asked, code: str = "") -> PlansmithError:
    return EnvironmentFault(
        f"what answers at {asked.host} is no S3 server" + (f" (HTTP {code})" if code else ""),
        remedy="name the address of its S3 interface with --endpoint-url, and not that of its web pages",
    )


def _see(asked: Asked) -> str:
    return f"see what the server's log says, and try the same with: aws s3 ls {asked.place}/"
