"""Plan rules: which plans a target can have, which this machine can build, and whether a built plan fits the target.

The rules are NVIDIA's. A plan loads in the TensorRT and on the GPU that it was built with, unless it was asked to be
compatible: https://docs.nvidia.com/deeplearning/tensorrt/11.1.0/inference-library/engine-compatibility.html.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from plansmith.compilers.trt.plan_header import PlanHeader
from plansmith.compilers.trt.versions import (
    NEWEST_MAJOR,
    SUPPORTED,
    dotted,
    is_same,
    is_supported,
    loads_in,
    numbers_of,
)
from plansmith.config.engine_options import TensorRTOptions
from plansmith.config.targets import Target, is_target_file
from plansmith.errors import EngineError, EnvironmentFault
from plansmith.formatting import format_bytes
from plansmith.records.engine import Builder, BuildFlags, BuildMachine, Gpu, TensorFormat
from plansmith.records.model import Precision, Record, Tensor
from plansmith.system.gpu_catalog import is_kind, takes_newer_cuda

DLA_ONLY: frozenset[TensorFormat] = frozenset({"chw16", "dla_linear", "dla_hwc4"})
"""Those of an accelerator that is beside Jetson's GPU."""

_SIXTEEN_BITS = ("float16", "bfloat16")
_MOST_SHARED = 2**30
_TAG = re.compile(r":(\d\d\.\d\d)-py3$")
_NGC = "nvcr.io/nvidia"
# By TensorRT's major number; https://docs.nvidia.com/deeplearning/tensorrt/latest/installing-tensorrt/prerequisites.html
_OLDEST_DRIVERS = {10: 535, 11: 580}
_Problem = tuple[str, str]


@dataclass(frozen=True)
class Takes:
    """Tensors that an I/O format supports, by minimum rank and by type; any type if none is named."""

    rank: int
    dtypes: tuple[str, ...] = ()

    def problem(self, tensor: Tensor) -> str:
        """Return why a tensor is not supported; empty if it is."""
        if len(tensor.dims) < self.rank:
            return f"is for {self.rank} dims and more, and it has {len(tensor.dims)}"
        if self.dtypes and tensor.dtype not in self.dtypes:
            return f"is for {', '.join(self.dtypes)}, and it is {tensor.dtype}"
        return ""


TAKES: dict[TensorFormat, Takes] = {
    "chw": Takes(0),
    "chw2": Takes(3, _SIXTEEN_BITS),
    "hwc8": Takes(3, _SIXTEEN_BITS),
    "chw4": Takes(3, ("int8",)),
    "chw32": Takes(3),
    "dhwc8": Takes(4, _SIXTEEN_BITS),
    "cdhw32": Takes(4, ("float16", "int8")),
    "hwc": Takes(3, ("float32", "float16", "int8", "int64", "bfloat16")),
    "hwc16": Takes(3, ("float16", "int8", "float8_e4m3fn")),
    "dhwc": Takes(4, ("float32",)),
}


def require_formats(formats: Mapping[str, TensorFormat], tensors: Sequence[Tensor]) -> None:
    """Require that a graph has the tensors for which I/O formats are set, and that they support these.

    Args:
        formats: by the name of an input or output; none of `DLA_ONLY`.
        tensors: the graph's inputs and outputs.

    Raises:
        EngineError: names all that do not fit.
    """
    tensors_by_name = {tensor.name: tensor for tensor in tensors}
    problem_by_name = {
        name: _problem(format_name, tensors_by_name.get(name)) for name, format_name in sorted(formats.items())
    }
    problems = [f"{name}: {problem}" for name, problem in problem_by_name.items() if problem]
    if problems:
        message = problems[0] if len(problems) == 1 else "\n  ".join([f"{len(problems)} problems:", *problems])
        raise EngineError(
            f"tensorrt.formats: {message}",
            remedy=f"leave it out, or take chw; inputs and outputs are {', '.join(tensors_by_name)}",
        )


def _problem(format_name: TensorFormat, tensor: Tensor | None) -> str:
    if tensor is None:
        return "the graph has no such input or output"
    problem = TAKES[format_name].problem(tensor)
    return problem and f"the format {format_name} {problem}"


_FIRST_GPU, _AMPERE = (7, 5), (8, 0)
_FIRST_WITH: Mapping[str, tuple[int, ...]] = {Precision.BF16: _AMPERE, Precision.FP8: (8, 9)}


