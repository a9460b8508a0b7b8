"""Single requests to one prefix of a bucket: keys are relative to it, and what fails is told in our words."""

from __future__ import annotations

import base64
import hashlib
import logging
import time
import weakref
from collections.abc import Iterator
from contextlib import closing
from email.utils import parsedate_to_datetime
from pathlib import Path
from threading import Lock
from typing import Any

from plansmith.errors import RepositoryError
from plansmith.records.destination import Location
from plansmith.system.aws.errors import cut_errors
from plansmith.system.aws.s3.client import ATTEMPTS, connect
from plansmith.system.aws.s3.connection_errors import cut_short, fault_from, is_refused
from plansmith.system.aws.s3.denied_errors import no_s3
from plansmith.system.aws.s3.errors import ABSENT, CONFLICT, NOT_OFFERED, UNMET, S3Call, refusal_in
from plansmith.system.aws.s3.objects import Document, Held

_CHUNK_BYTES = 1 << 18
_PAUSE_SECONDS = 0.2
_AWAY_SECONDS = 60.0
"""For how long a server that has answered before, and refuses connections now, is asked again."""
_AWAY_PAUSE_SECONDS = 0.5

_log = logging.getLogger(__name__)


class ExpectedError(Exception):
    """The server said no in a way that the caller asked to be told of.

    Attributes:
        code: as S3 names it.
        headers: what came with the answer, names in lower case.
    """

    def __init__(self, code: str, headers: dict[str, str]) -> None:
        super().__init__(code)
        self.code = code
        self.headers = headers


