"""S3 requests and errors: the operations used, and how servers refuse them.

The codes are those of docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html; other servers use them, too, and
leave some out, so that the HTTP status counts where there is no code.
"""

from __future__ import annotations

import errno
import os
import re
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from plansmith.errors import EnvironmentFault, PlansmithError, RepositoryError, first_line
from plansmith.system.aws.client import credential_errors, cut_errors, no_credentials
from plansmith.system.urls import connection_reason

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
_BODILESS = "HeadObject"

DAMAGED = {
    "BadDigest",
    "InvalidDigest",
    "XAmzContentChecksumMismatch",
    "XAmzContentSHA256Mismatch",
    "IncompleteBody",
}
"""The content is not what its checksum says."""

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
    "head_bucket": "s3:ListBucket",
    "list_objects_v2": "s3:ListBucket",
    "list_multipart_uploads": "s3:ListBucketMultipartUploads",
}
_OF_BUCKET = {"s3:ListBucket", "s3:ListBucketMultipartUploads"}
_NAMED_ACTION = re.compile(r"to perform: ([a-z0-9-]+:\w+)")
_NAMED_REGION = re.compile(r"expecting '([a-z0-9-]+)'")


@dataclass(frozen=True)
class S3Call:
    """An S3 request: a botocore client method, and the full key if it concerns an object.

    `typed` and `reached` are those of the Place, for what a person is told to type; `encrypts`: an object was to be
    encrypted.
    """

    place: str
    typed: str
    reached: str
    bucket: str
    server: str
    region: str
    operation: str
    key: str | None
    encrypts: bool = False

    @property
    def host(self) -> str:
        """The server's host, without any other part of its URL."""
        parts = urlsplit(self.server)
        return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)

    @property
    def endpoint(self) -> str:
        """The server's URL, without credentials or query."""
        return f"{urlsplit(self.server).scheme}://{self.host}"

    @property
    def subject(self) -> str:
        """The subject of the request, for display."""
        name = "".join(word.capitalize() for word in self.operation.split("_"))
        return f"{name} of {self.place if self.key is None else f's3://{self.bucket}/{self.key}'}"


@dataclass(frozen=True)
class Refusal:
    """An error response: header names in lower case; `code` is the HTTP status if the server gave none."""

    code: str
    message: str
    headers: dict[str, str]
    region: str


def refusal_in(error: Exception) -> Refusal | None:
    """Extract the error response from a botocore error, if it has one."""
    response = getattr(error, "response", None)
    if not response:
        return None
    fields = response.get("Error", {})
    meta = response.get("ResponseMetadata", {})
    headers: dict[str, str] = meta.get("HTTPHeaders", {})
    status: int = meta.get("HTTPStatusCode", 0)
    return Refusal(
        code=_code(str(fields.get("Code", "")), status, getattr(error, "operation_name", "")),
        message=next(iter(str(fields.get("Message", "")).splitlines()), ""),
        headers=headers,
        region=headers.get("x-amz-bucket-region") or fields.get("Region", ""),
    )


def _code(code: str, status: int, operation: str) -> str:
    if status == 501:
        return NOT_OFFERED
    if code and not code.isdecimal():
        return _SAME.get(code, code)
    # Only the answer to HEAD has no body to say why something is not there; web pages leave it out always.
    return str(status) if status == 404 and operation != _BODILESS else _BY_STATUS.get(status, str(status))


def fault_of_refusal(refusal: Refusal, call: S3Call) -> PlansmithError:
    """Convert an error response to plansmith's own error."""
    code = refusal.code
    if code == DENIED:
        return _denied(refusal, call)
    if code in _REGION:
        return _other_region(refusal, call)
    if code in _CLOCK:
        return _wrong_clock(refusal, call)
    return _passing_refusal(code, call) or _refusal_of_place(refusal, call)


def no_s3(call: S3Call, code: str = "") -> EnvironmentFault:
    """Return the error for a server that is not S3, or an S3 connection cut before the reason for a refusal arrived."""
    return EnvironmentFault(
        f"what answers at {call.host} is no S3 server" + (f" (HTTP {code})" if code else ""),
        remedy="name the address of its S3 interface with --endpoint-url, and not that of its web pages",
        transient=bool(code),
    )


def _passing_refusal(code: str, call: S3Call) -> PlansmithError | None:
    """A refusal that may not recur with other credentials or at another time."""
    if code in _CREDENTIALS:
        return EnvironmentFault(
            f"{call.place}: {call.host} does not accept these AWS credentials ({code})",
            remedy="see which ones are used: aws configure list; log in again, or name others with --profile",
        )
    if code in _BUSY:
        return EnvironmentFault(
            f"{call.host} went on to answer {code} to {call.subject}",
            remedy="run the same command again later: it goes on where it was",
            transient=True,
        )
    if code in DAMAGED:
        return RepositoryError(
            f"{call.subject} arrived otherwise than it was sent ({code})",
            remedy="run the same command again; if it stays so, something between here and there changes the bytes",
            transient=True,
        )
    return None


