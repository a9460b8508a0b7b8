"""Strict numbers and booleans from YAML, checked alike in the loader and the schema."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Strict,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import InitErrorDetails, core_schema

# YAML 1.1 reads 1e-4, which has no dot, as text.
_DIGITS = r"([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+"
_POWER_OF_TEN = re.compile(f"[-+]?{_DIGITS}")
_BYTES = re.compile("([0-9]+)([KMG])")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}

Switch = Annotated[bool, Strict()]
"""True or false, and not a word or number that might mean it."""

HIDDEN = object()
"""Stands in a problem of a confidential field for what was given."""


def _read_number(value: Any) -> Any:
    return float(value) if isinstance(value, str) and _POWER_OF_TEN.fullmatch(value) else value


def read_count(value: Any) -> Any:
    """Parse a whole number; accepts 2.0, as JSON does."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _read_bytes(value: Any) -> Any:
    match = _BYTES.fullmatch(value) if isinstance(value, str) else None
    if isinstance(value, str) and match is None:
        raise ValueError("must be bytes, or a number with K, M or G (powers of 1024) such as 64M")
    return int(match[1]) * _UNITS[match[2]] if match else read_count(value)


def matching(pattern: re.Pattern[str], message: str, *, or_empty: bool = False) -> AfterValidator:
    """Return an annotation for text that fully matches a pattern.

    Args:
        pattern: the pattern.
        message: what is wrong with text that it does not match.
        or_empty: also take empty text.
    """

    def check(value: str) -> str:
        if not (or_empty and not value) and pattern.fullmatch(value) is None:
            raise ValueError(message)
        return value

    return AfterValidator(check)


def _number_schema(sign: str, **limits: int) -> dict[str, Any]:
    return {"anyOf": [{"type": "number", **limits}, {"type": "string", "pattern": f"^{sign}{_DIGITS}$"}]}


Count = Annotated[int, Strict(), BeforeValidator(read_count)]
"""A whole number."""

# The limits stand before what reads the number: behind it, pydantic has no word of JSON Schema for them in a union.
NonNegativeCount = Annotated[int, Strict(), Field(ge=0), BeforeValidator(read_count)]
"""A whole number, 0 or more."""

PositiveCount = Annotated[int, Strict(), Field(ge=1), BeforeValidator(read_count)]
"""A whole number, 1 or more."""

ByteCount = Annotated[
    int,
    Strict(),
    Field(ge=1),
    BeforeValidator(_read_bytes),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": f"^{_BYTES.pattern}$"}]}
    ),
]
"""A size in bytes, such as 4G, 512M or 1048576; K, M and G are powers of 1024."""

Number = Annotated[
    float,
    Field(strict=True, allow_inf_nan=False),
    BeforeValidator(_read_number),
    WithJsonSchema(_number_schema("[-+]?")),
]
"""A finite number, such as 1, 0.5 or 1e-4."""

Share = Annotated[
    float,
    Field(strict=True, allow_inf_nan=False, ge=0),
    BeforeValidator(_read_number),
    WithJsonSchema(_number_schema("[+]?", minimum=0)),
]
"""A number of 0 or more."""

Part = Annotated[
    float,
    Field(strict=True, allow_inf_nan=False, ge=0, le=1),
    BeforeValidator(_read_number),
    WithJsonSchema(_number_schema("[+]?", minimum=0, maximum=1)),
]
"""A number from 0 to 1."""

Cosine = Annotated[
    float,
    Field(strict=True, allow_inf_nan=False, ge=-1, le=1),
    BeforeValidator(_read_number),
    WithJsonSchema(_number_schema("[-+]?", minimum=-1, maximum=1)),
]
"""A number from -1 to 1."""


@dataclass(frozen=True)
class Confidential:
    """Annotation of a field with a secret, or a URL with one: error messages never contain its value."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Return the field's schema with values removed from its errors."""
        return core_schema.no_info_wrap_validator_function(self._read, handler(source))

    @staticmethod
    def _read(value: Any, read: Callable[[Any], Any]) -> Any:
        try:
            return read(value)
        except ValidationError as invalid:
            details = [
                InitErrorDetails(type=error["type"], loc=error["loc"], input=HIDDEN, ctx=error.get("ctx", {}))
                for error in invalid.errors()
            ]
            raise ValidationError.from_exception_data(invalid.title, details) from None


@dataclass(frozen=True)
class OrWord:
    """Annotation of a field that takes a value of a type, or one of a few keywords or booleans.

    A plain union would name its members in every message about what is inside of the value.

    Args:
        kind: what the value is otherwise.
        keywords: what may stand for it, and what is made of that; no numbers.
    """

    kind: Any
    keywords: Mapping[str | bool, str | bool]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Return a schema that tries the keywords before the type, and serializes them unchanged."""
        inner = handler.generate_schema(self.kind)
        return core_schema.no_info_wrap_validator_function(
            self._read,
            inner,
            serialization=core_schema.wrap_serializer_function_ser_schema(self._write, schema=inner),
        )

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Return a JSON schema of the keywords or the type."""
        return {"anyOf": [{"enum": list(self.keywords)}, handler(schema)]}

    def _read(self, value: Any, read: Callable[[Any], Any]) -> Any:
        if isinstance(value, str | bool):
            if value in self.keywords:
                return self.keywords[value]
            choices = " or ".join(
                "true" if word is True else "false" if word is False else word for word in self.keywords
            )
            raise ValueError(f"must be {choices}, or written out")
        return read(value)

    def _write(self, value: Any, write: Callable[[Any], Any]) -> Any:
        return value if isinstance(value, str | bool) else write(value)
