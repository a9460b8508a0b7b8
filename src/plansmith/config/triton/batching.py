"""Batching configuration of Triton: the dynamic batcher and the sequence batcher.

The rules are those of `ValidateModelConfig` in src/model_config_utils.cc of github.com/triton-inference-server/core.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from plansmith.config.triton.options import DataType, Filled, Long, Positive, Signed, Text, Whole, WireDim, exactly_one
from plansmith.records.fields import Number, Part, Switch
from plansmith.records.model import Record

DEFAULT_DELAY_MICROSECONDS = 100

_TRUTHS = ("int32_false_true", "fp32_false_true", "bool_false_true")


def _read_level(value: Any) -> Any:
    """Parse a priority level used as a key: JSON turns it into text."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


Level = Annotated[Positive, BeforeValidator(_read_level)]
"""A priority level; 1 is the highest."""


class QueuePolicy(Record):
    """Queue policy of waiting requests."""

    timeout_action: Literal["reject", "delay"] = Field(
        default="reject", description="What becomes of a request that waits for too long."
    )
    default_timeout_microseconds: Long = Field(
        default=0, description="How long a request may wait; 0 for as long as it takes."
    )
    allow_timeout_override: Switch = Field(
        default=False, description="A request may give a shorter timeout of its own."
    )
    max_queue_size: Whole = Field(
        default=0, description="Requests above this many that wait are refused; 0 for no limit."
    )

    @property
    def delays(self) -> bool:
        """Whether a timed-out request is delayed behind others."""
        return self.timeout_action == "delay" and self.default_timeout_microseconds > 0


