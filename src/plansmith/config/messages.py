"""Validation messages: errors of pydantic and the YAML parser, rewritten in plain language for users."""

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
    "model_attributes_type": "must be a mapping",
    "model_type": "must be a mapping",
    "string_too_short": "must not be empty",
    "string_type": "must be text",
    "too_long": "must have {max_length} at most",
    "too_short": "must have at least {min_length}",
    "tuple_type": "must be a list",
    "union_tag_invalid": "its {discriminator} must be {expected_tags}",
    "union_tag_not_found": "must have a {discriminator}",
}


def validation_message(error: Mapping[str, Any]) -> str:
    """Rewrite one of `ValidationError.errors()` without its location; messages unknown here keep pydantic's text."""
    template = _WORDS.get(error["type"])
    if template is None:
        return str(error["msg"]).removeprefix("Value error, ")
    return template.format(**error.get("ctx", {}))


def yaml_message(error: Exception) -> str:
    """Describe a YAML syntax error in one line, with PyYAML's positions of the problem and its context.

    Args:
        error: a `yaml.YAMLError`, or what PyYAML lets pass of Python's own, such as the ValueError of a date.
    """
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        message = str(error).replace(' in "<unicode string>",', " at")
        return " ".join(message.split())
    context, begun = (getattr(error, name, None) for name in ("context", "context_mark"))
    inside = f" in {_place(begun)}" if begun else ""
    problem = getattr(error, "problem", None) or type(error).__name__
    return f"{_place(mark)}: {problem}{f' ({context}{inside})' if context else ''}"


def _place(mark: Any) -> str:
    """Format the position of a `yaml.Mark` with line and column counted from 1."""
    return f"line {mark.line + 1}, column {mark.column + 1}"
