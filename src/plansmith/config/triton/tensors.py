"""What Triton is told of inputs and outputs, and of the requests that warm a model up."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from plansmith.config.triton.terms import DataType, Filled, Positive, Text, Whole, WireDim, exactly_one
from plansmith.records.fields import Switch
from plansmith.records.model import Record

_DIMS = "What clients send, without the batch, where not the graph's own sizes; Triton reshapes it."
_RESHAPE = "What the model takes instead; the graph's own sizes when left out."


class Reshape(Record):
    """Sizes that the model has where clients have others."""

    shape: tuple[WireDim, ...] = Field(description="Sizes, without the batch; -1 where they vary.")


class _TensorOptions(Record):
    @field_validator("dims", check_fields=False)
    @classmethod
    def _check_dims(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if value is not None and (not value or 0 in value):
            raise ValueError("names sizes of 1 or more, or -1 where they vary, like [-1, 3]")
        return value

    @model_validator(mode="after")
    def _check_reshape(self) -> Self:
        if getattr(self, "reshape", None) is not None and getattr(self, "dims", None) is None:
            raise ValueError("reshape is what the model takes; give dims too, which is what clients send")
        return self


class InputOptions(_TensorOptions):
    """What Triton is told of one input beyond the graph."""

    format: Literal["none", "nhwc", "nchw"] = Field(default="none", description="Order of the sizes of an image.")
    dims: tuple[WireDim, ...] | None = Field(default=None, description=_DIMS)
    reshape: Reshape | None = Field(default=None, description=_RESHAPE)
    allow_ragged_batch: Switch = Field(
        default=False, description="Requests of different sizes may share a batch; see batch_input."
    )
    optional: Switch = Field(default=False, description="A request may leave it out.")


class OutputOptions(_TensorOptions):
    """What Triton is told of one output beyond the graph."""

    dims: tuple[WireDim, ...] | None = Field(default=None, description=_DIMS.replace("send", "get"))
    reshape: Reshape | None = Field(default=None, description=_RESHAPE.replace("takes", "gives"))
    label_filename: str = Field(
        default="",
        description="A file with a label in each line, for clients that ask for classes; relative to the spec.",
    )


class BatchInput(Record):
    """An input of the model that Triton fills with something about the batch."""

    kind: Literal[
        "element_count",
        "accumulated_element_count",
        "accumulated_element_count_with_zero",
        "max_element_count_as_shape",
        "item_shape",
        "item_shape_flatten",
    ] = Field(description="What it tells of the source input.")
    target_name: Annotated[tuple[Text, ...], Filled()] = Field(description="Inputs of the model that Triton fills.")
    data_type: Literal["int32", "fp32"] = Field(description="Their element type.")
    source_input: Annotated[tuple[Text, ...], Filled()] = Field(max_length=1, description="The input that it is about.")


class BatchOutput(Record):
    """How outputs of a ragged batch are given to their requests."""

    target_name: Annotated[tuple[Text, ...], Filled()] = Field(description="The outputs.")
    kind: Literal["scatter_with_input_shape"] = Field(
        default="scatter_with_input_shape", description="Each request gets what has the shape of its source input."
    )
    source_input: Annotated[tuple[Text, ...], Filled()] = Field(
        max_length=1, description="The input that gives the shape."
    )


class WarmupInput(Record):
    """What one input holds while a model warms up."""

    data_type: DataType | None = Field(default=None, description="Element type; the input's own when left out.")
    dims: tuple[Positive, ...] | None = Field(
        default=None, description="Sizes, without the batch; the input's own, where none varies, when left out."
    )
    zero_data: Switch = Field(default=False, description="Zeros.")
    random_data: Switch = Field(default=False, description="Random bytes, which are no sensible ids or floats.")
    input_data_file: str = Field(
        default="", description="The values of one sample, as they lie in memory; relative to the spec."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        exactly_one(self, "zero_data", "random_data", "input_data_file")
        return self


class Warmup(Record):
    """Requests that Triton asks every instance before it is ready."""

    name: Text = Field(description="What it is called in messages.")
    batch_size: Positive = Field(default=1, description="Samples in the batch, all alike.")
    inputs: Annotated[dict[str, WarmupInput], Filled()] = Field(description="What each input holds.")
    count: Whole = Field(default=0, description="How often it is asked; once when 0.")