class DynamicBatching(Record):
    """Dynamic batcher: groups independent requests."""

    preferred_batch_size: tuple[Positive, ...] = Field(
        default=(), description="Batches that are sent off at once; for a plan, those it is tuned for when left out."
    )
    max_queue_delay_microseconds: Long = Field(
        default=DEFAULT_DELAY_MICROSECONDS,
        description="How long the dynamic batcher waits for more requests to fill a batch.",
    )
    preserve_ordering: Switch = Field(default=False, description="Answer in the order of the requests.")
    priority_levels: Whole = Field(default=0, description="How many priorities there are, of which 1 is the highest.")
    default_priority_level: Whole = Field(
        default=0, description="Priority of requests that give none; needed with priority_levels."
    )
    default_queue_policy: QueuePolicy | None = Field(
        default=None, description="How requests wait, where their priority has no policy of its own."
    )
    priority_queue_policy: dict[Level, QueuePolicy] = Field(
        default_factory=dict, description="How requests of a priority wait, by its level."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        levels, beyond = self.priority_levels, [n for n in self.priority_queue_policy if n > self.priority_levels]
        if levels and not 1 <= self.default_priority_level <= levels:
            raise ValueError(f"default_priority_level must be from 1 to priority_levels, which is {levels}")
        if self.default_priority_level and not levels:
            raise ValueError("default_priority_level needs priority_levels")
        if beyond:
            raise ValueError(f"priority_queue_policy has level {beyond[0]}, and priority_levels is {levels}")
        if self.preserve_ordering and levels > 1:
            raise ValueError("preserve_ordering goes with one priority level at most")
        policies = [*self.priority_queue_policy.values(), self.default_queue_policy]
        if self.preserve_ordering and any(policy is not None and policy.delays for policy in policies):
            raise ValueError("preserve_ordering does not go with the timeout_action delay")
        return self


class Direct(Record):
    """Direct strategy: every sequence has its own batch slot."""

    max_queue_delay_microseconds: Long = Field(default=0, description="How long requests wait to fill a batch.")
    minimum_slot_utilization: Part = Field(
        default=0.0, description="Which part of the places has to have a request before the delay is over."
    )


class Oldest(Record):
    """Oldest strategy: requests of different sequences are batched, oldest first."""

    max_candidate_sequences: Positive = Field(description="Sequences that can be under way at a time.")
    preferred_batch_size: tuple[Positive, ...] = Field(default=(), description="Batches that are sent off at once.")
    max_queue_delay_microseconds: Long = Field(default=0, description="How long requests wait to fill a batch.")
    preserve_ordering: Switch = Field(default=False, description="Answer in the order of the requests.")


class Control(Record):
    """Control signal of a control input."""

    kind: Literal["start", "ready", "end", "corrid"] = Field(description="What Triton tells the model.")
    int32_false_true: tuple[Signed, ...] = Field(default=(), description="Values for false and true, as INT32.")
    fp32_false_true: tuple[Number, ...] = Field(default=(), description="Values for false and true, as FP32.")
    bool_false_true: tuple[Switch, ...] = Field(default=(), description="Values for false and true, as BOOL.")
    data_type: Literal["uint64", "int64", "uint32", "int32", "string"] | None = Field(
        default=None, description="Element type of a correlation id."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kind == "corrid":
            if self.data_type is None or any(getattr(self, name) for name in _TRUTHS):
                raise ValueError("a corrid has a data_type, and no values for false and true")
            return self
        if self.data_type is not None:
            raise ValueError("data_type is for corrid")
        exactly_one(self, *_TRUTHS)
        if any(len(getattr(self, name)) not in {0, 2} for name in _TRUTHS):
            raise ValueError("give two values, for false and for true")
        return self


class ControlInput(Record):
    """Control input of the model, filled by Triton."""

    name: Text = Field(description="The input.")
    control: Annotated[tuple[Control, ...], Filled()] = Field(description="What it tells.")


class InitialState(Record):
    """Initial value of a state at the start of a sequence."""

    data_type: DataType = Field(description="Element type.")
    dims: Annotated[tuple[Positive, ...], Filled()] = Field(description="Sizes, without the batch.")
    zero_data: Switch = Field(default=False, description="It is all zeros.")
    data_file: str = Field(default="", description="Its values, as they lie in memory; relative to the spec.")
    name: str = Field(default="", description="What it is called in messages.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        exactly_one(self, "zero_data", "data_file")
        return self


class State(Record):
    """State that a model passes from one request of a sequence to the next."""

    input_name: Text = Field(description="The input that takes it.")
    output_name: Text = Field(description="The output that gives it.")
    data_type: DataType = Field(description="Element type.")
    dims: Annotated[tuple[WireDim, ...], Filled()] = Field(description="Sizes, without the batch; -1 where they vary.")
    initial_state: tuple[InitialState, ...] = Field(
        default=(), max_length=1, description="What it holds at first; nothing in particular when left out."
    )
    use_same_buffer_for_input_output: Switch = Field(
        default=False, description="Input and output share their memory; for sizes that do not vary."
    )
    use_growable_memory: Switch = Field(
        default=False, description="Memory on the GPU that grows with the state; needs the shared buffer."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.use_growable_memory and not self.use_same_buffer_for_input_output:
            raise ValueError("use_growable_memory needs use_same_buffer_for_input_output")
        return self


class SequenceBatching(Record):
    """Sequence batcher: routes all requests of a sequence to the same instance."""

    direct: Direct | None = Field(default=None, description="Every sequence has a place of its own in the batch.")
    oldest: Oldest | None = Field(default=None, description="Requests of different sequences are put together.")
    max_sequence_idle_microseconds: Long = Field(
        default=0, description="How long a sequence may be silent before it is ended; a second when 0."
    )
    control_input: tuple[ControlInput, ...] = Field(default=(), description="Inputs of the model that Triton fills.")
    state: tuple[State, ...] = Field(default=(), description="What the model hands on from request to request.")
    iterative_sequence: Switch = Field(
        default=False, description="The model itself has a request asked again until it is done."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.direct is not None and self.oldest is not None:
            raise ValueError("give direct or oldest, not both")
        kinds = [control.kind for entry in self.control_input for control in entry.control]
        if len(kinds) != len(set(kinds)):
            raise ValueError("control_input tells the same thing twice")
        return self
