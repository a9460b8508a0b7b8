"""Deliveries: the result of parsing a registry's request, either events, nothing to do, or rejected as untrusted."""

from __future__ import annotations

import base64
import hmac
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from plansmith.config.service_triggers import Change
from plansmith.records.model import Record
from plansmith.system.digest import digest_of

RegistryKind = Literal["mlflow", "hub", "sagemaker", "s3", "folder", "hook"]

OWN_TAGS = "plansmith."
"""How the names begin that are written back to a registry: what they say of a build starts no other."""

RefusalKind = Literal["signature", "timestamp", "malformed"]
"""Who sent it is not proven; it is too old or of the future; it is proven and says nothing that can be read."""

_LONGEST_NUMBER = 25
_DEEPEST = 32
_LONGEST_NAME = 512
_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_UNIX_SECONDS = re.compile(r"[0-9]{1,12}")


class Event(Record):
    """An event in a registry.

    `registry`: the name of the registry in the service's file. `model`: its name there: of a registered model, a
    repository of the hub, a package group, a folder below a prefix. `version`: what names this content for good: an
    MLflow version, a commit, the ARN of a package, a digest. `change` and `value`: what happened, such as alias
    "champion", tag "compile=requested", branch "refs/heads/main". `source`: the spec's source for exactly this content,
    such as mlflow:models:/ranker/3 or hf:org/model@<commit>; empty where the spec's own stays. `at`: when it happened,
    as a Unix time, where the registry says so; 0 where it does not. `wrong`: why nothing can be built of it, in a few
    words of ours; empty where something can.
    """

    registry: str
    model: str
    version: str
    change: Change
    value: str = ""
    source: str = ""
    at: float = 0
    wrong: str = ""

    @property
    def content_key(self) -> str:
        """A digest of what is to be built, whatever its source: the same for a delivery, its repetition and a poll."""
        return digest_of([self.registry, self.model, self.version, self.source])

    @property
    def is_current(self) -> bool:
        """Whether it describes a current assignment, which the next event of its topic replaces.

        A tag, a version that was made and a package that was approved stay beside those that come after them.
        """
        return self.change in {"alias", "stage", "branch", "ready", "asked"}

    @property
    def is_revocable(self) -> bool:
        """Whether it can be revoked without a replacement, as when an approved package is rejected."""
        return self.change == "approved"

    @property
    def tracking_sources(self) -> frozenset[str]:
        """The spec sources that refer to its subject, independent of the version."""
        kind, _, rest = self.source.partition(":")
        if kind == "mlflow":
            suffix = {"alias": f"@{self.value}", "created": "/latest"}.get(self.change)
            return frozenset({f"mlflow:models:/{self.model}{suffix}"} if suffix else ())
        if self.change == "branch":
            name = self.value.removeprefix("refs/heads/").removeprefix("refs/tags/")
            main = {f"hf:{self.model}"} if self.value == "refs/heads/main" else set()
            return frozenset({f"hf:{self.model}@{name}", *main})
        return frozenset({f"s3:{rest.rpartition('@')[0]}"} if kind == "s3" and self.change == "ready" else ())

    @property
    def topic(self) -> str:
        """Its subject, such as an alias or a branch; only the newest event of a topic counts."""
        return f"{self.change} {self.value}".strip()

    @property
    def label(self) -> str:
        """A short description for display."""
        return f"{self.model}, version {self.version} ({self.topic})"


class Delivery(Record):
    """A verified request with events.

    `id`: the same for a request and all its repetitions, at most 128 of A-Z a-z 0-9 _ - . `events`: at least one.
    `recurs`: the id is of what it tells alone, as the registry sends none: what comes back after something else was
    told is news, and no repetition. `expires`: it is signed with a time, and too old to be taken again a day later.
    """

    id: str
    events: tuple[Event, ...]
    recurs: bool = False
    expires: bool = False


class Ignored(Record):
    """A verified request without events that concern a build; `reason` is a short description."""

    reason: str


class RequestRejected(Exception):
    """A request that is rejected and has no effect.

    Args:
        kind: of what is wrong.
        reason: in a few words that are ours alone: nothing of the request, no secret, so that it may be logged.
    """

    def __init__(self, kind: RefusalKind, reason: str) -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind = kind
        self.reason = reason


def read_object(body: bytes) -> dict[str, Any]:
    """Parse a request body as a JSON object.

    Raises:
        RequestRejected: it is none; or has a key twice, a number that is none or that no double holds, or too many
            levels.
    """
    try:
        document = _DECODER.decode(body.decode())
    except (ValueError, RecursionError):
        raise RequestRejected("malformed", "the body is no JSON") from None
    if not isinstance(document, dict):
        raise RequestRejected("malformed", "the body is no object")
    _check_depth(document)
    return document


