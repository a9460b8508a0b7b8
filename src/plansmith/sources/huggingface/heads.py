"""Output heads from a model directory: class names, and the pooling of token vectors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from plansmith.data.labels import own_names
from plansmith.sources.directory import CONFIG_FILE, read_config, read_json

if TYPE_CHECKING:
    import torch


MODULES_FILE = "modules.json"
SIMILARITY = "sentence-similarity"

_POOLING_FILE = Path("1_Pooling") / CONFIG_FILE
_MODES: dict[str, Literal["mean", "first"]] = {
    "mean": "mean",
    "pooling_mode_mean_tokens": "mean",
    "cls": "first",
    "pooling_mode_cls_token": "first",
}

MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
_FEWEST = 1
"""Weights are whole: a sum below this is of nothing but padding. (The package's own bound is 0 in FP16.)"""


def class_names(folder: Path) -> dict[str, int]:
    """Return class names and their ids: of transformers (id2label) or timm (label_names); none if only defaults.

    Raises:
        SourceError: the configuration is no JSON.
    """
    config = read_config(folder)
    named = config.get("id2label")
    if isinstance(named, dict):
        return own_names({str(name): int(number) for number, name in named.items()})
    listed = config.get("label_names") or config.get("pretrained_cfg", {}).get("label_names")
    return {str(name): number for number, name in enumerate(listed)} if isinstance(listed, list) else {}


def applies_modules(folder: Path, task: str) -> bool:
    """Whether a sentence-transformers directory has modules after the encoder that are compiled with it.

    They are where no task is asked for, or that of comparing sentences; another task takes the encoder alone.

    Raises:
        SourceError: modules.json is no JSON.
    """
    path = folder / MODULES_FILE
    if task not in {"", SIMILARITY} or not path.is_file():
        return False
    listed = read_json(path)
    first = str(listed[0].get("type", "")) if isinstance(listed, list) and listed else ""
    return first.endswith(".Transformer") and len(listed) > 1


def pooling_of(folder: Path, task: str, outputs: Sequence[str]) -> Literal["none", "mean", "first"] | None:
    """Return how sentence-transformers pools this model's token vectors; None if undefined.

    "none" where the model itself gives what is pooled, and where it is a way that no single output can be compared by
    (the maximum, the last token, several).

    Args:
        folder: the model's.
        task: that was asked for; empty: none.
        outputs: those to keep; all when empty.

    Raises:
        SourceError: the file that says it is no JSON.
    """
    path = folder / _POOLING_FILE
    if applies_modules(folder, task) and (not outputs or "sentence_embedding" in outputs):
        return "none"
    if not path.is_file():
        return None
    config = read_json(path)
    mode = config.get("pooling_mode")
    if isinstance(mode, str):
        return _MODES.get(mode, "none")
    on = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    return _MODES.get(on[0], "none") if len(on) == 1 else "none"


def pool(mode: str, tokens: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Pool token vectors to one vector per sample.

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
    """Return the vector of one token of each sample."""
    where = places.reshape(-1, 1, 1).expand(-1, 1, tokens.shape[-1])
    return tokens.gather(1, where).squeeze(1)
