"""Where the copies of a model run."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from plansmith.config.triton.terms import Long, Positive, Text, Whole
from plansmith.records.fields import Switch
from plansmith.records.model import Record

InstanceKind = Literal["auto", "gpu", "cpu", "model"]


class Resource(Record):
    """What an execution needs; `global` is the protobuf's name, and a word of Python's."""

    model_config = ConfigDict(serialize_by_alias=True)

    name: Text = Field(description="Of the resource, as in --rate-limit-resource.")
    global_: Switch = Field(
        default=False, alias="global", description="One for all devices, and not one for each of them."
    )
    count: Positive = Field(default=1, description="How many an execution takes.")


class RateLimiter(Record):
    """When an instance may run, on a server with --rate-limit=execution_count."""

    resources: tuple[Resource, ...] = Field(default=(), description="What an execution needs.")
    priority: Whole = Field(
        default=0, description="The larger, the later its turn: 2 has half as many executions as 1."
    )


class SecondaryDevice(Record):
    """A further device of an instance."""

    kind: Literal["nvdla"] = Field(default="nvdla", description="A deep learning accelerator.")
    device_id: Long = Field(default=0, description="Which one.")


class InstanceGroup(Record):
    """Copies of the model that answer at the same time."""

    name: str = Field(default="", description="Of the group; Triton makes one.")
    kind: InstanceKind | None = Field(
        default=None, description="What they run on: gpu, cpu, auto or model; as the target when left out."
    )
    count: Positive = Field(default=1, description="Copies of the model: in all, or on each GPU.")
    rate_limiter: RateLimiter | None = Field(default=None, description="When they may run.")
    gpus: tuple[Whole, ...] = Field(default=(), description="Numbers of the GPUs; all when left out.")
    secondary_devices: tuple[SecondaryDevice, ...] = Field(default=(), description="Further devices.")
    profile: tuple[Whole, ...] = Field(
        default=(), description="Optimization profiles of a TensorRT plan, by number from 0; all when left out."
    )
    passive: Switch = Field(default=False, description="Loaded, and never asked.")
    host_policy: str = Field(default="", description="Name of a --host-policy of the server, such as a NUMA node.")

    @field_validator("gpus", "profile")
    @classmethod
    def _check_numbers(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(value)) != len(value):
            raise ValueError("names a number more than once")
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.gpus and self.kind in {"cpu", "model"}:
            raise ValueError(f"instances of kind {self.kind} name no gpus")
        if self.secondary_devices and self.kind in {"cpu", "model"}:
            raise ValueError(f"instances of kind {self.kind} have no secondary_devices")
        return self
