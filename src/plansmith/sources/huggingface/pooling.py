"""The ways in which sentence-transformers makes one vector of the vectors of tokens; padding on either side.

Written after its `Pooling` module, in operations that every exporter and ONNX Runtime knows for the dtypes used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")

_FEWEST = 1
"""Weights are whole: a sum below this is of nothing but padding. (The package's own bound is 0 in FP16.)"""


def pool(mode: str, tokens: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """One vector a sample.

    Args:
        mode: one of MODES.
        tokens: [batch, sequence, width].
        mask: [batch, sequence], 0 where there is padding; None: there is none.
    """
    import torch

    counted = torch.ones_like(tokens[..., 0]) if mask is None else mask.to(tokens.dtype)
    if mode == "cls":
        return _at(tokens, counted.argmax(dim=1))
    if mode == "lasttoken":
        places = torch.arange(1, tokens.shape[1] + 1, device=tokens.device, dtype=tokens.dtype)
        last = (counted * places).argmax(dim=1)
        return _at(tokens * counted.unsqueeze(-1), last)
    if mode == "max":
        return tokens.masked_fill(counted.unsqueeze(-1) == 0, float("-inf")).amax(dim=1)
    if mode == "weightedmean":
        # The first token weighs one, the next two: counted from the first that is no padding.
        places = torch.arange(1, tokens.shape[1] + 1, device=tokens.device, dtype=tokens.dtype)
        counted = counted * (places - counted.argmax(dim=1, keepdim=True).to(tokens.dtype))
    weight = counted.sum(dim=1, keepdim=True).clamp(min=_FEWEST)
    total = (tokens * counted.unsqueeze(-1)).sum(dim=1)
    return total / (weight.sqrt() if mode == "mean_sqrt_len_tokens" else weight)


def _at(tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The vector of one token of every sample."""
    where = places.reshape(-1, 1, 1).expand(-1, 1, tokens.shape[-1])
    return tokens.gather(1, where).squeeze(1)
