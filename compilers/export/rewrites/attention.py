"""Attention rewrites: masks, windows and relative positions."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plansmith.compilers.export.rewrites.base import EVERY, Rewrite, attributes_set
from plansmith.compilers.export.rewrites.functions import FunctionRewrite

if TYPE_CHECKING:
    import torch


_FUSED = "fused_attn"

_WINDOWS = ("sliding_window", "attention_window_size", "attention_chunk_size", "local_attention")
"""What configurations of transformers call a window that attention is kept to."""

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
_WINDOW_PARTS = ("query_global", "key_global", "value_global", "one_sided_attn_window_size")
_PADS = "_pad_to_window_size"
_EMBEDS = "get_position_embeds"
_POSITION_PARTS = (_EMBEDS, "stride_pool_pos", "relative_pos")
POSITION_REWRITES = (
    Rewrite(
        name="positions from lengths",
        reason="lists of Python with every position of a sequence have the length that was traced",
        link="https://github.com/huggingface/transformers/blob/main/src/transformers/models/funnel/modeling_funnel.py",
        exporters=EVERY,
        applies=lambda module: bool(_structures(module)),
        put=lambda module: attributes_set(_structures(module), _EMBEDS, _embedded),
    ),
)


def _fused(module: torch.nn.Module) -> list[Any]:
    return [part for part in module.modules() if getattr(part, _FUSED, False) is True]


def _may_see_nothing(module: torch.nn.Module) -> bool:
    """Whether padding may exceed a model's attention window, with eager in place of fused attention."""
    parts = [part for part in module.modules() if getattr(part, "_supports_sdpa", False) and hasattr(part, "config")]
    return any(
        any(getattr(part.config, name, None) for name in _WINDOWS)
        and getattr(part.config, "_attn_implementation", None) == "eager"
        for part in parts
    )


def weights_of_seen(scores: Any, dim: Any = None, *_: Any, dtype: Any = None, **__: Any) -> Any:
    """`softmax` of [batch, heads, queries, keys]; zero weights where a mask hides every key, as fused attention."""
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


def _is_windowed(part: Any) -> bool:
    return all(hasattr(part, name) for name in _WINDOW_PARTS)


def _applies(module: torch.nn.Module) -> bool:
    return any(_is_windowed(part) for part in module.modules())


@contextmanager
def _masked(module: torch.nn.Module) -> Iterator[None]:
    windowed = [part for part in module.modules() if _is_windowed(part)]
    padding = [part for part in module.modules() if hasattr(part, _PADS)]
    with attributes_set(windowed, "forward", _attention), attributes_set(padding, _PADS, _without_padding):
        yield


def _without_padding(part: Any) -> Callable[..., Any]:
    """A no-op in place of padding to whole windows; returns its arguments in order, as the original does."""
    signature = inspect.signature(getattr(part, _PADS))

    def pad(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        values = signature.bind(*args, **kwargs).arguments
        return (0, *(values.get(name) for name in signature.parameters if name != "pad_token_id"))

    return pad


def _attention(part: Any) -> Callable[..., Any]:
    def forward(
        hidden_states: Any, attention_mask: Any, is_index_masked: Any, is_index_global_attn: Any, **_: Any
    ) -> tuple[Any, ...]:
        """As LongformerSelfAttention.forward: hidden_states [batch, length, hidden], masks [batch, length]."""
        import torch

        def heads(states: Any) -> Any:
            return states.unflatten(-1, (part.num_heads, -1)).transpose(1, 2)

        lowest = torch.finfo(hidden_states.dtype).min
        scale = 1 / math.sqrt(part.head_dim)
        places = torch.arange(hidden_states.shape[1], device=hidden_states.device)
        near = (places[:, None] - places[None, :]).abs() <= part.one_sided_attn_window_size
        visible = near & (attention_mask == 0)[:, None, :] | is_index_global_attn[:, None, :]
        scores = heads(part.query(hidden_states) * scale) @ heads(part.key(hidden_states)).transpose(2, 3)
        weights = torch.softmax(scores.masked_fill(~visible[:, None], lowest), -1)
        weights = weights.masked_fill(is_index_masked[:, None, :, None], 0)
        local = weights @ heads(part.value(hidden_states))
        scores = heads(part.query_global(hidden_states) * scale) @ heads(part.key_global(hidden_states)).transpose(2, 3)
        weights = torch.softmax(scores.masked_fill(is_index_masked[:, None, None, :], lowest), -1)
        everywhere = weights @ heads(part.value_global(hidden_states))
        chosen = torch.where(is_index_global_attn[:, None, :, None], everywhere, local)
        return (chosen.transpose(1, 2).flatten(2),)

    return forward


WINDOW_REWRITES = (
    Rewrite(
        name="windowed attention by masks",
        reason="chunks by strides, global tokens by data-dependent indices and padding in a branch are written down as"
        " constants, or cannot be followed",
        link="https://github.com/huggingface/transformers/issues/13126",
        exporters=EVERY,
        applies=_applies,
        put=_masked,
    ),
)


@dataclass(frozen=True)
class Positions:
    """A first position, then `count` more from `start` on, `step` apart; the count may be symbolic."""

    first: int
    start: int
    step: int
    count: Any

    @property
    def last(self) -> Any:
        """The last position."""
        return self.start + self.step * (self.count - 1)

    def pooled(self, level: int, config: Any) -> Positions:
        """Return every second position, with the class token at the front if that is kept separate."""
        if not config.separate_cls:
            return Positions(self.first, self.first + 2 * self.step, 2 * self.step, self.count // 2)
        left = self.count - 1 if config.truncate_seq else self.count
        return Positions(1 - 2**level, self.start, 2 * self.step, (left + 1) // 2)


def _is_pooling(part: Any) -> bool:
    return all(hasattr(part, name) for name in _POSITION_PARTS)


def _embedded(part: Any) -> Callable[..., Any]:
    original = getattr(part, _EMBEDS)

    def embed(seq_len: Any, dtype: Any, device: Any) -> Any:
        """As FunnelAttentionStructure.get_position_embeds, where lists of Python hold every position."""
        import torch

        config = part.config
        if config.attention_type == "factorized":
            return original(seq_len, dtype, device)
        half = config.d_model // 2
        frequencies = 1 / (10000 ** (torch.arange(0, half, dtype=torch.int64, device=device).to(dtype) / half))

        def distances(positions: Positions, pooled: Positions, stride: int, shift: int) -> Any:
            reach = pooled.first - positions.first + shift * (pooled.count + 1) * stride
            places = torch.arange(reach, pooled.first - positions.last - 1, -stride, device=device)
            angles = places.to(dtype)[:, None] * frequencies[None]
            return torch.cat([torch.sin(angles), torch.cos(angles)], dim=-1)

        positions = Positions(0, 1, 1, seq_len - 1)
        pairs = []
        for level in range(config.num_blocks):
            pooling = None
            if level:
                pooled = positions.pooled(level, config)
                pooling = distances(positions, pooled, 2 ** (level - 1), 2)
                positions = pooled
            pairs.append([distances(positions, positions, 2**level, 1), pooling])
        return pairs

    return embed


def _structures(module: torch.nn.Module) -> list[Any]:
    return [part for part in module.modules() if _is_pooling(part)]
