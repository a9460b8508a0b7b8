"""Rewrites of functions of torch that put values at places which data tell."""

from __future__ import annotations

from typing import Any

from plansmith.compilers.export.rewrites.base import TRACER
from plansmith.compilers.export.rewrites.functions import FunctionRewrite


def reduced_apart(input: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True) -> Any:  # noqa: A002
    """`scatter_reduce` without what stood there: sums and counts, or bounds that every value is within."""
    import torch

    if include_self or not input.is_floating_point() or reduce not in {"sum", "mean", "amax", "amin"}:
        return NotImplemented
    count = torch.zeros_like(input).scatter_add(dim, index, torch.ones_like(src))
    if reduce in {"sum", "mean"}:
        found = torch.zeros_like(input).scatter_add(dim, index, src)
        found = found / count.clamp(min=1) if reduce == "mean" else found
    else:
        known = torch.finfo(input.dtype)
        bound = torch.full_like(input, known.min if reduce == "amax" else known.max)
        found = bound.scatter_reduce(dim, index, src, reduce)
    return torch.where(count > 0, found, input)


REWRITES = (
    FunctionRewrite(
        name="scattering by sums and counts",
        reason="the tracer has no translation of scatter_reduce without what stood there, nor of its means",
        link="https://github.com/pytorch/pytorch/blob/main/torch/onnx/_internal/torchscript_exporter/symbolic_opset16.py",
        exporters=TRACER,
        functions=("scatter_reduce", "Tensor.scatter_reduce"),
        form=reduced_apart,
    ),
)
