"""Engine options of a spec: precision, TensorRT builds, and models served as PyTorch. All have defaults."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field, field_validator, model_validator

from plansmith.config.shapes import WrittenRange
from plansmith.records.engine import BuildFlags, BuildSpec, OptimizationProfile
from plansmith.records.fields import NonNegativeCount, PositiveCount, Switch
from plansmith.records.model import Device, EngineKind, Precision, Record
from plansmith.records.validation import ToleranceChange

Calibration = Literal["auto", "minmax", "entropy", "percentile"]
Quantisation = Literal["auto", "dynamic", "static"]

SITE_VARIABLE = "PLANSMITH_SITE"
"""Names folders with Python packages, separated by ":", for the `model.py` of PyTorch models on Triton."""

SHARED_CACHE_VARIABLE = "PLANSMITH_SHARED_CACHE"
"""Names the place where a spec names none: which machines share their work is a matter of the machines."""

OWNER_VARIABLE = "PLANSMITH_SERVER_ID"
"""Tells the environments of Python models which server unpacked them (see `OWNER_FILE`)."""

OWNER_FILE = ".server"
"""In the folder of an unpacked environment: the id of its server."""

CompileMode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
"""Modes of `torch.compile`, by its names."""

EnvironmentChoice = Literal["image", "packed"]
"""Who brings the packages of a Python model: the image of the server, or the model."""


def _check_precision(value: Any) -> Any:
    """Refuse a value that is neither a precision nor "auto" with one error instead of one per alternative."""
    choices = (*map(str, Precision), "auto")
    if value not in choices:
        raise ValueError(f"must be {', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}")
    return value


WrittenPrecision = Annotated[Precision | Literal["auto"], BeforeValidator(_check_precision)]
"""What a graph is to be stored and computed in; auto takes the fastest that is accurate enough."""


class LoweringOptions(Record):
    """Lowering options: precisions, methods, and the time limit of the recipe search."""

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
    """Lowering request: the target precision of a graph, and its required accuracy.

    `device`: of the target that will run it; `tolerances`: what differs from those of the precision, by output;
    `max_metric_drop`: likewise, None for nothing.
    """

    precision: Precision | Literal["auto"]
    engine: EngineKind
    device: Device
    options: LoweringOptions
    tolerances: dict[str, ToleranceChange]
    max_metric_drop: float | None


def _check_mode(value: Any) -> Any:
    """Refuse a value that is neither a boolean nor a mode with one error instead of one per alternative."""
    if not isinstance(value, bool) and value not in get_args(CompileMode):
        raise ValueError(f"must be true, false or a mode of torch.compile: {', '.join(get_args(CompileMode))}")
    return value


TorchCompile = Annotated[bool | CompileMode, BeforeValidator(_check_mode)]
"""Whether a module goes through `torch.compile`, and how."""


class PythonOptions(Record):
    """Python backend options: the PyTorch model itself, and parts of a pipeline."""

    environment: EnvironmentChoice = Field(
        default="image",
        description="Where Python models find their packages: in the server's image, which docker/README.md says how to"
        " make, or packed, in an archive that each of them brings with it.",
    )

    torch_compile: TorchCompile = Field(
        default=False,
        description="Have torch.compile compile the model when it is first asked; true, or one of its modes.",
    )


class TensorRTOptions(BuildFlags):
    """TensorRT options: the builder, GPUs and shapes of a plan, and its build settings."""

    builder: Literal["auto", "api", "trtexec"] = Field(
        default="auto", description="TensorRT's Python API or its program; auto takes what is there, the API first."
    )
    trtexec: str = Field(default="", description="The program, relative to the spec; found when left out.")
    gpus: tuple[str, ...] = Field(
        default=(),
        description="Kinds of GPU that get a plan, such as L4 or A10G; that of this machine when left out.",
        json_schema_extra={"uniqueItems": True},
    )
    profiles: dict[str, dict[str, WrittenRange]] = Field(
        default_factory=dict,
        description="Optimization profiles by name, each with min:opt:max per input; one, of `shapes`, when left out.",
    )
    deadline_minutes: PositiveCount = Field(default=120, description="How long one build may take.")
    check_build: Switch = Field(
        default=False,
        description="Have TensorRT-RTX parse and build the graph on the CPU first (extra `tensorrt-check`).",
    )
    speed_check: Switch = Field(
        default=True, description="Refuse a plan that is not faster than the next higher precision."
    )

    def with_absolute_paths(self, folder: Path) -> TensorRTOptions:
        """Return the options with the paths of the program and the plugins made absolute."""
        paths = {"trtexec": str((folder / self.trtexec).absolute())} if self.trtexec else {}
        return self.model_copy(
            update={**paths, "plugins": tuple(str((folder / plugin).absolute()) for plugin in self.plugins)}
        )

    def build_spec(self, profiles: Sequence[OptimizationProfile]) -> BuildSpec:
        """Return the build spec of a plan with these options."""
        return BuildSpec(**{name: getattr(self, name) for name in BuildFlags.model_fields}, profiles=tuple(profiles))

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.exclude_lean_runtime and not self.version_compatible:
            raise ValueError("exclude_lean_runtime is for version_compatible plans; set both or neither")
        if self.error_on_timing_cache_miss and not self.timing_cache:
            raise ValueError("error_on_timing_cache_miss needs the timing_cache that is switched off")
        if not all(self.profiles.values()):
            raise ValueError("a profile gives at least one input its range, like {input_ids: 1x8:8x64:32x256}")
        return self