class Choice(Record):
    """Builder choice for a plan on this machine, with its GPU.

    `trtexec`: the program, empty for the Python API; `tensorrt`: the builder's version, of which trtexec tells three
    numbers; `notices`: what to say before the build.
    """

    builder: Builder
    trtexec: str
    tensorrt: str
    gpu: Gpu
    notices: tuple[str, ...] = ()


def require_target(
    target: Target, options: TensorRTOptions, precision: Precision | Literal["auto"], kinds: Sequence[Gpu]
) -> None:
    """Require that a target can have the requested plans, wherever they are built.

    Args:
        target: that serves them.
        options: how they are to be built.
        precision: of the graph.
        kinds: the GPUs that get a plan each.

    Raises:
        EngineError: names every reason why not.
    """
    problems = [*_target_problems(target), *_flag_problems(options, kinds, precision)]
    for kind in kinds:
        problems += _kind_problems(kind, target, options, precision)
    if not problems:
        return
    remedy = "; ".join(dict.fromkeys(remedy for _, remedy in problems))
    if len(problems) == 1:
        raise EngineError(problems[0][0], remedy=remedy)
    lines = [f"{len(problems)} problems with TensorRT plans for {target.name}:", *(message for message, _ in problems)]
    raise EngineError("\n  ".join(lines), remedy=remedy)


def builders_of(machine: BuildMachine) -> dict[Builder, str]:
    """Return the builders of a machine in order of preference, with their versions."""
    versions: dict[Builder, str] = {"api": machine.api, "trtexec": machine.trtexec_version if machine.trtexec else ""}
    return {builder: version for builder, version in versions.items() if version}


def choose_builder(target: Target, options: TensorRTOptions, machine: BuildMachine, kind: Gpu) -> Choice:
    """Choose the builder of a GPU type's plan, for a target that passed `require_target`.

    A builder of the target's own TensorRT goes before one whose plans are only compatible with it.

    Raises:
        EnvironmentFault: this machine has no GPU, TensorRT or driver for it; the remedy names where to build.
    """
    gpu, about_gpu = _choose_gpu(target, options, machine, kind)
    builder, version, about_version = _choose_version(target, options, machine)
    notices = (*about_gpu, *about_version, *_driver_notices(target, gpu, version))
    trtexec = machine.trtexec if builder == "trtexec" else ""
    return Choice(builder=builder, trtexec=trtexec, tensorrt=version, gpu=gpu, notices=notices)


def require_header(header: PlanHeader, target: Target, flags: BuildFlags) -> None:
    """Require that a plan is of the target's TensorRT, or loads in it.

    Raises:
        EngineError: it does not.
    """
    target_version = target.tensorrt or ""
    if is_same(header.tensorrt, target_version) or (
        _brings_runtime(flags) and loads_in(header.tensorrt, target_version)
    ):
        return
    raise EngineError(
        f"the plan was built by TensorRT {header.tensorrt}, and {target.name}"
        f" has {target_version or 'an unknown one'}, which"
        " cannot load it",
        remedy=f"build it in {describe_containers(target)}",
    )


def describe_containers(target: Target) -> str:
    """Describe the containers with a target's TensorRT in which its plans can be built.

    A release of NVIDIA's Triton and of TensorRT with one number have the same TensorRT, which SageMaker takes too:
    https://github.com/triton-inference-server/server/issues/5812.
    """
    image = target.images.get("gpu", "")
    tag = _TAG.search(image)
    if tag is None:
        return image or f"a container with TensorRT {target.tensorrt}"
    names = ["tritonserver"] if target.flavour == "sagemaker" else ["tensorrt", "tritonserver"]
    return " or ".join(f"{_NGC}/{name}:{tag[1]}-py3" for name in names)


def _target_problems(target: Target) -> Iterator[_Problem]:
    name, version = target.name, target.tensorrt
    if target.device != "gpu":
        alternative = name.removesuffix("-cpu")
        remedy = (
            f"take --target {alternative}"
            if alternative != name and "gpu" in target.devices
            else "take a --target with GPUs"
        )
        yield f"{name} has no GPU instances, and TensorRT plans run on GPUs alone", remedy
    if version is None:
        image = target.images.get("gpu", "its image")
        place = name if is_target_file(name) else f"a copy of `plansmith targets {name} --yaml`"
        look_up = f"find the version in {image} (dpkg -l | grep nvinfer) and write it as `tensorrt:` into {place}"
        yield f"nothing says which TensorRT {name} has", f"take another --target; or {look_up}"
    elif len(numbers_of(version)) < 2:
        yield (
            f"{name} tells only TensorRT {version}, which is too little to build a plan for",
            "write at least two numbers into the target's file, best all four",
        )
    elif not is_supported(version):
        yield (
            f"{name} has TensorRT {version}, and plansmith builds plans for {SUPPORTED}",
            "take another --target, or --engine onnxruntime",
        )
    elif target.flavour == "sagemaker" and numbers_of(version)[0] >= NEWEST_MAJOR:
        yield (
            f"{name} is said to have TensorRT {version}, but no container of SageMaker has TensorRT 11 yet",
            "take --target sagemaker-26.05, which has TensorRT 10.16; its version-compatible plans load in 11 too",
        )


