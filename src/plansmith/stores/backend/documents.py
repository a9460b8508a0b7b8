"""Small JSON objects of a store: read, and changed by compare-and-set."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from plansmith.errors import RepositoryError, first_line
from plansmith.records.model import Record
from plansmith.stores.backend.object_store import Changed, KeyTaken, Objects
from plansmith.stores.backend.turns import Lapsed, alone

R = TypeVar("R", bound=Record)

_MOST_SECONDS = 120.0
_LONGEST_PAUSE_SECONDS = 1.0


def new_token() -> str:
    """What no other writer writes."""
    return uuid.uuid4().hex


def utc_now() -> str:
    """This moment, ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def content_of(document: Record) -> bytes:
    """A document as it is stored."""
    return document.model_dump_json(indent=1).encode()


def read_document(objects: Objects, key: str, kind: type[R]) -> R | None:
    """A document; None where there is none.

    Raises:
        RepositoryError: it is damaged.
    """
    found = objects.read(key)
    return None if found is None else _parsed(kind, found.content, key, objects)


def change(objects: Objects, key: str, kind: type[R], changed: Callable[[R | None], R]) -> R:
    """Read a document, and write what becomes of it unless it changed meanwhile; then the same again.

    Args:
        objects: the store's.
        key: of the document.
        kind: its record.
        changed: gives the new document, with a token of its own, from the old one, which may not be there; or the old
            one, which is left as it is. What it raises ends the attempt.

    Raises:
        RepositoryError: it is damaged, or others change it all the time.
    """
    begun = time.monotonic()
    pause = 0.02
    while time.monotonic() - begun < _MOST_SECONDS:
        try:
            return _changed_once(objects, key, kind, changed)
        except (KeyTaken, Changed, Lapsed):
            time.sleep(random.uniform(0, pause))  # noqa: S311 - no secret
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    raise RepositoryError(
        f"{key} in {objects.place} was changed by others for {_MOST_SECONDS:.0f} s without a pause",
        remedy="run the same command again",
        transient=True,
    )


def _changed_once(objects: Objects, key: str, kind: type[R], changed: Callable[[R | None], R]) -> R:
    with alone(objects, key) as require:
        found = objects.read(key)
        old = None if found is None else _parsed(kind, found.content, key, objects)
        new = changed(old)
        if new == old:
            return new
        require()
        if found is None:
            objects.create(key, content_of(new))
        else:
            objects.swap(key, content_of(new), found.tag)
        return new


def _parsed(kind: type[R], content: bytes, key: str, objects: Objects) -> R:
    try:
        return kind.model_validate_json(content)
    except ValueError as error:
        raise RepositoryError(
            f"{key} in {objects.place} is damaged: {first_line(error)}",
            remedy=f"see what else is: plansmith verify --store {objects.typed}",
        ) from error
