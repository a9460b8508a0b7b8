"""What is asked of an S3 server, and how it says no.

The codes are those of docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html; other servers use them, too, and
leave some out, so that the HTTP status counts where there is no code.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

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


@dataclass(frozen=True)
class S3Call:
    """What was asked of a server: a method of botocore's client, and the key in full where it is about an object.

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
        """The server, without anything that an address may hold besides."""
        parts = urlsplit(self.server)
        return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)

    @property
    def endpoint(self) -> str:
        """The server's address, likewise."""
        return f"{urlsplit(self.server).scheme}://{self.host}"

    @property
    def what(self) -> str:
        """What it was about, as a person may read it."""
        name = "".join(word.capitalize() for word in self.operation.split("_"))
        return f"{name} of {self.place if self.key is None else f's3://{self.bucket}/{self.key}'}"


@dataclass(frozen=True)
class Refusal:
    """How a server said no; names of headers are in lower case, and `code` is a number where it gave none."""

    code: str
    message: str
    headers: dict[str, str]
    region: str


def refusal_in(error: Exception) -> Refusal | None:
    """What a server said, where an error of botocore's holds that."""
    response = getattr(error, "response", None)
    if not response:
        return None
    told = response.get("Error", {})
    meta = response.get("ResponseMetadata", {})
    headers: dict[str, str] = meta.get("HTTPHeaders", {})
    status: int = meta.get("HTTPStatusCode", 0)
    return Refusal(
        code=_code(str(told.get("Code", "")), status, getattr(error, "operation_name", "")),
        message=next(iter(str(told.get("Message", "")).splitlines()), ""),
        headers=headers,
        region=headers.get("x-amz-bucket-region") or told.get("Region", ""),
    )


def _code(code: str, status: int, operation: str) -> str:
    if status == 501:
        return NOT_OFFERED
    if code and not code.isdecimal():
        return _SAME.get(code, code)
    # Only the answer to HEAD has no body to say why something is not there; web pages leave it out always.
    return str(status) if status == 404 and operation != _BODILESS else _BY_STATUS.get(status, str(status))
