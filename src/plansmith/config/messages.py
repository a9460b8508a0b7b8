"""Validation messages: errors of pydantic and the YAML parser, rewritten in plain language for users."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_ANY_NAME = "NAME"
_DEEPEST = 6
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


_ALMOST = 0.85
"""Two keys that resemble each other as much as `shape` and `shapes` are taken for one."""


class KnownKeys:
    """Keys that a file can have, to suggest what a misspelt one may have been.

    Args:
        schema: of the file, as `model_json_schema` returns it.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._places = dict(_mappings(schema))

    def nearest(self, keys: Sequence[str], cutoff: float = 0.6) -> tuple[str, ...]:
        """Return the path of the known key that resembles an unknown one by `cutoff`; empty without such a key."""
        place = [key for key in keys[:-1] if not key.isdecimal()]
        names = next((names for known, names in self._places.items() if _fits(known, place)), ())
        near = difflib.get_close_matches(keys[-1], names, n=1, cutoff=cutoff)
        return (*keys[:-1], *near) if near else ()

    def suggestion(self, keys: Sequence[str]) -> str:
        """Return where an unknown key belongs, or what it may have been, in brackets; empty if nobody can tell."""
        near = self.nearest(keys, _ALMOST)
        elsewhere = [place for place, names in self._places.items() if keys[-1] in names]
        if elsewhere and not near:
            place = min(elsewhere, key=len)
            return f" (it belongs {'in ' + '.'.join(place) if place else 'at the top of the file'})"
        near = near or self.nearest(keys)
        return f" (did you mean {near[-1]}?)" if near else ""


def _fits(known: Sequence[str], place: Sequence[str]) -> bool:
    return len(known) == len(place) and all(key in {_ANY_NAME, own} for key, own in zip(known, place, strict=True))


def _mappings(schema: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield the mappings of a file by their path, without row numbers, and the keys of each."""
    pending: list[tuple[tuple[str, ...], Mapping[str, Any]]] = [((), schema)]
    while pending:
        place, node = pending.pop(0)
        properties = node.get("properties", {})
        if properties:
            yield place, tuple(properties)
        for name, inner in properties.items():
            for path, option in _options((*place, name), inner):
                if "$ref" in option and len(path) <= _DEEPEST:
                    pending.append((path, schema["$defs"][option["$ref"].rpartition("/")[2]]))


def _options(path: tuple[str, ...], node: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Yield what a key can hold: itself, the items of a list, the values of a mapping by name."""
    yield path, node
    for inner in node.get("anyOf", ()):
        yield from _options(path, inner)
    if isinstance(node.get("items"), Mapping):
        yield from _options(path, node["items"])
    if isinstance(node.get("additionalProperties"), Mapping):
        yield from _options((*path, _ANY_NAME), node["additionalProperties"])
