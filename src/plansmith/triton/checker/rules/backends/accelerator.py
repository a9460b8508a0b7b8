"""Accelerators and parameters of Triton's ONNX Runtime backend, such as TensorRT within ONNX Runtime."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from plansmith.compilers.trt.versions import NEWEST_MAJOR, numbers_of
from plansmith.triton.checker.findings import Finding, Rule
from plansmith.triton.checker.model_files import GraphFacts
from plansmith.triton.checker.model_folder import CheckContext, ModelFolder, format_config_dims, kinds
from plansmith.triton.standin.onnxruntime import settings

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

_SOURCE = "src/onnxruntime.cc of github.com/triton-inference-server/onnxruntime_backend"
_PROVIDER = "https://onnxruntime.ai/docs/execution-providers/TensorRT-ExecutionProvider.html"

ACCELERATOR = Rule(
    "onnxruntime.accelerator",
    "error",
    "accelerators, and the keys and values of their parameters, are ones that the backend knows",
    f"{_SOURCE} (LoadModel)",
)
PARAMETER = Rule(
    "onnxruntime.parameter", "error", "parameters that the backend reads have values that it takes", _SOURCE
)
UNUSED = Rule(
    "onnxruntime.accelerator-unused",
    "warning",
    "a model with an accelerator for GPUs has instances on GPUs",
    f"{_SOURCE} (LoadModel reads gpu_execution_accelerator for KIND_GPU and KIND_AUTO alone)",
)
PROFILE = Rule(
    "onnxruntime.accelerator-profile",
    "error",
    "the profile of the TensorRT accelerator has three shapes for each name, of its rank and in order",
    _PROVIDER,
)
PROFILE_NAMES = Rule(
    "onnxruntime.accelerator-profile-names",
    "warning",
    "the profile of the TensorRT accelerator is for what varies where TensorRT takes over: mostly the graph's inputs",
    "github.com/microsoft/onnxruntime: pull request 17007 (a part of a graph wants its own inputs in the profile)",
)
NO_PROFILE = Rule(
    "onnxruntime.accelerator-shapes",
    "warning",
    "where inputs vary, the TensorRT accelerator has a profile; else it builds again at every new shape",
    _PROVIDER,
)
CACHE = Rule(
    "onnxruntime.accelerator-cache",
    "note",
    "the TensorRT accelerator keeps what it built; else every start of the server builds again, for minutes",
    _PROVIDER,
)
VERSION = Rule(
    "onnxruntime.accelerator-version",
    "warning",
    "TensorRT 11 inside of ONNX Runtime is from 1.27 on",
    f"{_PROVIDER} (Requirements); docs/introduction/compatibility.md of github.com/triton-inference-server/server",
)
PRECISION = Rule(
    "onnxruntime.accelerator-precision",
    "warning",
    "for TensorRT 11, which has strongly typed networks alone, the graph's dtypes are the precision",
    "release notes of TensorRT 11.0 (weakly typed networks are gone)",
)

RULES: tuple[Rule, ...] = (
    *(ACCELERATOR, PARAMETER, UNUSED, PROFILE, PROFILE_NAMES, NO_PROFILE),
    *(CACHE, VERSION, PRECISION),
)

_SHAPES = {which: f"trt_profile_{which}_shapes" for which in ("min", "opt", "max")}
_SHAPE = re.compile(r"(?P<name>.+):(?P<dims>\d+(x\d+)*)")
_OF_GPUS = {"cudnn_conv_algo_search": ("0", "1", "2"), "arena_extend_strategy": ("0", "1")}
_FIRST_WITH_11 = (1, 27)


def check(model: ModelFolder, surroundings: CheckContext, facts: GraphFacts | None) -> Iterator[Finding]:
    """Yield rule violations of a model of this backend.

    Args:
        model: the model.
        surroundings: what it is checked against.
        facts: of the graph of its newest version; None where it cannot be read.
    """
    config = model.config
    if config is None:
        return
    for key, value in sorted(config.parameters.items()):
        try:
            settings.check_parameter(key, value.string_value)
            problem = _gpu_problem(key, value.string_value) if _may_be_on_gpus(model, surroundings) else ""
        except settings.Illegal as illegal:
            problem = str(illegal)
        if problem:
            yield _broken(PARAMETER, model, key, f"parameter {key}: {problem}", "correct the value, or leave it out")
    accelerators = config.optimization.execution_accelerators
    for accelerator in accelerators.cpu_execution_accelerator:
        yield from _legal(model, accelerator, on_gpu=False)
    if accelerators.gpu_execution_accelerator and not _may_be_on_gpus(model, surroundings):
        message = "the accelerators for GPUs are not used, as no instance runs on one"
        yield _broken(UNUSED, model, "gpu_execution_accelerator", message, "write KIND_GPU, or take them away")
        return
    for accelerator in accelerators.gpu_execution_accelerator:
        yield from _legal(model, accelerator, on_gpu=True)
        if accelerator.name == "tensorrt":
            yield from _tensorrt(model, dict(accelerator.parameters), facts)
            yield from _of_target(model, dict(accelerator.parameters), surroundings)


def _may_be_on_gpus(model: ModelFolder, surroundings: CheckContext) -> bool:
    written = {*kinds(model.config)}
    on_cpu = surroundings.target is not None and surroundings.target.device == "cpu"
    return "KIND_GPU" in written or (not on_cpu and (not written or "KIND_AUTO" in written))


def _gpu_problem(key: str, value: str) -> str:
    """The problem with a parameter that the backend reads only for GPU instances; empty where there is none."""
    choices = _OF_GPUS.get(key)
    return f"{value!r} is none of {', '.join(choices)}" if choices is not None and value not in choices else ""


def _legal(
    model: ModelFolder, accelerator: pb.ModelOptimizationPolicy.ExecutionAccelerators.Accelerator, *, on_gpu: bool
) -> Iterator[Finding]:
    name = accelerator.name
    try:
        if not on_gpu:
            settings.check_cpu_accelerator(name)
            return
        settings.check_gpu_accelerator(name)
    except settings.Illegal as illegal:
        choices = "tensorrt or cuda" if on_gpu else "openvino"
        yield _broken(ACCELERATOR, model, f'"{name}"', str(illegal), f"name {choices}, or take it away")
        return
    for key, value in sorted(accelerator.parameters.items()):
        try:
            settings.check_gpu_accelerator(name, key, value)
        except settings.Illegal as illegal:
            yield _broken(ACCELERATOR, model, key, f"{key}: {illegal}", "correct it, or take it away")


def _tensorrt(model: ModelFolder, options: Mapping[str, str], facts: GraphFacts | None) -> Iterator[Finding]:
    """Check the TensorRT accelerator: whether the profile fits the graph, and whether engines are cached."""
    if not settings.is_true(options.get("trt_engine_cache_enable", "")):
        message = "nothing that the TensorRT accelerator builds is kept, so that every start builds it again"
        yield _broken(CACHE, model, '"tensorrt"', message, "set trt_engine_cache_enable and trt_engine_cache_path")
    varying = {
        tensor.name: tensor
        for tensor in (facts.inputs if facts is not None else ())
        if any(isinstance(dim, str) for dim in tensor.dims)
    }
    written = {which: options[key] for which, key in _SHAPES.items() if options.get(key)}
    if not written:
        if varying:
            message = f"{', '.join(varying)} vary, and the TensorRT accelerator has no profile for them"
            yield _broken(NO_PROFILE, model, '"tensorrt"', message, f"write {', '.join(_SHAPES.values())}")
        return
    for rule, problem in _profile_problems(written, varying, facts):
        remedy = "write all three as name:1x3x224x224, joined by commas, for every input that varies"
        yield _broken(rule, model, "trt_profile_", problem, remedy)


def _profile_problems(
    written: Mapping[str, str], varying: Mapping[str, object], facts: GraphFacts | None
) -> list[tuple[Rule, str]]:
    """The problems of a profile, each with the rule it violates."""
    absent = [key for which, key in _SHAPES.items() if which not in written]
    if absent:
        return [(PROFILE, f"{', '.join(absent)} is not written, which goes with the others")]
    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    for which, text in written.items():
        for part in text.split(","):
            match = _SHAPE.fullmatch(part.strip())
            if match is None:
                return [(PROFILE, f"{_SHAPES[which]}: {part.strip()!r} is not name:1x3x224x224")]
            shapes.setdefault(match["name"], {})[which] = tuple(map(int, match["dims"].split("x")))
    problems = [
        (PROFILE_NAMES, f"no profile has {name}, which varies: right only where TensorRT does not get it")
        for name in varying
        if name not in shapes
    ]
    for name, ranges in shapes.items():
        if wrong := _shape_problem(name, ranges, facts):
            problems.append((PROFILE, wrong))
        elif facts is not None and name not in facts.values:
            problems.append((PROFILE_NAMES, f"the profile names {name}, of which the graph has nothing"))
    return problems


def _shape_problem(name: str, ranges: Mapping[str, tuple[int, ...]], facts: GraphFacts | None) -> str:
    """The problem with the shapes of an input; empty where there is none."""
    absent = [_SHAPES[which] for which in _SHAPES if which not in ranges]
    if absent:
        return f"{name} is not in {', '.join(absent)}"
    low, usual, high = (ranges[which] for which in _SHAPES)
    if not len(low) == len(usual) == len(high):
        return f"the shapes of {name} have different ranks"
    if any(not a <= b <= c for a, b, c in zip(low, usual, high, strict=True)):
        return f"the shapes of {name} are not min <= opt <= max in every dim"
    tensors = facts.tensors if facts is not None else {}
    if facts is not None and name in facts.shaped and len(tensors[name].dims) != len(low):
        return f"the profile of {name} has {len(low)} dims, and the graph {format_config_dims(tensors[name].dims)}"
    return ""


def _of_target(model: ModelFolder, options: Mapping[str, str], surroundings: CheckContext) -> Iterator[Finding]:
    target = surroundings.target
    if target is None or numbers_of(target.tensorrt or "")[:1] < (NEWEST_MAJOR,):
        return
    runtime = target.onnxruntime
    if runtime is not None and numbers_of(runtime.version)[:2] < _FIRST_WITH_11:
        message = (
            f"{target.name} has TensorRT {target.tensorrt}, which its ONNX Runtime {runtime.version} does not know"
        )
        yield _broken(VERSION, model, '"tensorrt"', message, "take another --target, or leave the accelerator out")
    if options.get("precision_mode", "FP32") != "FP32":
        message = (
            f"precision_mode {options['precision_mode']} asks TensorRT {target.tensorrt} for what only 10 could do"
        )
        remedy = f"lower the graph itself (plansmith compile --precision {options['precision_mode'].lower()})"
        yield _broken(PRECISION, model, "precision_mode", message, remedy)


def _broken(rule: Rule, model: ModelFolder, phrase: str, message: str, remedy: str) -> Finding:
    return rule.broken(message, model=model.name, place=model.place(), line=model.line_of(phrase), remedy=remedy)