def _refusal_of_place(refusal: Refusal, call: S3Call) -> PlansmithError:
    code = refusal.code
    if code == "NoSuchBucket":
        endpoint = "" if "amazonaws" in call.host else f" --endpoint-url {call.endpoint}"
        return RepositoryError(
            f"there is no bucket {call.bucket!r} at {call.host}",
            remedy=f"name another, or make it: aws s3 mb s3://{call.bucket}{endpoint}",
        )
    if code == ABSENT:
        return RepositoryError(
            f"there is no s3://{call.bucket}/{call.key or ''} at {call.host}",
            remedy=f"see what is: plansmith verify --store {call.typed}",
        )
    if code in _FULL:
        return RepositoryError(
            f"{call.host} takes no more: {code}", remedy=f"make room: plansmith prune --store {call.typed}"
        )
    if code == NOT_OFFERED:
        unless = "leave --encryption out, which it may not offer; or " if call.encrypts else ""
        return RepositoryError(
            f"{call.host} does not offer {call.subject} as it was asked for ({code})",
            remedy=f"{unless}see what it can do: plansmith store --probe --store {call.typed}",
        )
    if code.isdecimal():
        return _unexplained(code, call)
    return RepositoryError(
        f"{call.host} refuses {call.subject}: {code}: {refusal.message}",
        remedy=f"see what the server's log says, and try the same with: aws s3 ls {call.place}/{call.reached}",
    )


def _unexplained(code: str, call: S3Call) -> PlansmithError:
    if call.operation != "head_object":
        return no_s3(call, code)
    return EnvironmentFault(
        f"{call.host} refuses {call.subject} without saying why (HTTP {code})",
        remedy="see that the credentials did not expire and the region is right:"
        f" aws s3 ls {call.place}/{call.reached}",
    )


def _denied(refusal: Refusal, call: S3Call) -> PlansmithError:
    named = _NAMED_ACTION.search(refusal.message)
    standard = "s3:" + "".join(word.capitalize() for word in call.operation.split("_"))
    action = named.group(1) if named else _ACTIONS.get(call.operation, standard)
    also = ""
    if call.operation in {"head_object", "get_object"}:
        also = "; without s3:ListBucket S3 answers so, too, where there is nothing"
    return RepositoryError(
        f"{call.place}: these credentials are not allowed {action} ({call.subject})",
        remedy=f"allow {action} on {_resource(action, call)}, or use others: --profile, AWS_PROFILE{also}",
    )


def _resource(action: str, call: S3Call) -> str:
    """The resource for which an action would have to be allowed."""
    if not action.startswith("s3:"):
        return "the key that encrypts this bucket"
    arn = f"arn:aws:s3:::{call.bucket}"
    return arn if action in _OF_BUCKET else f"{arn}{call.place.removeprefix(f's3://{call.bucket}')}/*"


def _other_region(refusal: Refusal, call: S3Call) -> PlansmithError:
    named = _NAMED_REGION.search(refusal.message)
    region = refusal.region or (named.group(1) if named else "")
    lies = f"in {region}" if region else f"elsewhere ({refusal.code})"
    return RepositoryError(
        f"bucket {call.bucket} lies {lies}, not in {call.region}",
        remedy=f"name the region: --region {region or 'REGION'}"
        + ("" if region else f"; aws s3api get-bucket-location --bucket {call.bucket} tells it"),
    )


def _wrong_clock(refusal: Refusal, call: S3Call) -> PlansmithError:
    date = refusal.headers.get("date")
    off = f" by {abs(time.time() - parsedate_to_datetime(date).timestamp()):.0f} s" if date else ""
    return EnvironmentFault(
        f"the clock of this machine differs from that of {call.host}{off}, which refuses its requests",
        remedy="set the clock, such as with: timedatectl set-ntp true",
    )


def fault_from(error: Exception, call: S3Call) -> PlansmithError | None:
    """Convert a botocore error to plansmith's own; None for other exceptions."""
    from botocore import exceptions, parsers

    refusal = refusal_in(error)
    if refusal is not None:
        return fault_of_refusal(refusal, call)
    if isinstance(error, parsers.ResponseParserError):
        return no_s3(call)
    if isinstance(error, (*credential_errors(), exceptions.SSLError, *cut_errors())):
        return _fault_of_environment(error, call)
    if isinstance(error, exceptions.BotoCoreError):
        return RepositoryError(
            f"{call.subject} cannot be asked for: {first_line(error)}",
            remedy=f"see that the place is right: aws s3 ls {call.place}/{call.reached}",
        )
    return None


def is_refused(error: Exception) -> bool:
    """Whether the connection was refused: no server is listening, and nothing was sent."""
    from botocore.exceptions import EndpointConnectionError

    return isinstance(error, EndpointConnectionError) and os.strerror(errno.ECONNREFUSED) in connection_reason(error)


def cut_short(missing_bytes: int) -> Exception:
    """Return one of `cut_errors`, for a response that ends cleanly before it is complete."""
    from botocore import exceptions

    error: Exception = exceptions.IncompleteReadError(actual_bytes=0, expected_bytes=missing_bytes)
    return error


def _fault_of_environment(error: Exception, call: S3Call) -> EnvironmentFault:
    from botocore import exceptions

    if isinstance(error, exceptions.SSLError):
        return EnvironmentFault(
            f"{call.host} is not trusted, or does not speak TLS: {connection_reason(error)}",
            remedy="name the certificates to trust with --ca-bundle, or see that the endpoint is right: http or https",
        )
    if isinstance(error, credential_errors()):
        return no_credentials(error, call.place)
    return EnvironmentFault(
        f"{call.place} cannot be reached at {call.host}: {connection_reason(error)}",
        remedy="see that the server runs and the endpoint is right, then run the same command again: it goes on",
        transient=True,
    )
