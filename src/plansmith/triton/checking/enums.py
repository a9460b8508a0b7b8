"""The names of protobuf's enum values, also of numbers that have none: Triton's text format takes any number."""

from __future__ import annotations

from typing import Any


def enum_name(enum: Any, number: int) -> str:
    """The name of a value of an enum; its digits where it has none."""
    return str(enum.Name(number)) if number in enum.values() else str(number)
