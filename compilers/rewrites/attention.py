"""Rewrites of attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from plansmith.compilers.rewrites.registry import EVERY, Rewrite

if TYPE_CHECKING:
    import torch

_FUSED = "fused_attn"


def _is_fused(module: torch.nn.Module) -> bool:
    return any(getattr(part, _FUSED, False) is True for part in module.modules())


@contextmanager
def _unfused(module: torch.nn.Module) -> Iterator[None]:
    parts: list[Any] = [part for part in module.modules() if getattr(part, _FUSED, False) is True]
    for part in parts:
        setattr(part, _FUSED, False)
    try:
        yield
    finally:
        for part in parts:
            setattr(part, _FUSED, True)


REWRITES = (
    Rewrite(
        name="plain attention of timm",
        reason="matrix products and a softmax in place of fused attention: fewer nodes, the pattern that TensorRT and"
        " ONNX Runtime fuse, and no fused attention of five dims, which has no translation",
        link="https://github.com/pytorch/pytorch/issues/127523",
        exporters=EVERY,
        applies=_is_fused,
        put=_unfused,
    ),
)
