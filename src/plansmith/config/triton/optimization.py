"""What a backend may do to be faster."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from plansmith.config.triton.terms import Filled, Positive, Signed, Text, Whole
from plansmith.records.fields import Confidential, Switch
from plansmith.records.model import Record


class Graph(Record):
    """How far a backend optimises the graph."""

    level: Signed = Field(
        default=0, description="The backend's own scale: 0 is everything, 1 and -1 are less in ONNX Runtime."
    )


class Shape(Record):
    """Sizes of an input, without the batch."""

    dim: Annotated[tuple[Positive, ...], Filled()] = Field(description="Sizes, without the batch.")


class LowerBound(Record):
    """From which sizes on requests are padded into a CUDA graph."""

    batch_size: Whole = Field(default=0, description="Of the smallest batch; 0 without batching.")
    input: dict[str, Shape] = Field(default_factory=dict, description="Smallest sizes, by input.")


class GraphSpec(Record):
    """One shape that a CUDA graph is captured for."""

    batch_size: Whole = Field(default=0, description="Of the batch; 0 without batching.")
    input: dict[str, Shape] = Field(default_factory=dict, description="Sizes, by input; those that vary are needed.")
    graph_lower_bound: LowerBound | None = Field(
        default=None, description="Requests from this shape on use the graph too; just this one's when left out."
    )


class Cuda(Record):
    """How the TensorRT backend uses CUDA."""

    graphs: Switch = Field(default=False, description="Capture CUDA graphs, for small models with fixed sizes.")
    busy_wait_events: Switch = Field(
        default=False, description="Wait for the GPU in a loop: lower latency, and a busy CPU."
    )
    graph_spec: tuple[GraphSpec, ...] = Field(
        default=(), description="Shapes that graphs are captured for; the usual batches when left out."
    )
    output_copy_stream: Switch = Field(default=False, description="Copy outputs in a CUDA stream of their own.")


class Accelerator(Record):
    """A way of execution of ONNX Runtime."""

    name: Text = Field(description="Such as tensorrt, cuda or openvino.")
    parameters: Annotated[dict[str, str], Confidential()] = Field(
        default_factory=dict,
        description="What it is told; for tensorrt, trt_profile_min_shapes and so on follow from the model's axes.",
    )


class ExecutionAccelerators(Record):
    """Ways of execution inside of ONNX Runtime."""

    gpu_execution_accelerator: tuple[Accelerator, ...] = Field(
        default=(), description="Of instances on a GPU, the first that can goes first."
    )
    cpu_execution_accelerator: tuple[Accelerator, ...] = Field(
        default=(), description="Of instances on the CPU, the first that can goes first."
    )


class PinnedMemory(Record):
    """Whether data that go to or from a GPU lie in pinned memory."""

    enable: Switch = Field(default=True, description="Use pinned memory.")


class Optimization(Record):
    """What a backend may do to be faster."""

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
