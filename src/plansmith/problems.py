"""What pydantic finds wrong with a file that a person wrote, in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_WORDS = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping",
    "enum": "must be {expected}",
    "finite_number": "must be a finite number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "greater_than_equal": "must be {ge} or more",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "invalid_key": "must be text",
    "less_than_equal": "must be {le} or less",
    "list_type": "must be a list",
    "literal_error": "must be {expected}",
    "model_type": "must be a mapping",
    "string_too_short": "must not be empty",
    "string_type": "must be text",
    "too_long": "must have {max_length} at most",
    "too_short": "must have at least {min_length}",
    "tuple_type": "must be a list",
}


def words_of(error: Mapping[str, Any]) -> str:
    """One of `ValidationError.errors()` without its place; what has no words here keeps pydantic's own."""
    words = _WORDS.get(error["type"])
    if words is None:
        return str(error["msg"]).removeprefix("Value error, ")
    return words.format(**error.get("ctx", {}))
