"""What is sent over a connection, right or hostile, as bytes."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from plansmith.triggers.registries import mlflow, webhook

from .recorded import Sent, signed

HOOK, MLFLOW, HUB = "/hooks/ci", "/hooks/ours", "/hooks/hub"
SECRETS = {HOOK: "kept-by-ci", MLFLOW: "kept-by-mlflow", HUB: "kept-by-the-hub"}
BODY_BYTES = 65_536
NONE = 0
"""In place of a status: the connection ends without an answer."""


@dataclass(frozen=True)
class Hostile:
    """What is sent over a connection of its own.

    Args:
        pieces: one after the other.
        may: the answers that it may get.
        pause_seconds: between pieces.
        endless: the last piece is sent again and again.
        ending: what comes then: the answers are waited for, or the client goes away, the hard way or the soft.
    """

    pieces: tuple[bytes, ...]
    may: frozenset[int]
    pause_seconds: float = 0
    endless: bool = False
    ending: str = "waits"


def signed_request(delivery: str, *, secret: str = SECRETS[HOOK], seconds: int = 0, value: Any = None) -> Sent:
    """A right request of the hook, of so many seconds from now."""
    timestamp = str(int(time.time()) + seconds)
    body = {"model": "ranker", "version": delivery} if value is None else value
    return signed(webhook.HEADERS, body, secret=secret, delivery=delivery, timestamp=timestamp)


def alias_set(delivery: str, *, secret: str = SECRETS[MLFLOW], seconds: int = 0) -> Sent:
    """What MLflow sends when a version becomes the champion."""
    data = {"name": "ranker", "alias": "champion", "version": "3"}
    value = {"entity": "model_version_alias", "action": "created", "data": data}
    timestamp = str(int(time.time()) + seconds)
    return signed(mlflow.HEADERS, value, secret=secret, delivery=delivery, timestamp=timestamp)


def written(
    path: str, headers: Iterable[tuple[str, str]], body: bytes, *, method: str = "POST", length: str | None = None
) -> bytes:
    """A request as it goes over the wire; `length`: what it says of its body, where that is not so."""
    fields = [("Host", "receiver"), ("Connection", "close"), *headers]
    if length != "":
        fields.append(("Content-Length", str(len(body)) if length is None else length))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields), "", ""]
    return "\r\n".join(lines).encode("utf-8", "surrogateescape") + body


def right(sent: Sent, path: str) -> bytes:
    """A request as whoever signed it sends it."""
    return written(path, sent.headers.items(), sent.body)


def chunked(path: str, sent: Sent, chunks: bytes, *more: tuple[str, str]) -> bytes:
    """A request whose body comes in chunks."""
    return written(path, [*sent.headers.items(), ("Transfer-Encoding", "chunked"), *more], chunks, length="")
