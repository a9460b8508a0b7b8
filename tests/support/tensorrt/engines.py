"""Engines of plans, made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plansmith.records.engine import BuildSpec, Engine, OptimizationProfile, Plan, PlanTensor
from plansmith.records.model import (
    Component,
    Dim,
    EngineKind,
    InputRange,
    Precision,
    Tensor,
)
from plansmith.system.gpu_catalog import find_kind

LINEAR = "Row major linear FP32 format (kLINEAR)"


def profile(
    name: str = "default", *, values: Mapping[str, InputRange] | None = None, **shapes: str
) -> OptimizationProfile:
    """A profile of ranges such as "1x8:8x64:32x256"."""
    ranges = {}
    for tensor, text in shapes.items():
        low, usual, high = (tuple(map(int, shape.split("x"))) for shape in text.split(":"))
        ranges[tensor] = InputRange(min=low, opt=usual, max=high)
    return OptimizationProfile(name=name, shapes=ranges, values=dict(values or {}))


TWO_INPUTS = profile(ids="1x8:8x64:32x256", mask="1x8:8x64:32x256")


def tensor(name: str, dims: tuple[Dim, ...], dtype: str = "int64") -> Tensor:
    return Tensor(name=name, dtype=dtype, dims=dims)


IDS, MASK = tensor("ids", ("batch", "sequence")), tensor("mask", ("batch", "sequence"))


SCORES = tensor("scores", ("batch", 3), "float32")


def make_plan_tensor(tensor: Tensor, changes: Mapping[str, Any], *, is_input: bool) -> PlanTensor:
    """A tensor as the plan of a graph has it."""
    dims = tuple(-1 if isinstance(dim, str) else dim for dim in tensor.dims)
    return PlanTensor(name=tensor.name, is_input=is_input, dtype=tensor.dtype, dims=dims, format=LINEAR).model_copy(
        update=changes
    )


def engine(
    *gpus: str,
    inputs: Sequence[Tensor] = (IDS, MASK),
    outputs: Sequence[Tensor] = (SCORES,),
    profiles: Sequence[OptimizationProfile] = (TWO_INPUTS,),
    changes: Mapping[str, Mapping[str, Any]] | None = None,
    plan: Mapping[str, Any] | None = None,
    **flags: Any,
) -> Engine:
    """Plans for GPUs; `changes`: what the plans say otherwise than the graph, by tensor; `plan`: fields of each."""
    plan_tensors = tuple(
        make_plan_tensor(t, (changes or {}).get(t.name, {}), is_input=t in inputs) for t in (*inputs, *outputs)
    )
    plans = {}
    for kind in map(find_kind, gpus or ("L4",)):
        template = Plan(
            file=f"{kind.compute_capability}/model.plan",
            bytes=1,
            gpu=kind,
            tensorrt="10.16.0.72",
            builder="api",
            seconds=1,
            peak_host_bytes=None,
            peak_device_bytes=None,
            timing_cache="none",
            tensors=plan_tensors,
            profile_bytes=(),
            layers_file="layers.json",
            log="build.log",
            reproduce="reproduce.sh",
        )
        plans[kind.compute_capability] = template.model_copy(update=dict(plan or {}))
    component = Component(
        file="8.9/model.plan", external_files=(), inputs=tuple(inputs), outputs=tuple(outputs), opset=18, ir_version=8
    )
    return Engine(
        kind=EngineKind.TENSORRT,
        components={"model": component},
        precision=Precision.FP16,
        options={},
        toolchain={},
        build=BuildSpec.model_validate({"profiles": tuple(profiles), **flags}),
        plans=plans,
    )
