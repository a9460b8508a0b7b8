"""Engine records: what a backend loads, what a TensorRT plan is built from, and the build result."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from plansmith.records.fields import ByteCount, Count, NonNegativeCount, Switch
from plansmith.records.model import Component, EngineKind, HighPrecisionNode, InputRange, Precision, Record

Builder = Literal["api", "trtexec"]
"""Who builds a plan: TensorRT's Python API, or NVIDIA's program."""

MemoryPool = Literal["workspace", "tactic_shared_memory"]

HardwareCompatibility = Literal["none", "ampere_plus", "same_compute_capability"]

TensorFormat = Literal[
    "chw", "chw2", "hwc8", "chw4", "chw16", "chw32", "dhwc8", "cdhw32", "hwc", "hwc16", "dhwc", "dla_linear", "dla_hwc4"
]
"""How an input or output lies in memory, by trtexec's names; `chw` is linear."""

UNKNOWN = "unknown"
"""The dtype of a layer that tells of none."""


class Gpu(Record):
    """GPU of this machine, or a kind of GPU.

    `compute_capability`: such as "8.9"; `memory_bytes`: of the device; `uuid`, `index` and `driver` are those of the
    one that is here, empty and -1 for a kind.
    """

    name: str
    compute_capability: str
    memory_bytes: int
    uuid: str = ""
    index: int = -1
    driver: str = ""


class OptimizationProfile(Record):
    """Optimization profile: the shapes that a plan accepts and is tuned for, by input.

    `values`: contents of shape inputs.
    """

    name: str
    shapes: dict[str, InputRange]
    values: dict[str, InputRange] = Field(default_factory=dict)


class BuildFlags(Record):
    """Build flags of a plan besides its graph and profiles; the graph alone decides precision."""

    memory_pools: dict[MemoryPool, ByteCount] = Field(
        default_factory=dict,
        description="Most device memory that the builder may use per pool: bytes, or a number with K, M or G (powers"
        " of 1024).",
    )
    optimization_level: Count = Field(
        default=3, ge=0, le=5, description="How long the builder looks for fast kernels, from 0 to 5."
    )
    tf32: Switch = Field(default=True, description="Let FP32 layers compute in TF32, as TensorRT does by default.")
    sparsity: Switch = Field(default=False, description="Use kernels for weights of which two in four are zero.")
    version_compatible: Switch = Field(
        default=False, description="A plan that newer TensorRT versions load too; larger, maybe slower."
    )
    exclude_lean_runtime: Switch = Field(
        default=False, description="Leave the runtime out of a version-compatible plan; the server brings it."
    )
    hardware_compatibility: HardwareCompatibility = Field(
        default="none", description="A plan for other GPUs too: of Ampere and later, or of the same compute capability."
    )
    strip_weights: Switch = Field(
        default=False, description="Keep the weights out of the cached plan; they are put back before it is packaged."
    )
    refit: Switch = Field(default=False, description="A plan whose weights can be exchanged.")
    max_aux_streams: NonNegativeCount | None = Field(
        default=None, description="CUDA streams besides the main one; TensorRT decides when left out."
    )
    tiling: Literal["none", "fast", "moderate", "full"] = Field(
        default="none", description="How long the builder looks for tilings that keep data in the L2 cache."
    )
    verbosity: Literal["detailed", "layer_names_only", "none"] = Field(
        default="detailed", description="What the plan tells of its layers; only `detailed` shows their precision."
    )
    formats: dict[str, TensorFormat] = Field(
        default_factory=dict, description="How inputs and outputs lie in memory, where not linear (chw)."
    )
    plugins: tuple[str, ...] = Field(
        default=(), description="Libraries of plugins that the graph needs; relative to the spec."
    )
    timing_cache: Switch = Field(default=True, description="Use what earlier builds measured on the same kind of GPU.")
    editable_timing_cache: Switch = Field(
        default=False, description="A timing cache that can be edited, so that a build takes the kernels it names."
    )
    error_on_timing_cache_miss: Switch = Field(
        default=False, description="Refuse to measure what the timing cache does not know, for repeatable builds."
    )


class BuildSpec(BuildFlags):
    """Build spec: all that decides a plan besides graph, TensorRT and GPU, for any builder; always strongly typed.

    `profiles`: none for a graph whose shapes are all fixed.
    """

    profiles: tuple[OptimizationProfile, ...]


class BuildMachine(Record):
    """Build capabilities of this machine for plans.

    `api`: the full version of TensorRT's Python package, empty where it is not there or does not work (`api_problem`
    says why); `trtexec`: the program, empty for none, and `trtexec_version`: its three numbers, empty where it does not
    work (`trtexec_problem` says why).
    """

    gpus: tuple[Gpu, ...] = ()
    api: str = ""
    api_problem: str = ""
    trtexec: str = ""
    trtexec_version: str = ""
    trtexec_problem: str = ""


class BuildRequest(Record):
    """Build request for the builder process; paths are absolute.

    `graph`: the ONNX file; `out`: an empty folder that takes `model.plan` and what is told of it; `timing_cache`: a
    file to start from and to write back to, empty for none; `trtexec`: the program, empty for the Python API.
    """

    graph: str
    out: str
    spec: BuildSpec
    gpu: Gpu
    trtexec: str
    timing_cache: str
    deadline_seconds: float


