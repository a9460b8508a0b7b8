"""BodyReader of deliveries: JSON that means the same to every reader, and the texts that are taken out of it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from plansmith.triggers.registries.delivery import RequestRejected

_LONGEST_NUMBER = 25
_DEEPEST = 32
_LONGEST_NAME = 512


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object that a body is.

    Raises:
        Refused: it is none; or has a key twice, a number that is none or that no double holds, or too many levels.
    """
    try:
        found = _DECODER.decode(body.decode())
    except (ValueError, RecursionError):
        raise RequestRejected("malformed", "the body is no JSON") from None
    if not isinstance(found, dict):
        raise RequestRejected("malformed", "the body is no object")
    _check_depth(found)
    return found


def object_of(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The object below a key.

    Raises:
        Refused: there is none.
    """
    found = values.get(key)
    if not isinstance(found, dict):
        raise RequestRejected("malformed", f"{key} is no object")
    return found


def name_of(values: Mapping[str, Any], key: str, *, longest: int = _LONGEST_NAME) -> str:
    """The text below a key: it names something, so that it is not empty, and can be shown, stored and logged.

    Raises:
        Refused: it is not there or no text, too long, or has characters that no line shows, such as half a pair.
    """
    found = values.get(key)
    if not isinstance(found, str) or not found:
        raise RequestRejected("malformed", f"{key} is no text")
    if not is_showable(found, longest=longest):
        raise RequestRejected("malformed", f"{key} is too long, or has characters that cannot be shown")
    return found


def is_showable(text: str, *, longest: int = _LONGEST_NAME) -> bool:
    """Whether a text fits into a line as it is."""
    return len(text) <= longest and text.isprintable()


def _read_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise RequestRejected("malformed", "a key stands in an object twice")
    return found


def _read_integer(digits: str) -> int:
    if len(digits) > _LONGEST_NUMBER:
        raise RequestRejected("malformed", "a number is too long")
    return int(digits)


def _read_fraction(digits: str) -> float:
    if not math.isfinite(found := float(digits)):
        raise RequestRejected("malformed", "a number is too large")
    return found


def _refuse_constant(_name: str) -> NoReturn:
    raise RequestRejected("malformed", "a number is none")


def _check_depth(found: dict[str, Any]) -> None:
    level: list[Any] = [found]
    for _ in range(_DEEPEST):
        inner = [part for one in level for part in (one.values() if isinstance(one, dict) else one)]
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
