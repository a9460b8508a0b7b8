"""Rewrites of attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plansmith.compilers.export.rewrites.base import EVERY, Rewrite
from plansmith.compilers.export.rewrites.functions import FunctionRewrite
from plansmith.compilers.export.rewrites.names import attributes_set

if TYPE_CHECKING:
    import torch

_FUSED = "fused_attn"


def _fused(module: torch.nn.Module) -> list[Any]:
    return [part for part in module.modules() if getattr(part, _FUSED, False) is True]


_WINDOWS = ("sliding_window", "attention_window_size", "attention_chunk_size", "local_attention")
"""What configurations of transformers call a window that attention is kept to."""


def _may_see_nothing(module: torch.nn.Module) -> bool:
    """Whether padding may lie further from a text than its model sees, with plain attention in place of fused."""
    parts = [part for part in module.modules() if getattr(part, "_supports_sdpa", False) and hasattr(part, "config")]
    return any(
        any(getattr(part.config, name, None) for name in _WINDOWS)
        and getattr(part.config, "_attn_implementation", None) == "eager"
        for part in parts
    )


def weights_of_seen(scores: Any, dim: Any = None, *_: Any, dtype: Any = None, **__: Any) -> Any:
    """`softmax` of [batch, heads, queries, keys], with no weight where a mask hides every key, as fused attention."""
    import torch

    if scores.dim() != 4 or dim != -1:
        return NotImplemented
    hidden = scores.amax(-1, keepdim=True) <= torch.finfo(scores.dtype).min / 2
    return torch.softmax(scores, -1, dtype=dtype).masked_fill(hidden, 0)


FUNCTIONS = (
    FunctionRewrite(
        name="no weight on what is hidden",
        reason="plain attention spreads its weight evenly where a mask hides every key, and fused attention gives"
        " zeros",
        link="https://github.com/pytorch/pytorch/pull/131060",
        exporters=EVERY,
        functions=("softmax", "nn.functional.softmax", "Tensor.softmax"),
        form=weights_of_seen,
        applies=_may_see_nothing,
    ),
)

REWRITES = (
    Rewrite(
        name="plain attention of timm",
        reason="matrix products and a softmax in place of fused attention: fewer nodes, the pattern that TensorRT and"
        " ONNX Runtime fuse, and no fused attention of five dims, which has no translation",
        link="https://github.com/pytorch/pytorch/issues/127523",
        exporters=EVERY,
        applies=lambda module: bool(_fused(module)),
        put=lambda module: attributes_set(_fused(module), _FUSED, lambda _: False),
    ),
)