def _flag_problems(
    options: TensorRTOptions, kinds: Sequence[Gpu], precision: Precision | Literal["auto"]
) -> Iterator[_Problem]:
    first = _FIRST_WITH.get(precision, ())
    if first > _AMPERE and options.hardware_compatibility == "ampere_plus":
        yield (
            f"plans for Ampere and later (ampere_plus) begin with 8.0, and {precision.upper()} with {dotted(first)}",
            "set hardware_compatibility to same_compute_capability or none",
        )
    for capability, count in Counter(kind.compute_capability for kind in kinds).items():
        if count > 1:
            names = " and ".join(kind.name for kind in kinds if kind.compute_capability == capability)
            yield (
                f"{names} both have compute capability {capability}, by which Triton chooses a release's plan",
                "name one of them under `gpus`, or compile each into a repository of its own",
            )
    if options.memory_pools.get("tactic_shared_memory", 0) >= _MOST_SHARED:
        yield "the pool tactic_shared_memory has to be below 1 GiB", "leave it out: TensorRT knows how much there is"
    for tensor in sorted(name for name, layout in options.formats.items() if layout in DLA_ONLY):
        yield (
            f"{tensor} cannot have the format {options.formats[tensor]}: it is for Jetson's DLA",
            f"take chw, or another than {', '.join(sorted(DLA_ONLY))}",
        )


def _kind_problems(
    kind: Gpu, target: Target, options: TensorRTOptions, precision: Precision | Literal["auto"]
) -> Iterator[_Problem]:
    has = f"{kind.name} has compute capability {kind.compute_capability}"
    capability = numbers_of(kind.compute_capability)
    floor = max(_FIRST_GPU, numbers_of(target.min_compute_capability or "0"))
    if capability < floor:
        yield f"{has}, and {target.name} begins with {dotted(floor)}", "name a newer GPU under `gpus`"
    first = _FIRST_WITH.get(precision, ())
    if capability < first:
        message = f"{has}, and {precision.upper()} begins with {dotted(first)}"
        yield message, "take --precision fp16, or name a newer GPU under `gpus`"
    if capability < _AMPERE and options.hardware_compatibility == "ampere_plus":
        yield (
            f"{has}, and plans for Ampere and later (ampere_plus) begin with 8.0",
            "set hardware_compatibility to same_compute_capability or none",
        )
    workspace = options.memory_pools.get("workspace", 0)
    if workspace > kind.memory_bytes:
        sizes = f"{format_bytes(workspace)} is more than the {format_bytes(kind.memory_bytes)}"
        remedy = "make it smaller, or leave it out: the builder then takes what is there"
        yield f"the pool workspace of {sizes} of {kind.name}", remedy


def _choose_gpu(
    target: Target, options: TensorRTOptions, machine: BuildMachine, kind: Gpu
) -> tuple[Gpu, tuple[str, ...]]:
    """Choose the GPU to build on: one of the kind, or one whose plans that kind loads."""
    level, capability = options.hardware_compatibility, kind.compute_capability
    exact = next((gpu for gpu in machine.gpus if is_kind(gpu, kind)), None)
    if exact is not None:
        return exact, ()
    alike = next((gpu for gpu in machine.gpus if gpu.compute_capability == capability), None)
    ampere = next((gpu for gpu in machine.gpus if numbers_of(gpu.compute_capability) >= _AMPERE), None)
    fits_ampere = ampere is not None and numbers_of(capability) >= _AMPERE
    choice = alike if level != "none" else None
    choice = choice or (ampere if level == "ampere_plus" and fits_ampere else None)
    if choice is not None:
        return choice, (f"the plan for {kind.name} is tuned on {choice.name}, so that it may be slower there",)
    ways = [f"build on a machine with {kind.name}, in {describe_containers(target)}"]
    if machine.gpus:
        ways.append(f"name what is here: gpus: [{machine.gpus[0].name}]")
    if alike is not None:
        ways.append("set hardware_compatibility: same_compute_capability")
    elif fits_ampere:
        ways.append("set hardware_compatibility: ampere_plus")
    available = ", ".join(f"{gpu.name} ({gpu.compute_capability})" for gpu in machine.gpus)
    raise EnvironmentFault(
        f"a plan for {kind.name} ({capability}) is built on one, and this machine has {available or 'no NVIDIA GPU'}",
        remedy="; or ".join(ways),
    )