class CheckRequest(Record):
    """Check request for the process that parses and builds a graph without a GPU.

    Attributes:
        graph: the ONNX file, absolute.
        out: a folder, absolute; takes what is told of the layers.
        spec: profiles and formats, and the flags that decide whether there can be a plan.
        compute_capabilities: the kinds of GPU that it is built for.
        in_place_of: those of the target that the library does not know.
        precision: of the graph.
        in_fp32: nodes that compute in FP32 on purpose.
        deadline_seconds: what the build may take.
    """

    graph: str
    out: str
    spec: BuildSpec
    compute_capabilities: tuple[str, ...]
    in_place_of: tuple[str, ...]
    precision: Precision
    in_fp32: tuple[HighPrecisionNode, ...]
    deadline_seconds: float


class PlanTensor(Record):
    """Plan tensor: an input or output of the plan; `dims` with -1 if dynamic; `format` as TensorRT names it."""

    name: str
    is_input: bool
    dtype: str
    dims: tuple[int, ...]
    format: str = ""
    is_shape: bool = False


class PlanLayer(Record):
    """Plan layer from the engine inspector; `milliseconds` if timed, otherwise None.

    `inputs`: names of tensors; `dtypes`: of its outputs, by NumPy's names, as far as the plan tells them; `computes`:
    it multiplies matrices or convolves, so that its precision matters; `operands`: the dtype of what it multiplies,
    empty where the plan does not tell; `nodes`: names of the ONNX nodes that it stands for.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    dtypes: tuple[str, ...]
    tactic: str = ""
    computes: bool = False
    operands: str = ""
    nodes: tuple[str, ...] = ()
    milliseconds: float | None = None


class LayerCount(Record):
    """Layer count by kind and dtype, and their total time if timed.

    `dtype`: of what they multiply, where they compute and tell it; of their outputs elsewhere.
    """

    kind: str
    dtype: str
    count: int
    milliseconds: float | None = None


class LayerSummary(Record):
    """Layer summary of a plan; `Plan.layers_file` holds all layers.

    `counts`: the most frequent first; `computing`: how many of those that multiply matrices or convolve do so in each
    dtype, the most frequent first; `above`: the first of the compute layers that are above the plan's precision, as
    the graph has them, of `above_count`; `slowest`: those that take longest, the slowest first; `milliseconds`: of all
    that were timed; none where none was.
    """

    layers: int
    counts: tuple[LayerCount, ...]
    computing: dict[str, int] = Field(default_factory=dict)
    above_count: int = 0
    above: tuple[PlanLayer, ...] = ()
    slowest: tuple[PlanLayer, ...] = ()
    milliseconds: float | None = None


class Plan(Record):
    """TensorRT plan: built by one TensorRT on one kind of GPU; `layer_summary`: None without layer information.

    `gpu`: the kind that it was tuned on; `tensorrt`: the full version, from the plan's own header; `seconds`: of the
    build; `peak_host_bytes` and `peak_device_bytes`: None where nothing tells; `timing_cache`: what became of it, in
    words; `profile_bytes`: device memory that each profile needs; `layers_file`: all layers, as `PlanLayer`s in JSON;
    `log`, `reproduce` and `request`: files too; `refitted`: weights that it was built without were put back.
    """

    file: str
    bytes: int
    gpu: Gpu
    tensorrt: str
    builder: Builder
    seconds: float
    peak_host_bytes: int | None
    peak_device_bytes: int | None
    timing_cache: str
    tensors: tuple[PlanTensor, ...]
    profile_bytes: tuple[int, ...]
    layers_file: str
    log: str
    reproduce: str
    request: str = "request.json"
    layer_summary: LayerSummary | None = None
    warnings: tuple[str, ...] = ()
    refitted: bool = False

    @property
    def description_files(self) -> tuple[str, ...]:
        """The files that describe the plan and reproduce its build."""
        return self.layers_file, self.log, self.reproduce, self.request


class BuildCheck(Record):
    """Build check: the result of a parser and builder other than the target's on a graph, on a CPU.

    Attributes:
        library: its name and version.
        compute_capabilities: the kinds of GPU that it built for.
        in_place_of: those of the target that it does not know, for which the nearest of them stand.
        precision: of the graph.
        verdict: "built", or "unknown" where the library could say nothing of the graph, this time.
        seconds: of the build.
        reason: why it could not.
        bytes: of what was built, and thrown away.
        layers: what the layers of that come to; None where nothing tells.
        layers_file: all of them, as `PlanLayer`s in JSON; empty where nothing tells.
        warnings: the library's own, and layers of unknown precision.
    """

    library: str
    compute_capabilities: tuple[str, ...]
    in_place_of: tuple[str, ...]
    precision: Precision
    verdict: Literal["built", "unknown"]
    seconds: float
    reason: str = ""
    bytes: int = 0
    layers: LayerSummary | None = None
    layers_file: str = ""
    warnings: tuple[str, ...] = ()


class Engine(Record):
    """Engine for one backend; TensorRT `plans` by compute capability, with their build spec.

    The component of a plan has the interface of the graph and the plan's file. `build_check`: None where none was asked
    for.
    """

    kind: EngineKind
    components: dict[str, Component]
    precision: Precision
    options: dict[str, str]
    toolchain: dict[str, str]
    build: BuildSpec | None = None
    build_check: BuildCheck | None = None
    plans: dict[str, Plan] = Field(default_factory=dict)

    @property
    def inner_folder(self) -> str:
        """The path of its files in a version folder.

        A graph with external weights has a folder with the graph's name.
        """
        component = self.components["model"]
        return component.file if component.external_files and self.kind is EngineKind.ONNXRUNTIME else ""


def dtypes_of(layer: PlanLayer) -> str:
    """Return the dtypes of a layer's multiplication operands if known, otherwise of its outputs, without duplicates."""
    return layer.operands or ", ".join(dict.fromkeys(layer.dtypes)) or UNKNOWN
