"""Fill-mask: turns a masked language model's logits into the likeliest tokens, and the text with each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from ..requests import Arrays, Refusal
from .decoding import clean_up
from .labels import softmax, texts

TOKEN, SCORE, SEQUENCE = "token", "score", "sequence"

_TOKENIZER_FILE = "tokenizer.json"


class FillMaskStep:
    """Fill-mask step like transformers' pipeline; each text has one mask.

    Settings:
        logits: name of the model's output [batch, tokens, vocabulary].
        ids: name of the tokens' ids [batch, tokens].
        mask: id of the mask token; `mask_token`: its text.
        padding: id of the token that fills rows up.
        top_k: how many tokens an answer has.
        cleaned: whether spaces before punctuation are taken away after decoding.
    """

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        """See the class; the tokenizer is in the folder."""
        self._settings = settings
        self._tokenizer = Tokenizer.from_file(str(folder / _TOKENIZER_FILE))

    def answer(self, feeds: Sequence[Arrays]) -> list[Arrays | Refusal]:
        """Return `token`, `score` (float32) and `sequence`, all [batch, k], the likeliest first."""
        return [self._filled(feed[self._settings["ids"]], feed[self._settings["logits"]]) for feed in feeds]

    def _filled(self, ids: np.ndarray[Any, Any], logits: np.ndarray[Any, Any]) -> Arrays | Refusal:
        settings = self._settings
        is_mask = ids == settings["mask"]
        counts = is_mask.sum(axis=1)
        wrong = np.flatnonzero(counts != 1)
        if len(wrong):
            return Refusal(
                f"text, row {wrong[0]}: {counts[wrong[0]]} times {settings['mask_token']} among the tokens that the"
                " model reads, and exactly one is filled"
            )
        scores = softmax(logits[is_mask].astype(np.float32))
        best = _best(scores, settings["top_k"])
        tokens = [self._text([number], bare=False) for number in best.reshape(-1).tolist()]
        sequences = [
            self._sequence(row, mask, number)
            for row, mask, numbers in zip(ids, is_mask, best, strict=True)
            for number in numbers
        ]
        return {
            TOKEN: texts(tokens).reshape(best.shape),
            SCORE: np.take_along_axis(scores, best, axis=1),
            SEQUENCE: texts(sequences).reshape(best.shape),
        }

    def _sequence(self, ids: np.ndarray[Any, Any], is_mask: np.ndarray[Any, Any], number: int) -> bytes:
        """Return a text with one token in place of its mask."""
        filled = np.where(is_mask, number, ids)
        return self._text(filled[filled != self._settings["padding"]].tolist(), bare=True)

    def _text(self, ids: Sequence[int], *, bare: bool) -> bytes:
        """Return decoded tokens; `bare`: without special tokens."""
        text = self._tokenizer.decode(ids, skip_special_tokens=bare)
        return (clean_up(text) if self._settings["cleaned"] else text).encode()


def _best(scores: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """Return the top-k positions of each row, highest score first; a vocabulary is too long for a full sort."""
    highest = np.argpartition(-scores, count - 1, axis=1)[:, :count]
    highest.sort(axis=1)  # of equal scores, the first token goes first
    order = np.argsort(-np.take_along_axis(scores, highest, axis=1), axis=1, kind="stable")
    return np.take_along_axis(highest, order, axis=1)
