"""Weights into a transformers model, and whether they are what its configuration says. Runs in the worker."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.errors import SourceError, first_line

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel

_NUMBER = re.compile(r"\d+")
_NAMED = 3


def read_model(
    model_class: type[PreTrainedModel], config: PretrainedConfig, folder: Path, *, allow_pickle: bool, task: str
) -> PreTrainedModel:
    """A model with the weights of a directory, FP32, in eval mode.

    Args:
        model_class: of transformers, or the model's own.
        config: of the directory.
        folder: holds the weights.
        allow_pickle: whether pickled ones may be read.
        task: that was asked for; empty where the configuration decides.

    Raises:
        SourceError: weights are missing, left over, of another shape, or no numbers.
    """
    import torch

    try:
        loaded: Any = model_class.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            use_safetensors=None if allow_pickle else True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # told below, by name
            local_files_only=True,
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise SourceError(
            f"the weights do not fit config.json, or are not all there: {first_line(error)}",
            remedy="read the log for their names, and download or save the model again",
        ) from error
    model, info = loaded
    _require_shapes(info["mismatched_keys"], task)
    _require_all(model_class, sorted(info["missing_keys"]), task)
    _require_none_left(model, info["unexpected_keys"])
    require_finite(model.named_parameters())
    read: PreTrainedModel = model.eval()
    return read


def require_finite(weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    """See that every weight is a number.

    Raises:
        SourceError: names the first that is not.
    """
    import torch

    for name, tensor in weights:
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            wrong = int((~torch.isfinite(tensor)).sum())
            what = "NaN" if torch.isnan(tensor).any() else "Inf"
            raise SourceError(
                f"the weight {name} holds {what} ({wrong} of {tensor.numel()} values)",
                remedy="take a checkpoint from before the training diverged, or convert it again",
            )


def _require_shapes(mismatched: Sequence[tuple[str, Sequence[int], Sequence[int]]], task: str) -> None:
    if not mismatched:
        return
    name, found, wanted = min(mismatched)
    more = f", and {len(mismatched) - 1} more" if len(mismatched) > 1 else ""
    raise SourceError(
        f"config.json contradicts the weights: {name} is {list(found)} and should be {list(wanted)}{more}",
        remedy="it was trained for another number of classes: leave the task out"
        if task
        else "take config.json and the weights of the same model",
    )


def _require_all(model_class: type[PreTrainedModel], missing: Sequence[str], task: str) -> None:
    if not missing:
        return
    raise SourceError(
        f"the checkpoint lacks {len(missing)} weight(s) of {model_class.__name__}:"
        f" {', '.join(missing[:_NAMED])}{', …' if len(missing) > _NAMED else ''}",
        remedy="it was not trained for that task: leave the task out, or take a checkpoint that was"
        if task
        else "save the whole model again (save_pretrained), or mend `architectures` in config.json (--task)",
    )


def _require_none_left(model: PreTrainedModel, unexpected: Iterable[str]) -> None:
    """Layers that the configuration does not count would be left out without a word; other heads may be."""
    forms = {_NUMBER.sub("#", name) for name in model.state_dict() if _NUMBER.search(name)}
    left = sorted(name for name in unexpected if _NUMBER.sub("#", name) in forms)
    if left:
        raise SourceError(
            f"config.json contradicts the weights: the checkpoint has {len(left)} weight(s) more, such as {left[0]}",
            remedy="mend the numbers of layers in config.json, or take config.json and weights of the same model",
        )