class _Away:
    """Whether a server that has answered is away now; said once, whoever of several threads finds out.

    Args:
        place: to name.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._has_answered = False
        self._is_away = False
        self._lock = Lock()

    def begins(self) -> bool:
        """Note that it refuses connections; whether it is worth waiting for, as it has answered before."""
        with self._lock:
            if self._has_answered and not self._is_away:
                self._is_away = True
                _log.warning("the server of %s is away; it is asked again for up to %.0f s", self._place, _AWAY_SECONDS)
            return self._has_answered

    def ended(self) -> None:
        """Note that it answers."""
        with self._lock:
            self._has_answered, self._is_away = True, False


class Bucket:
    """A prefix of a bucket.

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
        self._client: Any = None
        self._lock = Lock()
        self._away = _Away(self.place)
        encryption = {"ServerSideEncryption": place.encryption, "SSEKMSKeyId": place.kms_key}
        self.encryption: dict[str, Any] = {name: value for name, value in encryption.items() if value}

    @property
    def client(self) -> Any:
        """The client of botocore's."""
        with self._lock:
            if self._client is None:
                self._client = connect(self._asked_for, self._relative_to)
                # Its connections end with this bucket, and not when the garbage is collected one day.
                weakref.finalize(self, self._client.close)
            return self._client

    def full(self, key: str) -> str:
        """A key as the bucket has it.

        Raises:
            RepositoryError: it is none.
        """
        if {"", ".", ".."} & set(key.split("/")):
            raise RepositoryError(
                f"{key!r} is no key of {self.place}", remedy="name things without .. and without empty parts"
            )
        return self._start + key

    def short(self, key: str) -> str:
        """A key as it is below the prefix."""
        return key.removeprefix(self._start)

    def call(self, operation: str, key: str | None = None, *, answers: tuple[str, ...] = (), **words: Any) -> Any:
        """Do one request; a server that goes away for a while, such as to start again, is waited for.

        Args:
            operation: a method of botocore's client, such as `put_object`.
            key: of the object; None where it is about the bucket.
            answers: codes of errors that the caller wants to be told of.
            words: what else the method takes.

        Returns:
            What the method returns: a mapping.

        Raises:
            Answered: one of `answers`.
            RepositoryError: the server refuses.
            EnvironmentFault: it is not there, or these credentials are none for it.
        """
        if key is not None:
            words["Key"] = self.full(key)
        ask = getattr(self.client, operation)
        deadline = 0.0
        while True:
            try:
                answer = ask(Bucket=self.name, **words)
            except Exception as error:
                refusal = refusal_in(error)
                if refusal is not None and refusal.code in answers:
                    self._away.ended()
                    raise ExpectedError(refusal.code, refusal.headers) from error
                deadline = deadline or time.monotonic() + _AWAY_SECONDS
                if is_refused(error) and time.monotonic() < deadline and self._away.begins():
                    time.sleep(_AWAY_PAUSE_SECONDS)
                    continue
                fault = fault_from(error, self._asked(operation, key))
                if fault is None:
                    raise
                raise fault from error
            self._away.ended()
            return answer

    def put(self, key: str, content: bytes, **conditions: str) -> str:
        """Write a small object; its tag.

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
        """A small object, whole; None where there is none."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                answer = self.call("get_object", key, answers=(ABSENT,))
            except ExpectedError:
                return None
            try:
                with closing(answer["Body"]) as body:
                    content = body.read()
            except cut_errors() as error:
                self._pause_or_raise(error, key, attempt)
                continue
            if "ETag" not in answer:
                raise no_s3(self._asked("get_object", key))
            self._require_whole(key, content, answer["Metadata"].get("sha256"))
            return Document(content, answer["ETag"])
        raise AssertionError("the last attempt raises")

    def head(self, key: str, **words: str) -> Any:
        """What is known of an object; None where there is none."""
        try:
            return self.call("head_object", key, answers=(ABSENT,), **words)
        except ExpectedError:
            return None

    def find(self, key: str) -> Held | None:
        """An object without its content."""
        head = self.head(key)
        if head is None:
            return None
        return Held(
            key,
            head["ContentLength"],
            head["LastModified"].timestamp(),
            sha256=head["Metadata"].get("sha256", ""),
            tag=head.get("ETag", ""),
        )

    def below(self, prefix: str) -> Iterator[Held]:
        """All objects whose keys begin so, sorted."""
        words: dict[str, Any] = {}
        while True:
            page = self.list_page("list_objects_v2", prefix, **words)
            for found in page.get("Contents", ()):
                changed = found["LastModified"].timestamp()
                yield Held(self.short(found["Key"]), found["Size"], changed, tag=found.get("ETag", ""))
            if not page.get("IsTruncated"):
                return
            words["ContinuationToken"] = page["NextContinuationToken"]

    def list_page(self, operation: str, prefix: str, **words: Any) -> Any:
        """A page of what begins with a prefix; `call` says the rest."""
        return self.call(operation, Prefix=self._start + prefix, **words)

    def stream(self, key: str, first: int, end: int, *, tag: str = "") -> Iterator[bytes]:
        """The bytes of an object from `first` up to `end`, which it has; goes on where the connection was cut.

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
        """The body of an answer that is exactly these bytes of an object."""
        condition = {"IfMatch": tag} if tag else {}
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
        """Seconds since 1970 by the server's clock, to the second, as it tells when it is asked for any key."""
        try:
            headers = self.call("head_object", key, answers=(ABSENT,))["ResponseMetadata"]["HTTPHeaders"]
        except ExpectedError as answered:
            headers = answered.headers
        return parsedate_to_datetime(headers["date"]).timestamp()

    def lost(self, key: str) -> RepositoryError:
        """An object that should be there is not."""
        return RepositoryError(f"{self.place} has no {key}", remedy=f"plansmith verify --store {self.typed}")

    def damaged(self, key: str) -> RepositoryError:
        """An object is not what its digest says."""
        return RepositoryError(
            f"{key} in {self.place} is damaged: its content is not that of its SHA-256",
            remedy=f"see what else is: plansmith verify --store {self.typed}; publish what is lost again",
        )

    def _require_whole(self, key: str, content: bytes, sha256: str | None) -> None:
        if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
            raise self.damaged(key)

    def _pause_or_raise(self, error: Exception, key: str, attempt: int) -> None:
        """Wait before the next attempt to read a body that was cut."""
        if attempt == ATTEMPTS:
            raise fault_from(error, self._asked("get_object", key)) or error
        time.sleep(_PAUSE_SECONDS * attempt)

    def _asked(self, operation: str, key: str | None) -> S3Call:
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
