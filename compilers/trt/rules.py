"""Which plans a target can have, what this machine may build of them, and whether one that was built is for it.

The rules are NVIDIA's. A plan loads in the TensorRT and on the GPU that it was built with, unless it was asked to be
compatible: https://docs.nvidia.com/deeplearning/tensorrt/11.1.0/inference-library/engine-compatibility.html.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from plansmith.compilers.trt.formats import DLA_ONLY
from plansmith.compilers.trt.inspection.header import PlanHeader
from plansmith.compilers.trt.versions import (
    NEWEST_MAJOR,
    SUPPORTED,
    dotted,
    is_same,
    is_supported,
    loads_in,
    numbers_of,
)
from plansmith.config.target.targets import Target, is_target_file
from plansmith.config.tensorrt import TensorRTOptions
from plansmith.errors import EngineError, EnvironmentFault
from plansmith.formatting import format_bytes
from plansmith.records.engine import Builder, BuildFlags, BuildMachine, Gpu
from plansmith.records.model import Precision, Record
from plansmith.system.gpu_catalog import is_kind, takes_newer_cuda

_FIRST_GPU, _AMPERE = (7, 5), (8, 0)
_FIRST_WITH: Mapping[str, tuple[int, ...]] = {Precision.BF16: _AMPERE, Precision.FP8: (8, 9)}
_MOST_SHARED = 2**30
_TAG = re.compile(r":(\d\d\.\d\d)-py3$")
_NGC = "nvcr.io/nvidia"
# By TensorRT's major number; https://docs.nvidia.com/deeplearning/tensorrt/latest/installing-tensorrt/prerequisites.html
_OLDEST_DRIVERS = {10: 535, 11: 580}

_Problem = tuple[str, str]


class Choice(Record):
    """Who builds a plan on this machine, and on which of its GPUs.

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
    """See that a target can have the plans that were asked for, wherever they are built.

    Args:
        target: that serves them.
        options: how they are to be built.
        precision: of the graph.
        kinds: the GPUs that get a plan each.

    Raises:
        EngineError: names every reason why not.
    """
    found = [*_target_problems(target), *_flag_problems(options, kinds, precision)]
    for kind in kinds:
        found += _kind_problems(kind, target, options, precision)
    if not found:
        return
    remedy = "; ".join(dict.fromkeys(remedy for _, remedy in found))
    if len(found) == 1:
        raise EngineError(found[0][0], remedy=remedy)
    lines = [f"{len(found)} problems with TensorRT plans for {target.name}:", *(words for words, _ in found)]
    raise EngineError("\n  ".join(lines), remedy=remedy)


def builders_of(machine: BuildMachine) -> dict[Builder, str]:
    """The builders of a machine in the order of preference, and their versions."""
    found: dict[Builder, str] = {"api": machine.api, "trtexec": machine.trtexec_version if machine.trtexec else ""}
    return {builder: version for builder, version in found.items() if version}


def choose_builder(target: Target, options: TensorRTOptions, machine: BuildMachine, kind: Gpu) -> Choice:
    """Who builds the plan of a kind of GPU for a target that `require_target` took.

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
    """See that a plan is of the target's TensorRT, or loads in it.

    Raises:
        EngineError: it does not.
    """
    wanted = target.tensorrt or ""
    if is_same(header.tensorrt, wanted) or (_brings_runtime(flags) and loads_in(header.tensorrt, wanted)):
        return
    raise EngineError(
        f"the plan was built by TensorRT {header.tensorrt}, and {target.name} has {wanted or 'an unknown one'}, which"
        " cannot load it",
        remedy=f"build it in {describe_containers(target)}",
    )


def describe_containers(target: Target) -> str:
    """The containers that have a target's TensorRT, to build its plans in.

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
        other = name.removesuffix("-cpu")
        remedy = f"take --target {other}" if other != name and "gpu" in target.devices else "take a --target with GPUs"
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
        words = f"{has}, and {precision.upper()} begins with {dotted(first)}"
        yield words, "take --precision fp16, or name a newer GPU under `gpus`"
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
    """The GPU to build on: of the kind, or else one whose plans that kind loads."""
    level, capability = options.hardware_compatibility, kind.compute_capability
    exact = next((gpu for gpu in machine.gpus if is_kind(gpu, kind)), None)
    if exact is not None:
        return exact, ()
    alike = next((gpu for gpu in machine.gpus if gpu.compute_capability == capability), None)
    ampere = next((gpu for gpu in machine.gpus if numbers_of(gpu.compute_capability) >= _AMPERE), None)
    fits_ampere = ampere is not None and numbers_of(capability) >= _AMPERE
    found = alike if level != "none" else None
    found = found or (ampere if level == "ampere_plus" and fits_ampere else None)
    if found is not None:
        return found, (f"the plan for {kind.name} is tuned on {found.name}, so that it may be slower there",)
    ways = [f"build on a machine with {kind.name}, in {describe_containers(target)}"]
    if machine.gpus:
        ways.append(f"name what is here: gpus: [{machine.gpus[0].name}]")
    if alike is not None:
        ways.append("set hardware_compatibility: same_compute_capability")
    elif fits_ampere:
        ways.append("set hardware_compatibility: ampere_plus")
    here = ", ".join(f"{gpu.name} ({gpu.compute_capability})" for gpu in machine.gpus)
    raise EnvironmentFault(
        f"a plan for {kind.name} ({capability}) is built on one, and this machine has {here or 'no NVIDIA GPU'}",
        remedy="; or ".join(ways),
    )


