"""S3 bucket client: single requests below one prefix, with relative keys and readable errors."""

from __future__ import annotations

import base64
import hashlib
import logging
import time
import weakref
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from plansmith.errors import EnvironmentFault, RepositoryError, UsageError
from plansmith.records.destination import Location
from plansmith.system.aws.client import (
    configured_region,
    create_client,
    credential_errors,
    cut_errors,
    no_credentials,
    not_installed,
)
from plansmith.system.aws.s3_errors import (
    ABSENT,
    CONFLICT,
    NOT_OFFERED,
    UNMET,
    S3Call,
    cut_short,
    fault_from,
    is_refused,
    no_s3,
    refusal_in,
)

ATTEMPTS = 5
"""How often a request is sent before it counts as failed, the first time included."""

_ANY_REGION = "us-east-1"
"""Without a configured region: S3 answers which one a bucket lies in, and other stores take any."""

_READ_SECONDS = 60
_CONNECTIONS = 16
_AWS = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")
_CHUNK_BYTES = 1 << 18
_PAUSE_SECONDS = 0.2
_AWAY_SECONDS = 60.0
"""For how long a server that has answered before, and refuses connections now, is asked again."""

_AWAY_PAUSE_SECONDS = 0.5
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ObjectMetadata:
    """Object metadata: size in bytes, and last change by the store's clock, in seconds since 1970.

    `sha256`: what the store keeps beside it as the digest of its content, where `find` is told of one; or empty.
    `tag`: S3's ETag, which is another one for every content; empty for a file of a folder.
    """

    key: str
    bytes: int
    changed: float
    sha256: str = ""
    tag: str = ""


@dataclass(frozen=True)
class Document:
    """A small object's content, with the tag (ETag) for compare and swap."""

    content: bytes
    tag: str


MOST_DOCUMENT_BYTES = 64 << 20
"""Of an object that is read into memory: the list of a release of 100,000 files has 20 MB."""


def require_small(size: int, key: str, place: str) -> None:
    """Require that an object is small enough to be read into memory.

    Raises:
        RepositoryError: it is not.
    """
    if size > MOST_DOCUMENT_BYTES:
        raise RepositoryError(
            f"{key} in {place} has more than the {MOST_DOCUMENT_BYTES >> 20} MiB of any such document",
            remedy="do not use this store if others write to it; else restore the object",
        )


def connect(place: Location, relative_to: Path, *, signs_bodies: bool = True) -> Any:
    """Create an S3 client; makes no request yet.

    Args:
        place: an S3 prefix. What it leaves open is found as every AWS tool does.
        relative_to: the folder that a relative path of certificates starts from.
        signs_bodies: whether it signs what it sends where TLS does not protect that.

    Raises:
        EnvironmentFault: boto3 is not installed, or the profile or the certificates are not there.
        UsageError: the region or the addresses are none.
    """
    try:
        from botocore import exceptions
        from botocore.session import Session
    except ImportError as error:
        raise not_installed() from error
    session = Session(profile=place.profile or None)
    try:
        client = _create(session, place, relative_to, path_style=place.path_style, is_secure=True)
        url = client.meta.endpoint_url
        if not (is_aws(url) and url.startswith("https:")):
            # Few servers but AWS's have a name in the DNS for each of their buckets.
            path_style = place.path_style if place.path_style is not None else not is_aws(url)
            is_secure = url.startswith("https:") or not signs_bodies
            client = _create(session, place, relative_to, path_style=path_style, is_secure=is_secure)
    except exceptions.ProfileNotFound as error:
        raise EnvironmentFault(
            f"there is no profile {error.kwargs['profile']!r} in the AWS configuration",
            remedy=f"name one of these: {', '.join(session.available_profiles) or 'none is there yet: aws configure'}",
        ) from error
    except credential_errors() as error:
        raise no_credentials(error, place.to) from error
    except (exceptions.BotoCoreError, ValueError) as error:
        raise UsageError(
            f"{place.to} cannot be reached like that: {error}",
            remedy="see AWS_REGION, AWS_ENDPOINT_URL and the profile, or name --region and --endpoint-url",
        ) from error
    return client


