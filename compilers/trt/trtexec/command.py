"""trtexec command line that builds a plan from a `BuildSpec`.

Its parser has traps that the lines here avoid (samples/common/sampleOptions.cpp): a list is cut at every comma before
names are read, so that no name may hold one; a name with a colon stands in single quotes; `*` in a name is a pattern;
sizes without a unit are MiB; the three shape options of a profile must follow its `--profile` at once; whole numbers
are read as 32 bits; a list of formats has one entry for all tensors or one each.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from pydantic import Field

from plansmith.errors import EngineError
from plansmith.records.engine import BuildSpec, OptimizationProfile, TensorFormat
from plansmith.records.model import InputRange, Record, Tensor

MAJORS = (10, 11)
"""The versions of TensorRT whose trtexec is known."""

_USE_API = "use --builder api, which has no such limit"
_LARGEST = 2**31 - 1
_MIB, _KIB = 2**20, 2**10
_POOLS = {"workspace": "workspace", "tactic_shared_memory": "tacticSharedMem"}
_HARDWARE = {"ampere_plus": "ampere+", "same_compute_capability": "sameComputeCapability"}
_TILING = {"fast": 1, "moderate": 2, "full": 3}

# What TensorRT 10 calls the types in a list of formats (stringToValue<DataType>), by NumPy's names.
_TYPES = {
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8",
    "int64": "int64",
    "int32": "int32",
    "int8": "int8",
    "int4": "int4",
    "uint8": "uint8",
    "bool": "bool",
}

PERCENTILES = (50, 90, 95, 99)


def build_command(
    spec: BuildSpec,
    *,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    graph: str,
    plan: str,
    layers: str,
    timing_cache: str,
    program: str,
    major: int,
    gpu_index: int | None = None,
) -> list[str]:
    """Return the trtexec arguments to build a plan only.

    Args:
        spec: what decides the plan.
        inputs: of the graph, in its order.
        outputs: of the graph, in its order.
        graph: the ONNX file.
        plan: the file to write.
        layers: the file that takes the inspector's JSON.
        timing_cache: the file to read and to write back; empty for none.
        program: trtexec.
        major: TensorRT's first number, which decides what the program takes.
        gpu_index: CUDA's number of the GPU; trtexec takes the first that it sees when None.

    Raises:
        EngineError: trtexec cannot do this, or a profile does not fit the graph.
    """
    if major not in MAJORS:
        raise EngineError(
            f"the options of trtexec are known for TensorRT 10 and 11, not for {major}",
            remedy="build with the trtexec of the target's release, or use --builder api",
        )
    _refuse(spec, timing_cache)
    cache = [f"--timingCacheFile={timing_cache}"] if timing_cache else []
    device = [f"--device={gpu_index}"] if gpu_index is not None else []
    return [
        program,
        f"--onnx={graph}",
        f"--saveEngine={plan}",
        *(["--stronglyTyped"] if major == 10 else []),
        *_profile_options(spec.profiles, inputs),
        *_format_options(spec.formats, inputs, outputs, major),
        *_flag_options(spec),
        *cache,
        "--skipInference",
        f"--exportLayerInfo={layers}",
        *device,
    ]


def shell_line(command: Sequence[str]) -> str:
    """Format a command for a shell, one option per line."""
    return " \\\n  ".join(shlex.quote(part) for part in command)


def named_list(values: Mapping[str, str]) -> str:
    """Format `name:value,name:value` for trtexec; a name with a colon is in single quotes.

    Raises:
        EngineError: a name that its parser cannot read.
    """
    return ",".join(f"{_name(name)}:{value}" for name, value in values.items())


def sizes(dims: Sequence[int]) -> str:
    """Format a shape, or the values of a shape input, for trtexec.

    Raises:
        EngineError: a number that its parser cannot read.
    """
    if any(abs(size) > _LARGEST for size in dims):
        raise EngineError(f"trtexec reads no number above {_LARGEST}: {'x'.join(map(str, dims))}", remedy=_USE_API)
    return "x".join(map(str, dims)) or "scalar"


def _refuse(spec: BuildSpec, timing_cache: str) -> None:
    if spec.editable_timing_cache:
        raise EngineError("trtexec has no option for an editable timing cache", remedy=_USE_API)
    if spec.error_on_timing_cache_miss and not timing_cache:
        raise EngineError(
            "error_on_timing_cache_miss without a timing cache refuses every build",
            remedy="set tensorrt: timing_cache to true, or leave error_on_timing_cache_miss out",
        )


def _profile_options(profiles: Sequence[OptimizationProfile], inputs: Sequence[Tensor]) -> list[str]:
    options = []
    for number, profile in enumerate(profiles):
        ranges = _ranges(profile, inputs)
        if len(profiles) > 1:
            options.append(f"--profile={number}")
        options += [
            f"--minShapes={named_list({name: sizes(input_range.min) for name, input_range in ranges.items()})}",
            f"--optShapes={named_list({name: sizes(input_range.opt) for name, input_range in ranges.items()})}",
            f"--maxShapes={named_list({name: sizes(input_range.max) for name, input_range in ranges.items()})}",
        ]
    return options


def _ranges(profile: OptimizationProfile, inputs: Sequence[Tensor]) -> dict[str, InputRange]:
    """The range of every input: for an omitted one, trtexec sets every dynamic dim to 1.

    An input that holds a shape gets its contents instead: setupNetworkAndConfig in sampleEngines.cpp takes what the
    shape options say of it for its values.
    """
    unknown = sorted({*profile.shapes, *profile.values} - {tensor.name for tensor in inputs})
    if unknown:
        raise EngineError(
            f"profile {profile.name} has a range for {unknown[0]}, which is no input of the graph",
            remedy=f"name one of its inputs: {', '.join(tensor.name for tensor in inputs)}",
        )
    ranges = {}
    for tensor in inputs:
        fixed = tuple(dim for dim in tensor.dims if isinstance(dim, int))
        input_range = profile.values.get(tensor.name) or profile.shapes.get(tensor.name)
        if input_range is None and len(fixed) != len(tensor.dims):
            raise EngineError(
                f"profile {profile.name} has no range for input {tensor.name}",
                remedy=f"add {tensor.name} to tensorrt: profiles, like {{{tensor.name}: 1x8:8x64:32x256}}",
            )
        ranges[tensor.name] = input_range or InputRange(min=fixed, opt=fixed, max=fixed)
    return ranges


def _format_options(
    formats: Mapping[str, TensorFormat], inputs: Sequence[Tensor], outputs: Sequence[Tensor], major: int
) -> list[str]:
    options = []
    for option, tensors in (("--inputIOFormats", inputs), ("--outputIOFormats", outputs)):
        if any(tensor.name in formats for tensor in tensors):
            entries = [_format(tensor, formats.get(tensor.name, "chw"), major) for tensor in tensors]
            options.append(f"{option}={','.join(entries)}")
    return options


def _format(tensor: Tensor, format_name: TensorFormat, major: int) -> str:
    """A format option.

    TensorRT 10 requires the type too, and a strongly typed network accepts only the tensor's own.
    """
    if major > 10:
        return format_name
    if tensor.dtype not in _TYPES:
        raise EngineError(f"trtexec of TensorRT 10 has no name for {tensor.dtype} of {tensor.name}", remedy=_USE_API)
    return f"{_TYPES[tensor.dtype]}:{format_name}"


def _flag_options(spec: BuildSpec) -> list[str]:
    pools = ",".join(f"{_POOLS[pool]}:{_size(limit)}" for pool, limit in spec.memory_pools.items())
    choices = {
        f"--memPoolSize={pools}": bool(pools),
        f"--builderOptimizationLevel={spec.optimization_level}": True,
        "--noTF32": not spec.tf32,
        "--sparsity=enable": spec.sparsity,
        "--versionCompatible": spec.version_compatible,
        "--excludeLeanRuntime": spec.exclude_lean_runtime,
        f"--hardwareCompatibilityLevel={_HARDWARE.get(spec.hardware_compatibility)}": (
            spec.hardware_compatibility != "none"
        ),
        "--stripWeights": spec.strip_weights,
        "--refit": spec.refit,
        f"--maxAuxStreams={spec.max_aux_streams}": spec.max_aux_streams is not None,
        f"--tilingOptimizationLevel={_TILING.get(spec.tiling)}": spec.tiling != "none",
        f"--profilingVerbosity={spec.verbosity}": True,
        **{f"--staticPlugins={library}": True for library in spec.plugins},
        "--errorOnTimingCacheMiss": spec.error_on_timing_cache_miss,
    }
    return [option for option, is_wanted in choices.items() if is_wanted]


def _size(limit: int) -> str:
    """A byte size in the largest unit that is exact (powers of 1024)."""
    for unit, step in (("M", _MIB), ("K", _KIB)):
        if limit % step == 0:
            return f"{limit // step}{unit}"
    return f"{limit}B"


def _name(name: str) -> str:
    if not name or set(name) & set(",'*"):
        raise EngineError(
            f"trtexec cannot read the name {name!r}: a comma, a quote and an asterisk mean something else to it",
            remedy=f"rename the tensor, or {_USE_API}",
        )
    return f"'{name}'" if ":" in name else name


class Switches(Record):
    """Measurement switches; the defaults are those of trtexec 10."""

    cuda_graph: bool = False
    spin_wait: bool = False
    transfers: bool = True

    def __str__(self) -> str:
        return ", ".join(
            (
                "with a CUDA graph" if self.cuda_graph else "without a CUDA graph",
                "spin wait" if self.spin_wait else "blocking wait",
                "transfers between host and device included" if self.transfers else "transfers left out",
            )
        )


class Measurement(Record):
    """What to measure, and for how long.

    `shapes`: of every input whose shape varies, none for a plan whose shapes are all fixed; `inputs`: the file of every
    input, raw values in C order: trtexec draws random ones for an input that is left out, which a model of token ids
    may take for places outside its table; `profile`: the number of the optimization profile; `warm_up_ms` and
    `duration_seconds`: how long it runs before and while it measures, at least; `times`: the file that takes the times
    of every query as JSON, empty for none; `plugins`: libraries that the plan needs; `version_compatible`: the plan is
    one, and brings code of its own that must be let run; `weights`: the graph that a plan without its weights gets them
    from, empty for one that has them.
    """

    shapes: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    inputs: dict[str, str] = Field(default_factory=dict)
    profile: int = 0
    warm_up_ms: int = 500
    duration_seconds: int = 3
    times: str = ""
    plugins: tuple[str, ...] = ()
    version_compatible: bool = False
    weights: str = ""


class TimingCall(Record):
    """A measurement command, with a description of its settings to record with the results."""

    command: tuple[str, ...]
    switches: str


def timing_command(
    measurement: Measurement,
    *,
    program: str,
    plan: str,
    major: int,
    switches: Switches | None = None,
    gpu_index: int | None = None,
) -> TimingCall:
    """Return the trtexec arguments to measure a plan only.

    Args:
        measurement: what is measured.
        program: trtexec.
        plan: the file to measure.
        major: TensorRT's first number, which decides what the program does by itself.
        switches: what any version is to do; what 10 does by itself when None.
        gpu_index: CUDA's number of the GPU; the first that the program sees when None.

    Raises:
        EngineError: a name or a path that trtexec's parser cannot read.
    """
    if major not in MAJORS:
        raise EngineError(
            f"the options of trtexec are known for TensorRT 10 and 11, not for {major}",
            remedy="measure with the trtexec of the target's release",
        )
    chosen = switches if switches is not None else Switches()
    shapes = {name: sizes(dims) for name, dims in measurement.shapes.items()}
    choices = {
        f"--useProfile={measurement.profile}": bool(shapes),
        f"--shapes={named_list(shapes)}": bool(shapes),
        f"--loadInputs={_files(measurement.inputs)}": bool(measurement.inputs),
        "--versionCompatible": measurement.version_compatible,
        "--refit": bool(measurement.weights),
        f"--refitFromOnnx={measurement.weights}": bool(measurement.weights),
        **{f"--staticPlugins={library}": True for library in measurement.plugins},
        f"--warmUp={measurement.warm_up_ms}": True,
        f"--duration={measurement.duration_seconds}": True,
        f"--percentile={','.join(map(str, PERCENTILES))}": True,
        f"--exportTimes={measurement.times}": bool(measurement.times),
        f"--device={gpu_index}": gpu_index is not None,
    }
    options = [option for option, is_wanted in choices.items() if is_wanted]
    command = (program, f"--loadEngine={plan}", *options, *_switch_options(chosen, major))
    return TimingCall(command=command, switches=str(chosen))


def _switch_options(switches: Switches, major: int) -> list[str]:
    """The options that change the defaults of a TensorRT version."""
    if major > 10:
        choices = {
            "--noCudaGraph": not switches.cuda_graph,
            "--noSpinWait": not switches.spin_wait,
            "--includeDataTransfers": switches.transfers,
        }
    else:
        choices = {
            "--useCudaGraph": switches.cuda_graph,
            "--useSpinWait": switches.spin_wait,
            "--noDataTransfers": not switches.transfers,
        }
    return [option for option, is_wanted in choices.items() if is_wanted]


def _files(inputs: Mapping[str, str]) -> str:
    """The input files option, in the syntax of shapes.

    A path with a colon is read in full only if the name is quoted.
    """
    for path in inputs.values():
        if set(path) & set(",':"):
            raise EngineError(
                f"trtexec cannot read the path {path!r}: a comma, a quote and a colon mean something else to it",
                remedy="put the inputs' files into a folder without one in its name",
            )
    return named_list(inputs)