def _choose_version(
    target: Target, options: TensorRTOptions, machine: BuildMachine
) -> tuple[Builder, str, tuple[str, ...]]:
    """The builder whose plans the target loads, its version, and what is to be said of it."""
    wanted = target.tensorrt or ""
    found = {b: v for b, v in builders_of(machine).items() if options.builder in {"auto", b}}
    if not found:
        raise _no_builder(target, options, machine)
    usable = {builder: version for builder, version in found.items() if is_supported(version)}
    for builder, version in usable.items():
        if is_same(version, wanted):
            return builder, version, tuple(_version_notices(target))
    for builder, version in usable.items():
        if _brings_runtime(options) and loads_in(version, wanted):
            said = f"the plan is built by TensorRT {version} and loaded by {wanted}, so that it may be slower"
            return builder, version, (said, *_version_notices(target))
    raise _other_version(target, options, found)


def _brings_runtime(flags: BuildFlags) -> bool:
    """Whether a plan loads in another version, too: with the runtime of its own one inside.

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


def _other_version(target: Target, options: TensorRTOptions, found: dict[Builder, str]) -> EnvironmentFault:
    wanted = target.tensorrt or ""
    here = " and ".join(f"{version} ({builder})" for builder, version in found.items())
    ways = [f"build in {describe_containers(target)}"]
    if any(is_supported(version) and loads_in(version, wanted) for version in found.values()):
        ways.append(
            "leave exclude_lean_runtime out, as Triton has no other version's runtime"
            if options.version_compatible
            else f"set version_compatible, with which TensorRT {wanted} loads older plans"
        )
    elif options.version_compatible:
        ways[0] += ", as even a version-compatible plan loads in newer versions only"
    return EnvironmentFault(
        f"this machine has TensorRT {here}, and {target.name} has {wanted}, which does not load its plans",
        remedy="; or ".join(ways),
    )


def _version_notices(target: Target) -> Iterator[str]:
    version, image = target.tensorrt or "", target.images.get("gpu", "the image")
    if "tensorrt" in target.inferred:
        yield f"that {target.name} has TensorRT {version} was inferred; verify it in {image} (dpkg -l | grep nvinfer)"
    elif len(numbers_of(version)) < 4:
        yield f"of its TensorRT, {target.name} tells only {version}; a plan of another {version} may not load there"


def _driver_notices(target: Target, gpu: Gpu, version: str) -> Iterator[str]:
    """What an old driver means here; CUDA's compatibility package, which containers bring, may still make it work."""
    driver, floor = numbers_of(gpu.driver), _OLDEST_DRIVERS[numbers_of(version)[0]]
    if not driver:
        return
    if driver < (floor,):
        words = f"TensorRT {version} wants driver {floor} or later, and {gpu.name} has {gpu.driver}"
        if takes_newer_cuda(gpu) is False:
            raise EnvironmentFault(
                words, remedy=f"update the driver: https://www.nvidia.com/drivers has {floor} and newer"
            )
        yield f"{words}: it works only with CUDA's compatibility package, as in {describe_containers(target)}"
    elif target.driver and driver < numbers_of(target.driver):
        yield f"{target.name} was made for driver {target.driver}, and this machine has {gpu.driver}"
