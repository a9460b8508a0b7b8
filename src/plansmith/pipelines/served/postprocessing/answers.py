"""Extractive question answering: turns a reader's logits into the most likely answer span of the context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..requests import Arrays, Refusal
from .labels import texts

ANSWER, SCORE, START, END = "answer", "score", "start", "end"

LONGEST, CANDIDATES = 15, 12
"""Most tokens of an answer, and how many of the likeliest spans are looked at, as transformers did it."""


class AnswersStep:
    """Question answering step like the pipeline of transformers 4: one span, whole words.

    Settings:
        starts, ends: names of the model's outputs [batch, tokens].
        ids: name of the tokens' ids [batch, tokens].
        spans: name of where the word of each token stands in the context [batch, tokens, 2], below 0 elsewhere.
        context: name of the texts that hold the answers [batch, 1].
        nothing: id of the token that stands for "no answer" and has its share of the likelihood, or None.
    """

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        del folder
        self._names = [settings[name] for name in ("starts", "ends", "ids", "spans", "context")]
        self._nothing = settings["nothing"]

    def answer(self, feeds: Sequence[Arrays]) -> list[Arrays | Refusal]:
        """Return `answer`, `score` (float32), `start` and `end` (int32, characters of the context), all [batch, 1]."""
        return [self._answers(feed) for feed in feeds]

    def _answers(self, feed: Arrays) -> Arrays:
        starts, ends, ids, spans, contexts = (feed[name] for name in self._names)
        placed = spans[..., 0] >= 0
        share = placed if self._nothing is None else placed | (ids == self._nothing)
        starts, ends = (_likelihood(logits, share) * placed for logits in (starts, ends))
        rows = [
            _best(start, end, span, bytes(context).decode())
            for start, end, span, context in zip(starts, ends, spans, contexts.reshape(-1), strict=True)
        ]
        return {
            ANSWER: texts([row[0].encode() for row in rows]).reshape(-1, 1),
            SCORE: np.array([[row[1]] for row in rows], np.float32),
            START: np.array([[row[2]] for row in rows], np.int32),
            END: np.array([[row[3]] for row in rows], np.int32),
        }


def _likelihood(logits: np.ndarray[Any, Any], share: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return softmax probabilities of the permitted tokens; 0 for others, and for rows without any."""
    masked_logits = np.where(share, logits.astype(np.float64), -np.inf)
    highest = masked_logits.max(axis=-1, keepdims=True)
    powers = np.where(share, np.exp(masked_logits - np.where(np.isfinite(highest), highest, 0)), 0)
    total = powers.sum(axis=-1, keepdims=True)
    shares: np.ndarray[Any, Any] = powers / np.where(total > 0, total, 1)
    return shares


def _best(
    start: np.ndarray[Any, Any], end: np.ndarray[Any, Any], spans: np.ndarray[Any, Any], context: str
) -> tuple[str, float, int, int]:
    """Return text, score, begin and end; spans with the same text, ignoring case, are merged."""
    count = len(start)
    scores = np.zeros((min(LONGEST, count), count))
    for more in range(len(scores)):
        scores[more, : count - more] = start[: count - more] * end[more:]
    flat = scores.reshape(-1)
    limit = min(CANDIDATES, len(flat))
    order = np.argpartition(-flat, limit - 1)[:limit]
    answers: dict[str, tuple[str, float, int, int]] = {}
    for place in order[np.argsort(-flat[order], kind="stable")]:
        score = float(flat[place])
        if score > 0:
            more, first = divmod(int(place), count)
            low, high = int(spans[first, 0]), int(spans[first + more, 1])
            text = context[low:high]
            entry = answers.get(text.lower(), (text, 0.0, low, high))
            answers[text.lower()] = (entry[0], entry[1] + score, entry[2], entry[3])
    return max(answers.values(), key=lambda answer: answer[1], default=("", 0.0, 0, 0))
