"""Pooling: reduces the token vectors of a text to one vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..requests import Arrays, Refusal

EMBEDDING = "sentence_embedding"


class PoolingStep:
    """Pooling step: the mean of the token vectors without padding, or the first one.

    Settings:
        tokens: name of the model's output [batch, tokens, width].
        mask: name of the mask of padding [batch, tokens], or None where the model knows none.
        mode: "mean" or "first".
    """

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        del folder
        self._tokens, self._mask = settings["tokens"], settings["mask"]
        self._pool = {"mean": _mean, "first": _first}[settings["mode"]]

    def answer(self, feeds: Sequence[Arrays]) -> list[Arrays | Refusal]:
        """Return `sentence_embedding` [batch, width] of float32."""
        answers: list[Arrays | Refusal] = []
        for feed in feeds:
            tokens = feed[self._tokens].astype(np.float32)
            mask = np.ones(tokens.shape[:2], bool) if self._mask is None else feed[self._mask] != 0
            answers.append({EMBEDDING: self._pool(tokens, mask)})
        return answers


def _mean(tokens: np.ndarray[Any, Any], mask: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    total = np.where(mask[..., None], tokens, 0).sum(axis=1, dtype=np.float32)
    mean: np.ndarray[Any, Any] = total / np.maximum(mask.sum(axis=1, keepdims=True), 1).astype(np.float32)
    return mean


def _first(tokens: np.ndarray[Any, Any], mask: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    vectors: np.ndarray[Any, Any] = tokens[np.arange(len(tokens)), mask.argmax(axis=1)]
    return vectors
