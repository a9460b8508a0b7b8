"""Numbers and switches as a person writes them in YAML: nothing else passes for one, in the loader and the schema."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, Strict, WithJsonSchema

# YAML 1.1 reads 1e-4, which has no dot, as text.
_DIGITS = r"([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+"
_POWER_OF_TEN = re.compile(f"[-+]?{_DIGITS}")
_BYTES = re.compile("([0-9]+)([KMG])")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def _read_number(given: Any) -> Any:
    return float(given) if isinstance(given, str) and _POWER_OF_TEN.fullmatch(given) else given


def _read_count(given: Any) -> Any:
    """A whole number; 2.0 is one to JSON, and so it is here."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


def _read_bytes(given: Any) -> Any:
    found = _BYTES.fullmatch(given) if isinstance(given, str) else None
    return int(found[1]) * _UNITS[found[2]] if found else _read_count(given)


def _number_schema(sign: str, **limits: int) -> dict[str, Any]:
    return {"anyOf": [{"type": "number", **limits}, {"type": "string", "pattern": f"^{sign}{_DIGITS}$"}]}


Switch = Annotated[bool, Strict()]
"""True or false, and not a word or number that might mean it."""

Count = Annotated[int, Strict(), BeforeValidator(_read_count)]
"""A whole number."""

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
