"""Signatures over a delivery's id, its time and its raw body, as MLflow makes them and our own hook takes them.

A signature is "v1," and the base64 of HMAC-SHA256 over "<id>.<timestamp>." and the body's bytes. An id that held a dot
could be cut elsewhere without the signature noticing; so it holds none.
"""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plansmith.triggers.registries.delivery import RequestRejected

_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_UNIX_SECONDS = re.compile(r"[0-9]{1,12}")


@dataclass(frozen=True)
class SignedHeaders:
    """The headers that hold a delivery's id, the Unix time of its sending and its signature, in lower case."""

    delivery: str
    timestamp: str
    signature: str


def signature_of(secret: str, delivery: str, timestamp: str, body: bytes) -> str:
    """The value of the signature's header."""
    signed = f"{delivery}.{timestamp}.".encode(errors="backslashreplace") + body
    return f"v1,{base64.b64encode(hmac.digest(secret.encode(), signed, 'sha256')).decode()}"


def is_any(given: str, wanted: Sequence[str]) -> bool:
    """Whether a text is one of some secret ones, in a time that tells neither which nor how much of it is right."""
    found = given.encode(errors="backslashreplace")
    return any([hmac.compare_digest(found, one.encode()) for one in wanted])  # noqa: C419 - all, whichever it is


def proven_id(
    names: SignedHeaders,
    headers: Mapping[str, str],
    body: bytes,
    *,
    secrets: Sequence[str],
    window_seconds: float,
    now: float,
) -> str:
    """The id of a delivery whose signature and time are right.

    Args:
        names: of the headers.
        headers: with names in lower case.
        body: its bytes as they came.
        secrets: any of them may have signed; an empty one never did.
        window_seconds: how far the time may be from ours, either way.
        now: our Unix time.

    Raises:
        Refused: one of them is not right.
    """
    delivery, timestamp = headers.get(names.delivery, ""), headers.get(names.timestamp, "")
    given = headers.get(names.signature, "")
    if not given:
        raise RequestRejected("signature", "there is none")
    if not is_any(given, [signature_of(secret, delivery, timestamp, body) for secret in secrets if secret]):
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