def is_aws(url: str) -> bool:
    """Whether a URL is one of AWS's own."""
    return (urlsplit(url).hostname or "").endswith(_AWS)


def _create(session: Any, place: Location, relative_to: Path, *, path_style: bool | None, is_secure: bool) -> Any:
    # Checksums are ours: SHA-256, computed once and signed as a header. To sign the body besides hashes it once more,
    # which botocore leaves out over TLS only for checksums of its own.
    s3: dict[str, Any] = {"payload_signing_enabled": not is_secure}
    if path_style is not None:
        s3["addressing_style"] = "path" if path_style else "virtual"
    return create_client(
        session,
        "s3",
        place.region or configured_region(session) or _ANY_REGION,
        endpoint_url=place.endpoint_url,
        attempts=ATTEMPTS,
        read_seconds=_READ_SECONDS,
        connections=_CONNECTIONS,
        verify=_certificates(place, relative_to),
        s3=s3,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )


def _certificates(place: Location, relative_to: Path) -> str | None:
    if not place.ca_bundle:
        return None
    path = relative_to / place.ca_bundle
    if not path.is_file():
        raise EnvironmentFault(f"there is no file {path}, named as ca_bundle", remedy="name the PEM file to trust")
    return str(path)


class ExpectedError(Exception):
    """An error response that the caller handles itself.

    Attributes:
        code: as S3 names it.
        headers: what came with the answer, names in lower case.
    """

    def __init__(self, code: str, headers: dict[str, str]) -> None:
        super().__init__(code)
        self.code = code
        self.headers = headers


