"""Relative positions of a sequence that is pooled, from its length alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plansmith.compilers.export.rewrites.base import EVERY, Rewrite
from plansmith.compilers.export.rewrites.names import attributes_set

if TYPE_CHECKING:
    import torch

_EMBEDS = "get_position_embeds"
_PARTS = (_EMBEDS, "stride_pool_pos", "relative_pos")


@dataclass(frozen=True)
class Positions:
    """A first position, and after it `count` others from `start` on, `step` apart; the count may be symbolic."""

    first: int
    start: int
    step: int
    count: Any

    @property
    def last(self) -> Any:
        """The last one."""
        return self.start + self.step * (self.count - 1)

    def pooled(self, level: int, config: Any) -> Positions:
        """Every second one, beside the mark at the front where that is kept apart."""
        if not config.separate_cls:
            return Positions(self.first, self.first + 2 * self.step, 2 * self.step, self.count // 2)
        left = self.count - 1 if config.truncate_seq else self.count
        return Positions(1 - 2**level, self.start, 2 * self.step, (left + 1) // 2)


def _is_pooling(part: Any) -> bool:
    return all(hasattr(part, name) for name in _PARTS)


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
        found = []
        for level in range(config.num_blocks):
            pooling = None
            if level:
                pooled = positions.pooled(level, config)
                pooling = distances(positions, pooled, 2 ** (level - 1), 2)
                positions = pooled
            found.append([distances(positions, positions, 2**level, 1), pooling])
        return found

    return embed


def _structures(module: torch.nn.Module) -> list[Any]:
    return [part for part in module.modules() if _is_pooling(part)]


REWRITES = (
    Rewrite(
        name="positions from lengths",
        reason="lists of Python with every position of a sequence have the length that was traced",
        link="https://github.com/huggingface/transformers/blob/main/src/transformers/models/funnel/modeling_funnel.py",
        exporters=EVERY,
        applies=lambda module: bool(_structures(module)),
        put=lambda module: attributes_set(_structures(module), _EMBEDS, _embedded),
    ),
)
