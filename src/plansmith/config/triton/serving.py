"""What Triton does around a model: which versions it serves, what it keeps and measures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from plansmith.config.triton.terms import Filled, Positive, Text, exactly_one, repeated
from plansmith.records.fields import Confidential, Number, Switch
from plansmith.records.model import Record


class Latest(Record):
    """The newest versions."""

    num_versions: Positive = Field(default=1, description="How many.")


class All(Record):
    """Every version that is there."""


class Specific(Record):
    """Versions by their numbers."""

    versions: Annotated[tuple[Positive, ...], Filled()] = Field(
        description="Their numbers.", json_schema_extra={"uniqueItems": True}
    )

    @field_validator("versions")
    @classmethod
    def _check(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(value)) != len(value):
            raise ValueError("names a version more than once")
        return value


class VersionPolicy(Record):
    """Which of the versions in the repository Triton serves."""

    latest: Latest | None = Field(default=None, description="The newest versions.")
    all: All | None = Field(default=None, description="Every version that is there, as {}.")
    specific: Specific | None = Field(default=None, description="Versions by their numbers.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        exactly_one(self, "latest", "all", "specific")
        return self

    def served(self, versions: Sequence[int]) -> set[int]:
        """Which of some versions are served, when these are all that there are."""
        if self.specific is not None:
            return set(versions) & set(self.specific.versions)
        return set(sorted(versions)[-self.latest.num_versions :] if self.latest is not None else versions)


class ResponseCache(Record):
    """Answers that are kept for equal requests."""

    enable: Switch = Field(
        default=False, description="Keep answers, on a server with a --cache-config, and give them again."
    )


class TransactionPolicy(Record):
    """How many answers a request has."""

    decoupled: Switch = Field(default=False, description="Any number, and not one; backends have to be made for it.")


class Agent(Record):
    """A library that Triton asks before it loads a model."""

    name: Text = Field(description="Of the agent.")
    parameters: Annotated[dict[str, str], Confidential()] = Field(default_factory=dict, description="What it is told.")


class RepositoryAgents(Record):
    """Libraries that Triton asks before it loads the model."""

    agents: tuple[Agent, ...] = Field(default=(), description="In the order in which they are asked.")


class MetricIdentifier(Record):
    """Which metric is meant."""

    family: Text = Field(description="Such as nv_inference_first_response_histogram_ms.")


class HistogramOptions(Record):
    """How a histogram counts."""

    buckets: Annotated[tuple[Number, ...], Filled()] = Field(description="Upper bounds, ascending.")

    @field_validator("buckets")
    @classmethod
    def _check(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if list(value) != sorted(set(value)):
            raise ValueError("are upper bounds in ascending order, each once")
        return value


class MetricControl(Record):
    """How one metric of the model is measured."""

    metric_identifier: MetricIdentifier = Field(description="Which metric is meant.")
    histogram_options: HistogramOptions = Field(description="How it counts.")


class Metrics(Record):
    """How metrics of the model are measured."""

    metric_control: tuple[MetricControl, ...] = Field(default=(), description="One entry a metric.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        twice = repeated(tuple(one.metric_identifier.family for one in self.metric_control))
        if twice:
            raise ValueError(f"metric_control names {', '.join(twice)} more than once")
        return self


class Operations(Record):
    """Libraries of operators of your own."""

    op_library_filename: tuple[Text, ...] = Field(default=(), description="Libraries, where the server finds them.")
