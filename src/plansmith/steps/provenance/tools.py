"""The tools of the steps that a compile goes through, as far as its spec tells: versions, and digests of our code."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from plansmith.config.source_reference import SourceReference, is_model_scheme
from plansmith.config.spec import ModelSpec
from plansmith.config.target.targets import load_target
from plansmith.errors import EngineError, EnvironmentFault
from plansmith.records.model import EngineKind, Precision
from plansmith.steps.cache import toolchain
from plansmith.system import gpus
from plansmith.system.digest import digest_of
from plansmith.system.gpu_catalog import kind_of
from plansmith.triton.server.runtime import find_serving_runtime

CODE_OF = "code of "
"""Begins the name of a step of plansmith's own among the tools."""

GPUS, SERVER = "GPU kinds", "server of the last check"
"""Name what this machine has among the tools."""

STANDING_IN = " in place of Triton's own"
"""Ends the words about a server whose backend is not the real one."""

_Parts = tuple[tuple[str, tuple[str, ...]], ...]
"""Steps, and the names that `toolchain` has for what they do."""

_CHOOSE_GPUS = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")


def tools_of(spec: ModelSpec, reference: SourceReference, relative_to: Path) -> dict[str, str]:
    """By distribution its version, empty where it is not installed here; by step, as "code of export", a digest.

    With them, as far as the spec leaves it to the machine: the kinds of GPU that plans are for (`GPUS`), and the Triton
    that checks the release (`SERVER`); empty where there is none.

    Args:
        spec: what is wanted.
        reference: its source.
        relative_to: the folder that paths in it start from.
    """
    found = dict(_tools(tuple(_parts(spec, reference))))
    is_half = spec.precision not in {Precision.FP32, Precision.INT8, Precision.FP8}
    lowers = is_half and spec.engine is not EngineKind.PYTHON
    if spec.lowering.autocast and lowers:
        found |= _environment(str((relative_to / spec.lowering.autocast).absolute()))
    if spec.engine is EngineKind.TENSORRT and not spec.tensorrt.gpus:
        found[GPUS] = _kinds_here(*(os.environ.get(name, "") for name in _CHOOSE_GPUS))
    if spec.check_served:
        found[SERVER] = _server_here(spec)
    return found


@cache
def _kinds_here(*_chosen: str) -> str:
    """The kinds of the GPUs that are left to this process; those of a machine stay while a process lives."""
    try:
        return ", ".join(sorted({kind_of(gpu).name for gpu in gpus.visible_gpus()}))
    except EnvironmentFault:
        return ""  # a compile says what is wrong


def _server_here(spec: ModelSpec) -> str:
    """The Triton of this machine that would check a release, and what answers in it."""
    try:
        runtime = find_serving_runtime(spec.tritonserver, load_target(spec.target), spec.engine)
    except (EnvironmentFault, EngineError):
        return ""  # a compile says what is wrong
    triton = f"Triton {runtime.installation.version}".strip()
    return f"{triton} with {runtime.words}{STANDING_IN}" if runtime.site else f"{triton}, {runtime.words}"


def _parts(spec: ModelSpec, reference: SourceReference) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The steps that decide something.

    A model's own folder is fetched by looking at it. Whether a graph came lowered is seen in the graph alone: with such
    a one no step lowers it, and its samples and tools are counted all the same. So are those of every kind of model
    that a registry or bucket may have: which one it is, its files tell.
    """
    is_graph, is_python = reference.scheme == "onnx", spec.engine is EngineKind.PYTHON
    is_registered = not is_model_scheme(reference.scheme)
    if is_graph:
        yield "fetch", ("graph_files",)
    elif is_registered:
        yield "fetch", ("in_bucket" if reference.scheme == "s3" else "registered", "graph_files")
    elif spec.random_weights or (reference.scheme == "timm" and reference.path is None):
        yield "fetch", ("fetch",)
    if is_registered and not is_python:
        yield "export", ("export", "import_onnx")
    else:
        yield "export", ("import_onnx" if is_graph else "run_reference" if is_python else "export",)
    lowers = spec.precision is not Precision.FP32 and not is_python
    if spec.data is not None or lowers:
        yield "sample", ("sample",)
    if lowers:
        yield "lower", ("lower",)
    builds_plan = spec.engine is EngineKind.TENSORRT
    ending = "_python" if is_python else ""
    plan_tools = ("plan_graph", "plan_lint", "plan", *(["plan_check"] if spec.tensorrt.check_build else []))
    yield "compile", plan_tools if builds_plan else (f"compile{ending}",)
    yield "validate", ("measure",) if builds_plan else (f"validate{ending}",)
    if spec.pipeline is not None:
        yield "join", ("join",)
        if spec.pipeline.script:
            yield "script", ("script",)
    yield "package", ("package",)
    if spec.check_served:
        yield "check_served", (f"check_served{ending}",)


@cache
def _tools(parts: _Parts) -> dict[str, str]:
    """Versions and digests do not change while this process lives: it has the code already."""
    versions: dict[str, str] = {}
    codes: dict[str, str] = {}
    for step, names in parts:
        found = [toolchain.step_toolchain(name) for name in names]
        codes[f"{CODE_OF}{step}"] = digest_of([tools.pop("code") for tools in found])
        for tools in found:
            versions |= tools
    return dict(sorted(versions.items())) | codes


@cache
def _environment(interpreter: str) -> dict[str, str]:
    """The distributions of another Python that lowers graphs, which one process asks once."""
    return {f"{name} of {interpreter}": number for name, number in toolchain.environment(interpreter).items()}
