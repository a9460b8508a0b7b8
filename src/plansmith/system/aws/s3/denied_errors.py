"""What a server refuses, in our words: which permission, which bucket, which region, and what to type next."""

from __future__ import annotations

import re
import time
from email.utils import parsedate_to_datetime

from plansmith.errors import EnvironmentFault, PlansmithError, RepositoryError
from plansmith.system.aws.s3.errors import ABSENT, CONFLICT, DAMAGED, DENIED, NOT_OFFERED, Refusal, S3Call

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


def fault_of_refusal(refusal: Refusal, asked: S3Call) -> PlansmithError:
    """The error of ours for what a server said."""
    code = refusal.code
    if code == DENIED:
        return _denied(refusal, asked)
    if code in _REGION:
        return _other_region(refusal, asked)
    if code in _CLOCK:
        return _wrong_clock(refusal, asked)
    return _passing_refusal(code, asked) or _refusal_of_place(refusal, asked)


def no_s3(asked: S3Call, code: str = "") -> EnvironmentFault:
    """Something else than S3 answers; or S3 does, and the connection was cut before it had said why it refuses."""
    return EnvironmentFault(
        f"what answers at {asked.host} is no S3 server" + (f" (HTTP {code})" if code else ""),
        remedy="name the address of its S3 interface with --endpoint-url, and not that of its web pages",
        transient=bool(code),
    )


def _passing_refusal(code: str, asked: S3Call) -> PlansmithError | None:
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


def _refusal_of_place(refusal: Refusal, asked: S3Call) -> PlansmithError:
    code = refusal.code
    if code == "NoSuchBucket":
        endpoint = "" if "amazonaws" in asked.host else f" --endpoint-url {asked.endpoint}"
        return RepositoryError(
            f"there is no bucket {asked.bucket!r} at {asked.host}",
            remedy=f"name another, or make it: aws s3 mb s3://{asked.bucket}{endpoint}",
        )
    if code == ABSENT:
        return RepositoryError(
            f"there is no s3://{asked.bucket}/{asked.key or ''} at {asked.host}",
            remedy=f"see what is: plansmith verify --store {asked.typed}",
        )
    if code in _FULL:
        return RepositoryError(
            f"{asked.host} takes no more: {code}", remedy=f"make room: plansmith prune --store {asked.typed}"
        )
    if code == NOT_OFFERED:
        unless = "leave --encryption out, which it may not offer; or " if asked.encrypts else ""
        return RepositoryError(
            f"{asked.host} does not offer {asked.what} as it was asked for ({code})",
            remedy=f"{unless}see what it can do: plansmith store --probe --store {asked.typed}",
        )
    if code.isdecimal():
        return _unexplained(code, asked)
    return RepositoryError(
        f"{asked.host} refuses {asked.what}: {code}: {refusal.message}",
        remedy=f"see what the server's log says, and try the same with: aws s3 ls {asked.place}/{asked.reached}",
    )


def _unexplained(code: str, asked: S3Call) -> PlansmithError:
    if asked.operation != "head_object":
        return no_s3(asked, code)
    return EnvironmentFault(
        f"{asked.host} refuses {asked.what} without saying why (HTTP {code})",
        remedy="see that the credentials did not expire and the region is right:"
        f" aws s3 ls {asked.place}/{asked.reached}",
    )


def _denied(refusal: Refusal, asked: S3Call) -> PlansmithError:
    named = _NAMED_ACTION.search(refusal.message)
    standard = "s3:" + "".join(word.capitalize() for word in asked.operation.split("_"))
    action = named.group(1) if named else _ACTIONS.get(asked.operation, standard)
    also = ""
    if asked.operation in {"head_object", "get_object"}:
        also = "; without s3:ListBucket S3 answers so, too, where there is nothing"
    return RepositoryError(
        f"{asked.place}: these credentials are not allowed {action} ({asked.what})",
        remedy=f"allow {action} on {_resource(action, asked)}, or use others: --profile, AWS_PROFILE{also}",
    )


def _resource(action: str, asked: S3Call) -> str:
    """What an action would have to be allowed on."""
    if not action.startswith("s3:"):
        return "the key that encrypts this bucket"
    arn = f"arn:aws:s3:::{asked.bucket}"
    return arn if action in _OF_BUCKET else f"{arn}{asked.place.removeprefix(f's3://{asked.bucket}')}/*"


def _other_region(refusal: Refusal, asked: S3Call) -> PlansmithError:
    named = _NAMED_REGION.search(refusal.message)
    region = refusal.region or (named.group(1) if named else "")
    lies = f"in {region}" if region else f"elsewhere ({refusal.code})"
    return RepositoryError(
        f"bucket {asked.bucket} lies {lies}, not in {asked.region}",
        remedy=f"name the region: --region {region or 'REGION'}"
        + ("" if region else f"; aws s3api get-bucket-location --bucket {asked.bucket} tells it"),
    )


def _wrong_clock(refusal: Refusal, asked: S3Call) -> PlansmithError:
    date = refusal.headers.get("date")
    off = f" by {abs(time.time() - parsedate_to_datetime(date).timestamp()):.0f} s" if date else ""
    return EnvironmentFault(
        f"the clock of this machine differs from that of {asked.host}{off}, which refuses its requests",
        remedy="set the clock, such as with: timedatectl set-ntp true",
    )
