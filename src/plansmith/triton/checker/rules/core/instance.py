"""Triton core rules on instance groups: kinds, GPUs, counts, resources; `config.*` of instances."""

from __future__ import annotations

from collections.abc import Iterator

from plansmith.triton.checker.findings import Finding, Rule
from plansmith.triton.checker.model_folder import CheckContext, ModelFolder, enum_name

_INSTANCES = "core: src/model_config_utils.cc, NormalizeInstanceGroup and ValidateInstanceGroup"

GPUS = Rule(
    "config.instance-gpus",
    "error",
    "instances that run on the CPU, or where the model says (KIND_MODEL), name no GPUs",
    f"{_INSTANCES}; Triton 2.51 was seen to do so",
)
NO_GPU = Rule(
    "config.instance-without-gpu",
    "error",
    "a model for a target without GPUs has no instances on GPUs: neither KIND_GPU, nor KIND_AUTO that names GPUs",
    f"{_INSTANCES}; Triton 2.51 was seen to do so",
)
DEFAULT_COUNT = Rule(
    "config.instance-count",
    "note",
    "the number of an instance group's instances is written: Triton's choice differs between backends",
    "core: src/model_config_utils.cc, SetDefaultInstanceCount: 2 on the CPU for ONNX Runtime, 1 elsewhere",
)
NEGATIVE_COUNT = Rule(
    "config.instance-count-negative",
    "warning",
    "the number of an instance group's instances is not negative: Triton makes its default of it",
    f"{_INSTANCES}; Triton 2.51 was seen to do so",
)
RATE_LIMIT = Rule(
    "config.rate-limiter-off",
    "note",
    "resources of the rate limiter count where the server is started with --rate-limit=execution_count",
    "server: docs/user_guide/rate_limiter.md",
)
RULES: tuple[Rule, ...] = (GPUS, NO_GPU, DEFAULT_COUNT, NEGATIVE_COUNT, RATE_LIMIT)


def check(model: ModelFolder, surroundings: CheckContext) -> Iterator[Finding]:
    """Yield problems with instance groups: devices and counts."""
    if model.config is None:
        return
    on_cpu = surroundings.target is not None and surroundings.target.device == "cpu"
    for group in model.config.instance_group:
        kind = enum_name(type(group).Kind, group.kind)
        if group.gpus and group.kind in {group.KIND_CPU, group.KIND_MODEL}:
            yield model.faulted(
                GPUS, f"instances of {kind} name GPUs", kind, remedy="take `gpus` out, or write kind: KIND_GPU"
            )
        if on_cpu and (group.kind == group.KIND_GPU or (group.kind == group.KIND_AUTO and group.gpus)):
            target = surroundings.target.name if surroundings.target is not None else ""
            yield model.faulted(
                NO_GPU,
                f"instances of {kind}{' that name GPUs' if group.gpus else ''} are for a GPU, and {target} has none",
                kind if kind in model.text else "gpus",
                remedy="write kind: KIND_CPU, or pass the --target that has GPUs",
            )
        if group.count < 0:
            yield model.faulted(NEGATIVE_COUNT, f"count is {group.count}", "count", remedy="write count: 1, or more")
    if surroundings.target is None or on_cpu:
        yield from _default_count(model)
    limited = any(group.rate_limiter.resources for group in model.config.instance_group)
    if limited and "execution_count" not in surroundings.argument("rate-limit"):
        yield model.faulted(
            RATE_LIMIT,
            "the resources of the rate limiter are passed over unless the server is told to mind them",
            "rate_limiter",
            remedy="start Triton with --rate-limit=execution_count (and tell this check by --server-argument)",
        )


def _default_count(model: ModelFolder) -> Iterator[Finding]:
    assert model.config is not None
    groups = model.config.instance_group
    may_be_cpu = not groups or any(g.kind in {g.KIND_CPU, g.KIND_AUTO} and not g.count for g in groups)
    if model.backend == "onnxruntime" and may_be_cpu:
        yield model.faulted(
            DEFAULT_COUNT,
            "on a CPU, Triton makes two instances of an ONNX Runtime model whose number of instances is not written",
            "instance_group",
            remedy="write instance_group [ { kind: KIND_CPU count: 1 } ], or the number that you want",
        )
