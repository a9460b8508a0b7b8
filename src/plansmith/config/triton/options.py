"""Triton model configuration options other than batching: instances, optimization, serving, tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Strict,
    StringConstraints,
    field_validator,
    model_validator,
)
from pydantic_core import core_schema

from plansmith.records.fields import Confidential, Number, Switch, read_count
from plansmith.records.model import Record

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

InstanceKind = Literal["auto", "gpu", "cpu", "model"]
_DIMS = "What clients send, without the batch, where not the graph's own sizes; Triton reshapes it."
_RESHAPE = "What the model takes instead; the graph's own sizes when left out."


class Filled:
    """Annotation of a list or mapping that must not be empty.

    Pydantic's own check counts after dropping invalid items.
    """

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Return a schema that checks the length after all items are valid."""
        return core_schema.no_info_after_validator_function(self._require, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Return a JSON schema with at least one item or property."""
        result = handler(schema)
        return {**result, "minItems" if result["type"] == "array" else "minProperties": 1}

    def _require(self, value: Any) -> Any:
        if not value:
            raise ValueError("must not be empty")
        return value


def exactly_one(record: Any, *names: str) -> None:
    """Require that exactly one of several fields is given.

    Raises:
        ValueError: none is, or several are.
    """
    present = [name for name in names if getattr(record, name) not in (None, False, "", ())]
    if len(present) != 1:
        choices = f"{', '.join(names[:-1])} and {names[-1]}"
        raise ValueError(f"give one of {choices}{f', not {chr(32).join(present)}' if present else ''}")


def repeated(names: tuple[str, ...]) -> list[str]:
    """Return the names that occur more than once."""
    return sorted({name for name in names if names.count(name) > 1})


class Resource(Record):
    """Resource of an execution; `global` is the protobuf's name, and a Python keyword."""

    model_config = ConfigDict(serialize_by_alias=True)

    name: Text = Field(description="Of the resource, as in --rate-limit-resource.")
    global_: Switch = Field(
        default=False, alias="global", description="One for all devices, and not one for each of them."
    )
    count: Positive = Field(default=1, description="How many an execution takes.")


class RateLimiter(Record):
    """Rate limiter of an instance, on a server with --rate-limit=execution_count."""

    resources: tuple[Resource, ...] = Field(default=(), description="What an execution needs.")
    priority: Whole = Field(
        default=0, description="The larger, the later its turn: 2 has half as many executions as 1."
    )


class SecondaryDevice(Record):
    """Secondary device of an instance."""

    kind: Literal["nvdla"] = Field(default="nvdla", description="A deep learning accelerator.")
    device_id: Long = Field(default=0, description="Which one.")


class InstanceGroup(Record):
    """Instance group: copies of the model that execute concurrently."""

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


class Graph(Record):
    """Graph optimization level of a backend."""

    level: Signed = Field(
        default=0, description="The backend's own scale: 0 is everything, 1 and -1 are less in ONNX Runtime."
    )


class Shape(Record):
    """Shape of an input, without the batch dim."""

    dim: Annotated[tuple[Positive, ...], Filled()] = Field(description="Sizes, without the batch.")


class LowerBound(Record):
    """Lower bound of the sizes for which requests are padded into a CUDA graph."""

    batch_size: Whole = Field(default=0, description="Of the smallest batch; 0 without batching.")
    input: dict[str, Shape] = Field(default_factory=dict, description="Smallest sizes, by input.")


class GraphSpec(Record):
    """CUDA graph spec: one shape that a graph is captured for."""

    batch_size: Whole = Field(default=0, description="Of the batch; 0 without batching.")
    input: dict[str, Shape] = Field(default_factory=dict, description="Sizes, by input; those that vary are needed.")
    graph_lower_bound: LowerBound | None = Field(
        default=None, description="Requests from this shape on use the graph too; just this one's when left out."
    )


class Cuda(Record):
    """CUDA options of the TensorRT backend."""

    graphs: Switch = Field(default=False, description="Capture CUDA graphs, for small models with fixed sizes.")
    busy_wait_events: Switch = Field(
        default=False, description="Wait for the GPU in a loop: lower latency, and a busy CPU."
    )
    graph_spec: tuple[GraphSpec, ...] = Field(
        default=(), description="Shapes that graphs are captured for; the usual batches when left out."
    )
    output_copy_stream: Switch = Field(default=False, description="Copy outputs in a CUDA stream of their own.")


class Accelerator(Record):
    """Execution accelerator of ONNX Runtime, such as TensorRT."""

    name: Text = Field(description="Such as tensorrt, cuda or openvino.")
    parameters: Annotated[dict[str, str], Confidential()] = Field(
        default_factory=dict,
        description="What it is told; for tensorrt, trt_profile_min_shapes and so on follow from the model's axes.",
    )


class ExecutionAccelerators(Record):
    """Execution accelerators within ONNX Runtime."""

    gpu_execution_accelerator: tuple[Accelerator, ...] = Field(
        default=(), description="Of instances on a GPU, the first that can goes first."
    )
    cpu_execution_accelerator: tuple[Accelerator, ...] = Field(
        default=(), description="Of instances on the CPU, the first that can goes first."
    )


class PinnedMemory(Record):
    """Pinned memory for transfers to or from a GPU."""

    enable: Switch = Field(default=True, description="Use pinned memory.")


class Optimization(Record):
    """Optimizations that a backend may apply."""

    graph: Graph | None = Field(default=None, description="How far the graph is optimised.")
    priority: Literal["default", "max", "min"] = Field(
        default="default", description="Priority of the model's threads and CUDA streams."
    )
    cuda: Cuda | None = Field(default=None, description="How the TensorRT backend uses CUDA.")
    execution_accelerators: ExecutionAccelerators | None = Field(
        default=None, description="Ways of execution inside of ONNX Runtime."
    )
    input_pinned_memory: PinnedMemory | None = Field(default=None, description="Pinned memory for inputs; used.")
    output_pinned_memory: PinnedMemory | None = Field(default=None, description="Pinned memory for outputs; used.")
    gather_kernel_buffer_threshold: Whole = Field(
        default=0, description="From how many buffers on a kernel gathers them into one input; 0 for never."
    )
    eager_batching: Switch = Field(default=False, description="Gather the next batch while one is computed.")


class Latest(Record):
    """Version policy that serves the newest versions."""

    num_versions: Positive = Field(default=1, description="How many.")


class All(Record):
    """Version policy that serves every version."""


class Specific(Record):
    """Version policy that serves versions by number."""

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
    """Version policy: which versions of the repository Triton serves."""

    latest: Latest | None = Field(default=None, description="The newest versions.")
    all: All | None = Field(default=None, description="Every version that is there, as {}.")
    specific: Specific | None = Field(default=None, description="Versions by their numbers.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        exactly_one(self, "latest", "all", "specific")
        return self

    def served(self, versions: Sequence[int]) -> set[int]:
        """Return the served versions among all existing ones."""
        if self.specific is not None:
            return set(versions) & set(self.specific.versions)
        return set(sorted(versions)[-self.latest.num_versions :] if self.latest is not None else versions)


class ResponseCache(Record):
    """Response cache for identical requests."""

    enable: Switch = Field(
        default=False, description="Keep answers, on a server with a --cache-config, and give them again."
    )


class TransactionPolicy(Record):
    """Transaction policy: the number of responses per request."""

    decoupled: Switch = Field(default=False, description="Any number, and not one; backends have to be made for it.")


class Agent(Record):
    """Repository agent: a library that Triton calls before it loads a model."""

    name: Text = Field(description="Of the agent.")
    parameters: Annotated[dict[str, str], Confidential()] = Field(default_factory=dict, description="What it is told.")


class RepositoryAgents(Record):
    """Repository agents that Triton calls before it loads the model."""

    agents: tuple[Agent, ...] = Field(default=(), description="In the order in which they are asked.")


class MetricIdentifier(Record):
    """Identifier of a metric."""

    family: Text = Field(description="Such as nv_inference_first_response_histogram_ms.")


class HistogramOptions(Record):
    """Histogram buckets of a metric."""

    buckets: Annotated[tuple[Number, ...], Filled()] = Field(description="Upper bounds, ascending.")

    @field_validator("buckets")
    @classmethod
    def _check(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if list(value) != sorted(set(value)):
            raise ValueError("are upper bounds in ascending order, each once")
        return value


class MetricControl(Record):
    """Metric control: how one metric of the model is measured."""

    metric_identifier: MetricIdentifier = Field(description="Which metric is meant.")
    histogram_options: HistogramOptions = Field(description="How it counts.")


class Metrics(Record):
    """Metric settings of the model."""

    metric_control: tuple[MetricControl, ...] = Field(default=(), description="One entry a metric.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        twice = repeated(tuple(control.metric_identifier.family for control in self.metric_control))
        if twice:
            raise ValueError(f"metric_control names {', '.join(twice)} more than once")
        return self


class Operations(Record):
    """Custom operator libraries."""

    op_library_filename: tuple[Text, ...] = Field(default=(), description="Libraries, where the server finds them.")


class Reshape(Record):
    """Reshape between the dims that clients use and those of the model."""

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
    """Triton options of one input, in addition to the graph."""

    format: Literal["none", "nhwc", "nchw"] = Field(default="none", description="Order of the sizes of an image.")
    dims: tuple[WireDim, ...] | None = Field(default=None, description=_DIMS)
    reshape: Reshape | None = Field(default=None, description=_RESHAPE)
    allow_ragged_batch: Switch = Field(
        default=False, description="Requests of different sizes may share a batch; see batch_input."
    )
    optional: Switch = Field(default=False, description="A request may leave it out.")


class OutputOptions(_TensorOptions):
    """Triton options of one output, in addition to the graph."""

    dims: tuple[WireDim, ...] | None = Field(default=None, description=_DIMS.replace("send", "get"))
    reshape: Reshape | None = Field(default=None, description=_RESHAPE.replace("takes", "gives"))
    label_filename: str = Field(
        default="",
        description="A file with a label in each line, for clients that ask for classes; relative to the spec.",
    )


class BatchInput(Record):
    """Batch input: an input that Triton fills with a property of the batch."""

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
    """Batch output: how outputs of a ragged batch are split among their requests."""

    target_name: Annotated[tuple[Text, ...], Filled()] = Field(description="The outputs.")
    kind: Literal["scatter_with_input_shape"] = Field(
        default="scatter_with_input_shape", description="Each request gets what has the shape of its source input."
    )
    source_input: Annotated[tuple[Text, ...], Filled()] = Field(
        max_length=1, description="The input that gives the shape."
    )


class WarmupInput(Record):
    """Warm-up values of one input."""

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
    """Warm-up requests that Triton sends to every instance before it is ready."""

    name: Text = Field(description="What it is called in messages.")
    batch_size: Positive = Field(default=1, description="Samples in the batch, all alike.")
    inputs: Annotated[dict[str, WarmupInput], Filled()] = Field(description="What each input holds.")
    count: Whole = Field(default=0, description="How often it is asked; once when 0.")
