"""How a person steers the lowering of a graph's precision; the defaults need no steering."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from plansmith.records.fields import NonNegativeCount, Switch
from plansmith.records.model import Device, EngineKind, Precision, Record
from plansmith.records.validation import ToleranceChange

Calibration = Literal["auto", "minmax", "entropy", "percentile"]
Quantisation = Literal["auto", "dynamic", "static"]


def _check_precision(value: Any) -> Any:
    """Refuses what is neither a precision nor "auto" with one error instead of one for each of the two."""
    known = (*map(str, Precision), "auto")
    if value not in known:
        raise ValueError(f"must be {', '.join(map(repr, known[:-1]))} or {known[-1]!r}")
    return value


WrittenPrecision = Annotated[Precision | Literal["auto"], BeforeValidator(_check_precision)]
"""What a graph is to be stored and computed in; auto takes the fastest that is accurate enough."""


class LoweringOptions(Record):
    """What may be lowered, how, and how long a recipe is looked for."""

    keep: tuple[str, ...] = Field(
        default=(), description="Nodes that stay FP32: regular expressions that match a node's whole name."
    )
    lower_io: Switch = Field(
        default=False,
        description="Lower floating-point inputs and outputs too: clients then send and get FP16 or BF16.",
    )
    quantisation: Quantisation = Field(
        default="auto", description="For INT8: scales computed per request (dynamic) or once, from data (static)."
    )
    calibration: Calibration = Field(
        default="auto", description="For INT8 and FP8: how static scales follow from the data."
    )
    accept: tuple[str, ...] = Field(
        default=(),
        description="Mistakes in a lowered graph that are no reason to refuse it, by the id that the refusal names in"
        " brackets.",
    )
    budget: NonNegativeCount = Field(
        default=12, description="How many further recipes are tried when the first is not accurate enough."
    )
    autocast: str = Field(
        default="",
        description="Python of an environment with nvidia-modelopt, whose AutoCast then makes FP16 and BF16 graphs;"
        " relative to the spec.",
    )

    def with_absolute_paths(self, folder: Path) -> LoweringOptions:
        """The same, with the path of the interpreter made absolute."""
        return self.model_copy(update={"autocast": str(folder / self.autocast)}) if self.autocast else self

    @field_validator("keep")
    @classmethod
    def _check_keep(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in value:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
        return value


class LoweringRequest(Record):
    """What a graph is to be lowered to, and how accurate that has to be.

    `device`: of the target that will run it; `tolerances`: what differs from those of the precision, by output;
    `max_metric_drop`: likewise, None for nothing.
    """

    precision: Precision | Literal["auto"]
    engine: EngineKind
    device: Device
    options: LoweringOptions
    tolerances: dict[str, ToleranceChange]
    max_metric_drop: float | None
