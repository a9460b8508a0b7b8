"""`--parameter NAME=VALUE`: values that go with a request, beside its tensors."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from plansmith.errors import UsageError

if TYPE_CHECKING:
    from plansmith.triton.client import Parameter

_INTEGER = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?")


def read_parameters(given: Sequence[str]) -> dict[str, Parameter]:
    """Each NAME=VALUE, of the kind that VALUE looks like.

    Raises:
        UsageError: another form, a name that is given twice, or a parameter that cannot be sent.
    """
    from plansmith.triton.client.messages import require_parameters

    found: dict[str, Parameter] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise UsageError(
                f"--parameter {text!r} is not NAME=VALUE", remedy="write it like --parameter max_tokens=32"
            )
        if name in found:
            raise UsageError(f"parameter {name!r} is given twice", remedy="give each parameter once")
        found[name] = _typed(name, value)
    require_parameters(found)
    return found


def _typed(name: str, text: str) -> Parameter:
    """A whole number, a decimal, true or false, or text: all that is none of these, or stands in quotes."""
    if text in {"true", "false"}:
        return text == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return float(text)
    if text.startswith('"'):
        try:
            return str(json.loads(text))
        except ValueError as error:
            raise UsageError(
                f"--parameter {name}={text} begins with a quote and does not end with one",
                remedy=f"write it like --parameter '{name}=\"12\"'",
            ) from error
    return text
