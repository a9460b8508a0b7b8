"""Zero-shot ranking: sorts the candidate texts of an image by score, highest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..requests import Arrays, Refusal
from .labels import LABEL, SCORE, softmax


class ZeroShotStep:
    """Zero-shot step: ranks the texts of every image.

    Settings:
        logits: name of the model's output [batch, texts].
        texts: name of the texts [batch, texts].
    """

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        """See the class; needs no other files in the folder."""
        del folder
        self._logits, self._texts = settings["logits"], settings["texts"]

    def answer(self, feeds: Sequence[Arrays]) -> list[Arrays | Refusal]:
        """Return `label` [batch, texts] and `score` [batch, texts] of float32; ties are ordered by text."""
        return [self._ranked(feed[self._logits].astype(np.float32), feed[self._texts]) for feed in feeds]

    def _ranked(self, logits: np.ndarray[Any, Any], texts: np.ndarray[Any, Any]) -> Arrays:
        scores = softmax(logits)
        order = np.argsort(-scores, axis=-1, kind="stable")
        return {
            LABEL: np.take_along_axis(texts, order, axis=-1),
            SCORE: np.take_along_axis(scores, order, axis=-1),
        }
