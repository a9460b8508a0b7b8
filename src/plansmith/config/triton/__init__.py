"""Triton model configuration in a spec: the fields of the protobuf, under its own names.

What follows from the model is not here: name, backend, the inputs' and outputs' names and element types, and the
names of the model's files. Enums have the protobuf's names without their prefix and in lower case: `kind: gpu` is
KIND_GPU. Fields that name a file of the user's own are relative to the spec.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from plansmith.config.triton.batching import DynamicBatching, SequenceBatching
from plansmith.config.triton.options import (
    BatchInput,
    BatchOutput,
    InputOptions,
    InstanceGroup,
    Metrics,
    Operations,
    Optimization,
    OutputOptions,
    RepositoryAgents,
    ResponseCache,
    TransactionPolicy,
    VersionPolicy,
    Warmup,
    Whole,
    repeated,
)
from plansmith.records.fields import Confidential, OrWord
from plansmith.records.model import Record

FILE_FOLDERS = {"label_filename": "", "input_data_file": "warmup", "data_file": "initial_state"}
"""Fields that name a file, and the folder beside config.pbtxt in which Triton looks for it."""

_FREE = {"parameters", "metric_tags"}
"""Fields whose keys are not the protobuf's, but anybody's."""

WarmupChoice = Literal["auto", "on", "off"]


class TritonOptions(Record):
    """Triton options that the served configuration adds to what the graph determines."""

    max_batch_size: Whole | None = Field(
        default=None, description="Largest batch, 0 for no batching; the largest of the model's axes when left out."
    )
    dynamic_batching: Annotated[DynamicBatching | Literal[False], OrWord(DynamicBatching, {False: False})] = Field(
        default=DynamicBatching(), description="How requests are put together; false for not at all."
    )
    sequence_batching: SequenceBatching | None = Field(
        default=None, description="For models that keep a state: the requests of a sequence go to one instance."
    )
    instance_group: tuple[InstanceGroup, ...] = Field(
        default=(), description="Copies of the model and where they run; one on the target's device when left out."
    )
    model_warmup: Annotated[
        tuple[Warmup, ...] | WarmupChoice,
        OrWord(tuple[Warmup, ...], {"auto": "auto", "on": "on", "off": "off", True: "on", False: "off"}),
    ] = Field(
        default="auto",
        description="Requests before a model is ready: on takes real inputs at batch 1, opt and max; auto is on for"
        " GPUs; or a list of your own.",
    )
    response_cache: ResponseCache | None = Field(default=None, description="Whether answers are kept.")
    version_policy: VersionPolicy | None = Field(
        default=None, description="Which versions are served; the newest one when left out."
    )
    optimization: Optimization | None = Field(default=None, description="What the backend may do to be faster.")
    inputs: dict[str, InputOptions] = Field(
        default_factory=dict, description="What Triton is told of inputs beyond the graph, by name."
    )
    outputs: dict[str, OutputOptions] = Field(
        default_factory=dict, description="What Triton is told of outputs beyond the graph, by name."
    )
    batch_input: tuple[BatchInput, ...] = Field(
        default=(), description="Inputs that Triton fills with something about a ragged batch."
    )
    batch_output: tuple[BatchOutput, ...] = Field(
        default=(), description="How outputs of a ragged batch are given to their requests."
    )
    parameters: Annotated[dict[str, str], Confidential()] = Field(
        default_factory=dict, description="Parameters of the backend, as text."
    )
    metric_tags: Annotated[dict[str, str], Confidential()] = Field(
        default_factory=dict, description="Tags of the model's metrics."
    )
    model_metrics: Metrics | None = Field(default=None, description="How the model's metrics are measured.")
    model_transaction_policy: TransactionPolicy | None = Field(
        default=None, description="How many answers a request has."
    )
    model_repository_agents: RepositoryAgents | None = Field(
        default=None, description="Libraries that Triton asks before it loads the model."
    )
    model_operations: Operations | None = Field(default=None, description="Libraries of operators of your own.")
    runtime: str = Field(default="", description="File name of the backend's library or script, where it has several.")

    @property
    def is_decoupled(self) -> bool:
        """Whether a request may have any number of responses."""
        return self.model_transaction_policy is not None and self.model_transaction_policy.decoupled

    def serves(self, version: int) -> bool:
        """Whether Triton serves a version while it is the newest."""
        return self.version_policy is None or version in self.version_policy.served([version])

    def with_absolute_paths(self, folder: Path) -> TritonOptions:
        """Return the options with file paths made absolute."""
        return self.with_files(lambda _, path: str((folder / path).absolute()))

    def with_files(self, renamed: Callable[[str, str], str]) -> TritonOptions:
        """Return the options with every file renamed; `renamed` takes the field and the current name."""
        return TritonOptions.model_validate(_renamed(self.model_dump(mode="json"), renamed))

    @model_validator(mode="before")
    @classmethod
    def _choose_scheduler(cls, values: Any) -> Any:
        """Disable the dynamic batcher if a sequence batcher is configured and both are not requested."""
        if isinstance(values, dict) and values.get("sequence_batching") and "dynamic_batching" not in values:
            return values | {"dynamic_batching": False}
        return values

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.sequence_batching is not None and self.dynamic_batching is not False:
            raise ValueError("give dynamic_batching or sequence_batching, not both")
        if self.response_cache is not None and self.response_cache.enable:
            if self.sequence_batching is not None:
                raise ValueError("response_cache does not go with sequence_batching")
            if self.is_decoupled:
                raise ValueError("response_cache does not go with decoupled answers")
        groups = repeated(tuple(group.name for group in self.instance_group if group.name))
        if groups:
            raise ValueError(f"instance_group has the name {', '.join(groups)} more than once")
        samples = self.model_warmup if isinstance(self.model_warmup, tuple) else ()
        if twice := repeated(tuple(sample.name for sample in samples)):
            raise ValueError(f"model_warmup has the name {', '.join(twice)} more than once")
        self._check_sizes()
        return self

    def _check_sizes(self) -> None:
        """Check that no batch size exceeds the maximum that the spec gives."""
        if self.max_batch_size is None:
            return
        for place, size in self.batch_sizes():
            if size > max(1, self.max_batch_size):
                raise ValueError(f"{place} is {size}, and max_batch_size is {self.max_batch_size}")

    def batch_sizes(self) -> list[tuple[str, int]]:
        """Return every given batch size, with the keys that lead to it."""
        sizes: list[tuple[str, int]] = []
        if self.dynamic_batching:
            key = "dynamic_batching.preferred_batch_size"
            sizes += [(key, size) for size in self.dynamic_batching.preferred_batch_size]
        if self.sequence_batching is not None and self.sequence_batching.oldest is not None:
            key = "sequence_batching.oldest.preferred_batch_size"
            sizes += [(key, size) for size in self.sequence_batching.oldest.preferred_batch_size]
        if isinstance(self.model_warmup, tuple):
            sizes += [(f"model_warmup.{warmup.name}.batch_size", warmup.batch_size) for warmup in self.model_warmup]
        if self.optimization is not None and self.optimization.cuda is not None:
            key = "optimization.cuda.graph_spec.batch_size"
            sizes += [(key, spec.batch_size) for spec in self.optimization.cuda.graph_spec]
        return sizes


def _renamed(value: Any, renamed: Callable[[str, str], str], within: str = "") -> Any:
    if isinstance(value, list):
        return [_renamed(item, renamed) for item in value]
    if not isinstance(value, dict):
        return value
    if within in _FREE and all(isinstance(item, str) for item in value.values()):  # an input may be called so, too
        return value
    items = value.items()
    return {key: renamed(key, item) if _is_file(key, item) else _renamed(item, renamed, key) for key, item in items}


def _is_file(key: str, value: Any) -> bool:
    return key in FILE_FOLDERS and isinstance(value, str) and bool(value)
