"""Models that compare images with texts, such as CLIP, in a form that batches: every image has texts of its own.

By itself such a model compares each image of a batch with all texts, which have a batch of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.records.model import BATCH, AxisRange
from plansmith.sources.directory import read_config
from plansmith.sources.huggingface.outputs import Answering, OutputTensor
from plansmith.sources.loaded_model import SEQUENCE

if TYPE_CHECKING:
    import torch

ZERO_SHOT = "zero-shot-image-classification"
"""The task, by the name of its pipeline in transformers."""

SCORES = "logits_per_image"
"""The output: of every image, the score of each of its texts."""

TEXT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""The inputs [batch, texts, tokens], as far as a model has them."""

_ARCHITECTURES = {"chinese_clip": "ChineseCLIPModel", "clip": "CLIPModel", "metaclip_2": "MetaClip2Model"}
"""By the type that a configuration names: the class that has both an image's and a text's encoder."""

_BATCH = AxisRange(min=1, opt=2, max=8)
_USUAL_LENGTH = 16
"""Tokens of a label in its sentence."""


def is_zero_shot(folder: Path, task: str) -> bool:
    """Whether the model of a directory tells which of the texts that come with an image fits it best.

    Args:
        folder: the model's.
        task: that was asked for; empty: none.

    Raises:
        SourceError: the configuration is no JSON.
    """
    config = read_config(folder)
    both = _ARCHITECTURES.get(str(config.get("model_type")))
    return both is not None and task in {"", ZERO_SHOT} and (config.get("architectures") or [both])[0] == both


def usual_axes(axes: Mapping[str, AxisRange]) -> dict[str, AxisRange]:
    """The ranges of a model's axes where every image has texts: fewer images, and texts as short as labels are."""
    length = axes[SEQUENCE]
    return {**axes, BATCH: _BATCH, SEQUENCE: length.model_copy(update={"opt": min(_USUAL_LENGTH, length.opt)})}


class ZeroShotAnswering(Answering):
    """Asks a model with images and the texts of each: `logits_per_image` is [batch, texts]."""

    def everything(self, feed: Mapping[str, torch.Tensor]) -> dict[str, OutputTensor]:
        """The scores.

        Raises:
            ValueError: the texts have no axis of their own.
        """
        import torch

        texts = {name: tensor for name, tensor in feed.items() if name in TEXT_INPUTS}
        if any(tensor.ndim != 3 for tensor in texts.values()):
            raise ValueError("every image has texts of its own")
        batch, count = texts[TEXT_INPUTS[0]].shape[:2]
        flat = {name: tensor.flatten(0, 1) for name, tensor in texts.items()}
        scores = super().everything({**feed, **flat})[SCORES].tensor
        rows = torch.arange(batch, device=scores.device)
        return {SCORES: OutputTensor(SCORES, scores.reshape(batch, batch, count)[rows, rows], nested=False)}
