"""Classification: turns logits into class names and scores, most likely first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..requests import Arrays, Refusal

LABEL, SCORE = "label", "score"


class LabelsStep:
    """Label step: gives the best classes of every row.

    Settings:
        logits: name of the model's output [batch, classes].
        labels: names of the classes, in their order.
        top_k: how many an answer has.
        apply: what makes scores of logits: "softmax", "sigmoid" or "none".
    """

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        del folder
        self._logits, self._count = settings["logits"], settings["top_k"]
        self._apply = _FUNCTIONS[settings["apply"]]
        self._labels = texts([name.encode() for name in settings["labels"]])

    def answer(self, feeds: Sequence[Arrays]) -> list[Arrays | Refusal]:
        """Return `label` [batch, k] and `score` [batch, k] of float32; ties are ordered by class."""
        return [self._best(feed[self._logits].astype(np.float32)) for feed in feeds]

    def _best(self, logits: np.ndarray[Any, Any]) -> Arrays:
        scores = self._apply(logits)
        order = np.argsort(-scores, axis=-1, kind="stable")[:, : self._count]
        return {LABEL: self._labels[order], SCORE: np.take_along_axis(scores, order, axis=-1)}


class ScoresStep:
    """Score step: gives the scores of all classes.

    Settings:
        logits, apply: as for `LabelsStep`.
    """

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        del folder
        self._logits, self._apply = settings["logits"], _FUNCTIONS[settings["apply"]]

    def answer(self, feeds: Sequence[Arrays]) -> list[Arrays | Refusal]:
        """Return `score` [batch, classes] of float32."""
        return [{SCORE: self._apply(feed[self._logits].astype(np.float32))} for feed in feeds]


def softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the softmax over the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares: np.ndarray[Any, Any] = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def texts(values: Sequence[bytes]) -> np.ndarray[Any, Any]:
    """Return texts as an object array, the form used in requests."""
    array = np.empty(len(values), object)
    array[:] = values
    return array


def sigmoid(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the logistic function."""
    with np.errstate(over="ignore"):  # an infinite power is a score of 0
        return np.asarray(1.0 / (1.0 + np.exp(-logits)), np.float32)


def _plain(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return logits


_FUNCTIONS = {"softmax": softmax, "sigmoid": sigmoid, "none": _plain}