class _Away:
    """Server outage state: whether a server that has responded before is unavailable; logged once across all threads.

    Args:
        place: to name.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._has_answered = False
        self._is_away = False
        self._lock = Lock()

    def begins(self) -> bool:
        """Record that the server refuses connections.

        Return whether to retry, which is so if it has responded before.
        """
        with self._lock:
            if self._has_answered and not self._is_away:
                self._is_away = True
                _log.warning("the server of %s is away; it is asked again for up to %.0f s", self._place, _AWAY_SECONDS)
            return self._has_answered

    def ended(self) -> None:
        """Record that the server responds."""
        with self._lock:
            self._has_answered, self._is_away = True, False


class Bucket:
    """Bucket prefix: the S3 requests for the objects below it.

    Args:
        place: where, and how it is reached; asked for the first time when something is needed.
        relative_to: the folder that relative paths start from.
    """

    def __init__(self, place: Location, relative_to: Path) -> None:
        self.place = place.to.rstrip("/")
        self.typed = place.typed
        self.name, prefix = place.bucket_and_prefix
        self._start = f"{prefix}/" if prefix else ""
        self._asked_for = place
        self._relative_to = relative_to
        self._clients: dict[bool, Any] = {}
        self._lock = Lock()
        self._away = _Away(self.place)
        encryption = {"ServerSideEncryption": place.encryption, "SSEKMSKeyId": place.kms_key}
        self.encryption: dict[str, Any] = {name: value for name, value in encryption.items() if value}

    @property
    def client(self) -> Any:
        """The botocore client."""
        return self._connected(signs_bodies=True)

    def _connected(self, *, signs_bodies: bool) -> Any:
        with self._lock:
            if signs_bodies not in self._clients:
                client = self._clients[signs_bodies] = connect(
                    self._asked_for, self._relative_to, signs_bodies=signs_bodies
                )
                # Its connections end with this bucket, and not when the garbage is collected one day.
                weakref.finalize(self, client.close)
            return self._clients[signs_bodies]

    def full(self, key: str) -> str:
        """Return the full key in the bucket.

        Raises:
            RepositoryError: it is none.
        """
        if {"", ".", ".."} & set(key.split("/")):
            raise RepositoryError(
                f"{key!r} is no key of {self.place}", remedy="name things without .. and without empty parts"
            )
        return self._start + key

    def short(self, key: str) -> str:
        """Return the key relative to the prefix."""
        return key.removeprefix(self._start)

    def call(
        self,
        operation: str,
        key: str | None = None,
        *,
        answers: tuple[str, ...] = (),
        signs_body: bool = True,
        **parameters: Any,
    ) -> Any:
        """Make one request, with retries while the server is unavailable, such as during a restart.

        Args:
            operation: a method of botocore's client, such as `put_object`.
            key: of the object; None where it is about the bucket.
            answers: codes of errors that the caller wants to be told of.
            signs_body: False where a SHA-256 checksum is among the parameters, which is signed as every header is, and
                the server is known to refuse a body that has another: it is hashed once less.
            parameters: what else the method takes.

        Returns:
            What the method returns: a mapping.

        Raises:
            Answered: one of `answers`.
            RepositoryError: the server refuses.
            EnvironmentFault: it is not there, or these credentials are none for it.
        """
        if key is not None:
            parameters["Key"] = self.full(key)
        is_signed = signs_body or not self.client.meta.config.s3["payload_signing_enabled"]
        ask = getattr(self._connected(signs_bodies=is_signed), operation)
        deadline = 0.0
        while True:
            try:
                answer = ask(Bucket=self.name, **parameters)
            except Exception as error:
                refusal = refusal_in(error)
                if refusal is not None and refusal.code in answers:
                    self._away.ended()
                    raise ExpectedError(refusal.code, refusal.headers) from error
                deadline = deadline or time.monotonic() + _AWAY_SECONDS
                if is_refused(error) and time.monotonic() < deadline and self._away.begins():
                    time.sleep(_AWAY_PAUSE_SECONDS)
                    continue
                fault = fault_from(error, self._call(operation, key))
                if fault is None:
                    raise
                raise fault from error
            self._away.ended()
            return answer

    def put(self, key: str, content: bytes, **conditions: Any) -> str:
        """Write a small object and return its tag.

        Raises:
            Answered: a condition is not met (UNMET, ABSENT, CONFLICT), or the server has none (NOT_OFFERED).
        """
        digest = hashlib.sha256(content)
        answer = self.call(
            "put_object",
            key,
            answers=(UNMET, CONFLICT, NOT_OFFERED, ABSENT) if conditions else (),
            Body=content,
            ChecksumAlgorithm="SHA256",
            ChecksumSHA256=base64.b64encode(digest.digest()).decode(),
            Metadata={"sha256": digest.hexdigest()},
            **self.encryption,
            **conditions,
        )
        return str(answer["ETag"])

    def read(self, key: str) -> Document | None:
        """Read a small object; None if there is none."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                answer = self.call("get_object", key, answers=(ABSENT,))
            except ExpectedError:
                return None
            try:
                with closing(answer["Body"]) as body:
                    require_small(answer.get("ContentLength", 0), key, self.place)
                    content = body.read()
            except cut_errors() as error:
                self._pause_or_raise(error, key, attempt)
                continue
            if "ETag" not in answer:
                raise no_s3(self._call("get_object", key))
            self._require_whole(key, content, answer["Metadata"].get("sha256"))
            return Document(content, answer["ETag"])
        raise AssertionError("the last attempt raises")

    def head(self, key: str, **parameters: Any) -> Any:
        """Return the HEAD response of an object; None if there is none."""
        try:
            return self.call("head_object", key, answers=(ABSENT,), **parameters)
        except ExpectedError:
            return None

    def find(self, key: str) -> ObjectMetadata | None:
        """Return the metadata of an object."""
        head = self.head(key)
        if head is None:
            return None
        return ObjectMetadata(
            key,
            head["ContentLength"],
            head["LastModified"].timestamp(),
            sha256=head["Metadata"].get("sha256", ""),
            tag=head.get("ETag", ""),
        )

    def below(self, prefix: str) -> Iterator[ObjectMetadata]:
        """Yield all objects whose keys have a prefix, sorted."""
        parameters: dict[str, Any] = {}
        while True:
            page = self.list_page("list_objects_v2", prefix, **parameters)
            for entry in page.get("Contents", ()):
                changed = entry["LastModified"].timestamp()
                yield ObjectMetadata(self.short(entry["Key"]), entry["Size"], changed, tag=entry.get("ETag", ""))
            if not page.get("IsTruncated"):
                return
            parameters["ContinuationToken"] = page["NextContinuationToken"]

    def list_page(self, operation: str, prefix: str, **parameters: Any) -> Any:
        """Return one page of a listing by prefix; further arguments as for `call`."""
        return self.call(operation, Prefix=self._start + prefix, **parameters)

    def stream(self, key: str, first: int, end: int, *, tag: str = "") -> Iterator[bytes]:
        """Yield the bytes of an object from `first` up to `end`, which it has; resumes after a lost connection.

        Args:
            key: of the object.
            first: the first byte.
            end: the byte behind the last one.
            tag: the object's; whichever it has when empty.

        Raises:
            Answered: it has another tag by now (UNMET), or with a tag: it is gone (ABSENT).
            RepositoryError: it is gone, or the server does not give parts of objects.
            EnvironmentFault: the connection is cut again and again.
        """
        attempt = 1
        while first < end:
            try:
                with closing(self._part(key, first, end, tag)) as body:
                    while piece := body.read(_CHUNK_BYTES):
                        first += len(piece)
                        yield piece
                if first < end:
                    raise cut_short(end - first)
            except cut_errors() as error:
                self._pause_or_raise(error, key, attempt)
                attempt += 1

    def _part(self, key: str, first: int, end: int, tag: str) -> Any:
        """Return the response body that is exactly this byte range of an object."""
        condition: dict[str, Any] = {"IfMatch": tag} if tag else {}
        answers = (ABSENT, UNMET) if tag else (ABSENT,)
        try:
            answer = self.call("get_object", key, answers=answers, Range=f"bytes={first}-{end - 1}", **condition)
        except ExpectedError as error:
            if tag:
                raise
            raise self.lost(key) from error
        if tag and answer.get("ETag") != tag:  # of a server that knows no conditions
            answer["Body"].close()
            raise ExpectedError(UNMET, {})
        if not answer.get("ContentRange", "").startswith(f"bytes {first}-{end - 1}/"):
            answer["Body"].close()
            raise self.damaged(key)
        return answer["Body"]

    def now(self, key: str) -> float:
        """Return the server's time in seconds since 1970, to the second, from its response for any key."""
        try:
            headers = self.call("head_object", key, answers=(ABSENT,))["ResponseMetadata"]["HTTPHeaders"]
        except ExpectedError as answered:
            headers = answered.headers
        return parsedate_to_datetime(headers["date"]).timestamp()

    def lost(self, key: str) -> RepositoryError:
        """Return the error for a missing object."""
        return RepositoryError(f"{self.place} has no {key}", remedy=f"plansmith verify --store {self.typed}")

    def damaged(self, key: str) -> RepositoryError:
        """Return the error for an object that does not match its digest."""
        return RepositoryError(
            f"{key} in {self.place} is damaged: its content is not that of its SHA-256",
            remedy=f"see what else is: plansmith verify --store {self.typed}; publish what is lost again",
        )

    def _require_whole(self, key: str, content: bytes, sha256: str | None) -> None:
        if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
            raise self.damaged(key)

    def _pause_or_raise(self, error: Exception, key: str, attempt: int) -> None:
        """Wait before the next attempt to read a truncated body; raise after the last attempt."""
        if attempt == ATTEMPTS:
            raise fault_from(error, self._call("get_object", key)) or error
        time.sleep(_PAUSE_SECONDS * attempt)

    def _call(self, operation: str, key: str | None) -> S3Call:
        return S3Call(
            place=self.place,
            typed=self.typed,
            reached=self._asked_for.reached,
            bucket=self.name,
            server=self.client.meta.endpoint_url,
            region=self.client.meta.region_name,
            operation=operation,
            key=None if key is None else self.full(key),
            encrypts=bool(self.encryption),
        )
