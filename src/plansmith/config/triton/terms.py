"""The numbers, names and words of which Triton's model configuration is made."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, Strict, StringConstraints
from pydantic_core import core_schema

from plansmith.records.fields import read_count

Whole = Annotated[int, Strict(), Field(ge=0, le=2**31 - 1), BeforeValidator(read_count)]
"""A number of 0 or more that any of the protobuf's integers holds."""

Positive = Annotated[int, Strict(), Field(ge=1, le=2**31 - 1), BeforeValidator(read_count)]
"""A number of 1 or more that any of the protobuf's integers holds."""

Long = Annotated[int, Strict(), Field(ge=0, le=2**63 - 1), BeforeValidator(read_count)]
"""A number of 0 or more that the protobuf's 64-bit integers hold."""

Signed = Annotated[int, Strict(), Field(ge=-(2**31), le=2**31 - 1), BeforeValidator(read_count)]
"""A number that the protobuf's 32-bit integers hold."""

Text = Annotated[str, StringConstraints(min_length=1)]
"""Text that is not empty."""

WireDim = Annotated[int, Strict(), Field(ge=-1, le=2**63 - 1), BeforeValidator(read_count)]
"""A size, or -1 where it varies."""

DataType = Literal[
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "fp16",
    "fp32",
    "fp64",
    "string",
    "bf16",
]
"""An element type by Triton's names, without `TYPE_`."""


class Filled:
    """Annotation of a list or mapping that must not be empty; pydantic's own counts what is left of wrong items."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Looks when all items are right."""
        return core_schema.no_info_after_validator_function(self._require, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """At least one item or property."""
        found = handler(schema)
        return {**found, "minItems" if found["type"] == "array" else "minProperties": 1}

    def _require(self, value: Any) -> Any:
        if not value:
            raise ValueError("must not be empty")
        return value


def exactly_one(record: Any, *names: str) -> None:
    """See that one of several fields is given.

    Raises:
        ValueError: none is, or several are.
    """
    given = [name for name in names if getattr(record, name) not in (None, False, "", ())]
    if len(given) != 1:
        words = f"{', '.join(names[:-1])} and {names[-1]}"
        raise ValueError(f"give one of {words}{f', not {chr(32).join(given)}' if given else ''}")


def repeated(names: tuple[str, ...]) -> list[str]:
    """The names that stand more than once."""
    return sorted({name for name in names if names.count(name) > 1})
