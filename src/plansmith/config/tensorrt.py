"""How a person steers the build of a TensorRT plan; the defaults need no steering."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from plansmith.config.shapes import WrittenRange
from plansmith.records.engine import BuildFlags, BuildSpec, OptimizationProfile
from plansmith.records.fields import PositiveCount, Switch


class TensorRTOptions(BuildFlags):
    """Who builds a plan, for which GPUs and shapes, and with what."""

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
        """The same, with the paths of the program and of the plugins made absolute."""
        found = {"trtexec": str((folder / self.trtexec).absolute())} if self.trtexec else {}
        return self.model_copy(
            update={**found, "plugins": tuple(str((folder / plugin).absolute()) for plugin in self.plugins)}
        )

    def build_spec(self, profiles: Sequence[OptimizationProfile]) -> BuildSpec:
        """What a plan is built from with these options."""
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
