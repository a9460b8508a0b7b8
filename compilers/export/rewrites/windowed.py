"""Attention within a window, as Longformer's and its kin's: the same answers as one masked matrix product.

transformers cuts the sequence into overlapping chunks by strides, collects the tokens that attend to everything by
data-dependent indices, and pads the sequence to whole windows in a branch of Python: a tracer writes down the batch,
the length and the places that it saw, and torch.export cannot follow them. Masks say the same for every length. The
price is a product of every pair of positions, where chunks take those within two windows.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from plansmith.compilers.export.rewrites.base import EVERY, Rewrite
from plansmith.compilers.export.rewrites.names import attributes_set

if TYPE_CHECKING:
    import torch

_PARTS = ("query_global", "key_global", "value_global", "one_sided_attn_window_size")
_PADS = "_pad_to_window_size"


def _is_windowed(part: Any) -> bool:
    return all(hasattr(part, name) for name in _PARTS)


def _applies(module: torch.nn.Module) -> bool:
    return any(_is_windowed(part) for part in module.modules())


@contextmanager
def _masked(module: torch.nn.Module) -> Iterator[None]:
    windowed = [part for part in module.modules() if _is_windowed(part)]
    padding = [part for part in module.modules() if hasattr(part, _PADS)]
    with attributes_set(windowed, "forward", _attention), attributes_set(padding, _PADS, _without_padding):
        yield


def _without_padding(part: Any) -> Callable[..., Any]:
    """In place of padding to whole windows: nothing is added; as the original gives its arguments back, in order."""
    signature = inspect.signature(getattr(part, _PADS))

    def pad(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        given = signature.bind(*args, **kwargs).arguments
        return (0, *(given.get(name) for name in signature.parameters if name != "pad_token_id"))

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
        seen = near & (attention_mask == 0)[:, None, :] | is_index_global_attn[:, None, :]
        scores = heads(part.query(hidden_states) * scale) @ heads(part.key(hidden_states)).transpose(2, 3)
        weights = torch.softmax(scores.masked_fill(~seen[:, None], lowest), -1)
        weights = weights.masked_fill(is_index_masked[:, None, :, None], 0)
        local = weights @ heads(part.value(hidden_states))
        scores = heads(part.query_global(hidden_states) * scale) @ heads(part.key_global(hidden_states)).transpose(2, 3)
        weights = torch.softmax(scores.masked_fill(is_index_masked[:, None, None, :], lowest), -1)
        everywhere = weights @ heads(part.value_global(hidden_states))
        chosen = torch.where(is_index_global_attn[:, None, :, None], everywhere, local)
        return (chosen.transpose(1, 2).flatten(2),)

    return forward


REWRITES = (
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