def _choose_version(
    target: Target, options: TensorRTOptions, machine: BuildMachine
) -> tuple[Builder, str, tuple[str, ...]]:
    """Choose the builder whose plans the target loads; return it with its version and notices."""
    target_version = target.tensorrt or ""
    versions = {b: v for b, v in builders_of(machine).items() if options.builder in {"auto", b}}
    if not versions:
        raise _no_builder(target, options, machine)
    usable = {builder: version for builder, version in versions.items() if is_supported(version)}
    for builder, version in usable.items():
        if is_same(version, target_version):
            return builder, version, tuple(_version_notices(target))
    for builder, version in usable.items():
        if _brings_runtime(options) and loads_in(version, target_version):
            note = f"the plan is built by TensorRT {version} and loaded by {target_version}, so that it may be slower"
            return builder, version, (note, *_version_notices(target))
    raise _other_version(target, options, versions)


def _brings_runtime(flags: BuildFlags) -> bool:
    """Whether a version-compatible plan includes its lean runtime, so that other TensorRT versions load it.

    Where that is left out, it has to be given to `IRuntime::loadRuntime` (NvInferRuntime.h), which Triton never calls.
    """
    return flags.version_compatible and not flags.exclude_lean_runtime


def _no_builder(target: Target, options: TensorRTOptions, machine: BuildMachine) -> EnvironmentFault:
    where = f"build in {describe_containers(target)}"
    others = builders_of(machine)
    if options.builder == "auto" or not others:
        why = f" ({machine.api_problem})" if machine.api_problem else ""
        return EnvironmentFault(
            f"this machine has no TensorRT: neither its Python package{why} nor trtexec", remedy=where
        )
    name = {"api": "TensorRT's Python package", "trtexec": "trtexec"}[options.builder]
    why = f": {machine.api_problem}" if options.builder == "api" and machine.api_problem else ""
    return EnvironmentFault(
        f"{name} is not on this machine{why}", remedy=f"take --builder {next(iter(others))}, which is here; or {where}"
    )


def _other_version(target: Target, options: TensorRTOptions, versions: dict[Builder, str]) -> EnvironmentFault:
    target_version = target.tensorrt or ""
    available = " and ".join(f"{version} ({builder})" for builder, version in versions.items())
    ways = [f"build in {describe_containers(target)}"]
    if any(is_supported(version) and loads_in(version, target_version) for version in versions.values()):
        ways.append(
            "leave exclude_lean_runtime out, as Triton has no other version's runtime"
            if options.version_compatible
            else f"set version_compatible, with which TensorRT {target_version} loads older plans"
        )
    elif options.version_compatible:
        ways[0] += ", as even a version-compatible plan loads in newer versions only"
    return EnvironmentFault(
        f"this machine has TensorRT {available}, and {target.name} has {target_version}, which does not load its plans",
        remedy="; or ".join(ways),
    )


def _version_notices(target: Target) -> Iterator[str]:
    version, image = target.tensorrt or "", target.images.get("gpu", "the image")
    if "tensorrt" in target.inferred:
        yield f"that {target.name} has TensorRT {version} was inferred; verify it in {image} (dpkg -l | grep nvinfer)"
    elif len(numbers_of(version)) < 4:
        yield f"of its TensorRT, {target.name} tells only {version}; a plan of another {version} may not load there"


def _driver_notices(target: Target, gpu: Gpu, version: str) -> Iterator[str]:
    """Yield notices on an old driver; CUDA's compatibility package, included in containers, may still make it work."""
    driver, floor = numbers_of(gpu.driver), _OLDEST_DRIVERS[numbers_of(version)[0]]
    if not driver:
        return
    if driver < (floor,):
        message = f"TensorRT {version} wants driver {floor} or later, and {gpu.name} has {gpu.driver}"
        if takes_newer_cuda(gpu) is False:
            raise EnvironmentFault(
                message, remedy=f"update the driver: https://www.nvidia.com/drivers has {floor} and newer"
            )
        yield f"{message}: it works only with CUDA's compatibility package, as in {describe_containers(target)}"
    elif target.driver and driver < numbers_of(target.driver):
        yield f"{target.name} was made for driver {target.driver}, and this machine has {gpu.driver}"