def object_of(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the object under a key.

    Raises:
        RequestRejected: there is none.
    """
    value = values.get(key)
    if not isinstance(value, dict):
        raise RequestRejected("malformed", f"{key} is no object")
    return value


def name_of(values: Mapping[str, Any], key: str, *, longest: int = _LONGEST_NAME) -> str:
    """Return the text under a key: a name that is not empty, and safe to show, store and log.

    Raises:
        RequestRejected: it is not there or no text, too long, or has characters that no line shows, such as half a
            pair.
    """
    value = values.get(key)
    if not isinstance(value, str) or not value:
        raise RequestRejected("malformed", f"{key} is no text")
    if not is_showable(value, longest=longest):
        raise RequestRejected("malformed", f"{key} is too long, or has characters that cannot be shown")
    return value


def is_showable(text: str, *, longest: int = _LONGEST_NAME) -> bool:
    """Whether a text is printable on one line as it is."""
    return len(text) <= longest and text.isprintable()


def _read_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise RequestRejected("malformed", "a key stands in an object twice")
    return result


def _read_integer(digits: str) -> int:
    if len(digits) > _LONGEST_NUMBER:
        raise RequestRejected("malformed", "a number is too long")
    return int(digits)


def _read_fraction(digits: str) -> float:
    if not math.isfinite(number := float(digits)):
        raise RequestRejected("malformed", "a number is too large")
    return number


def _refuse_constant(_name: str) -> NoReturn:
    raise RequestRejected("malformed", "a number is none")


def _check_depth(document: dict[str, Any]) -> None:
    level: list[Any] = [document]
    for _ in range(_DEEPEST):
        inner = [part for item in level for part in (item.values() if isinstance(item, dict) else item)]
        level = [part for part in inner if isinstance(part, dict | list)]
        if not level:
            return
    raise RequestRejected("malformed", "it has too many levels")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_read_pairs,
    parse_int=_read_integer,
    parse_float=_read_fraction,
    parse_constant=_refuse_constant,
)


@dataclass(frozen=True)
class SignedHeaders:
    """The names of the headers with a delivery's ID, its timestamp (Unix time) and its signature, in lower case."""

    delivery: str
    timestamp: str
    signature: str


def signature_of(secret: str, delivery: str, timestamp: str, body: bytes) -> str:
    """Return the value of the signature header."""
    signed = f"{delivery}.{timestamp}.".encode(errors="backslashreplace") + body
    return f"v1,{base64.b64encode(hmac.digest(secret.encode(), signed, 'sha256')).decode()}"


def is_any(text: str, secrets: Sequence[str]) -> bool:
    """Whether a text equals one of some secrets; compared in constant time."""
    content = text.encode(errors="backslashreplace")
    return any([hmac.compare_digest(content, secret.encode()) for secret in secrets])  # noqa: C419 - all, whichever it is


def proven_id(
    names: SignedHeaders,
    headers: Mapping[str, str],
    body: bytes,
    *,
    secrets: Sequence[str],
    window_seconds: float,
    now: float,
) -> str:
    """Return the ID of a delivery after verifying its signature and timestamp.

    Args:
        names: of the headers.
        headers: with names in lower case.
        body: its bytes as they came.
        secrets: any of them may have signed; an empty one never did.
        window_seconds: how far the time may be from ours, either way.
        now: our Unix time.

    Raises:
        RequestRejected: one of them is not right.
    """
    delivery, timestamp = headers.get(names.delivery, ""), headers.get(names.timestamp, "")
    text = headers.get(names.signature, "")
    if not text:
        raise RequestRejected("signature", "there is none")
    if not is_any(text, [signature_of(secret, delivery, timestamp, body) for secret in secrets if secret]):
        raise RequestRejected("signature", "it is of no secret that is known here")
    if not _UNIX_SECONDS.fullmatch(timestamp):
        raise RequestRejected("timestamp", "it is no Unix time")
    if (seconds := now - int(timestamp)) > window_seconds:
        raise RequestRejected(
            "timestamp", f"it is from {seconds:.0f} s ago, and window_seconds is {window_seconds:.0f}"
        )
    if -seconds > window_seconds:
        raise RequestRejected("timestamp", f"it is {-seconds:.0f} s ahead, and window_seconds is {window_seconds:.0f}")
    if not _ID.fullmatch(delivery):
        raise RequestRejected("malformed", "the delivery's id is none")
    return delivery
