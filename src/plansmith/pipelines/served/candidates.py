"""Candidate texts of an image: inserted into prompt sentences, then tokenized into model inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .requests import Arrays, Refusal
from .text import TextStep


class CandidatesStep:
    """Candidate text step: tokenizes the texts of every image.

    Settings:
        input: name of the texts, [batch, texts].
        template: the sentence that each is put into, in the place of {}.
        fewest, most: texts that an image may have.
        tokens: the settings of `text.TextStep`, which takes the sentences in one column.
    """

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        """See the class; the folder contains the tokenizer."""
        self._settings = settings
        self._tokens = TextStep(settings["tokens"], folder)
        (self._column,) = settings["tokens"]["columns"]

    def answer(self, feeds: Sequence[Arrays]) -> list[Arrays | Refusal]:
        """Return the model's inputs [batch, texts, tokens], padded to the longest sentence of all requests."""
        requests = [self._sentences(feed[self._settings["input"]]) for feed in feeds]
        token_feeds = [{self._column: sentences} for sentences in requests if not isinstance(sentences, Refusal)]
        token_answers = iter(self._tokens.answer(token_feeds))
        return [
            sentences if isinstance(sentences, Refusal) else _by_image(next(token_answers), sentences.shape)
            for sentences in requests
        ]

    def _sentences(self, texts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | Refusal:
        """Return the sentences for a request's candidate texts, or why there are none."""
        name, fewest, most = (self._settings[key] for key in ("input", "fewest", "most"))
        count = texts.shape[1]
        if not fewest <= count <= most:
            return Refusal(f"{name}: {count} for each image, and the model takes {fewest} to {most}")
        sentences = np.empty(texts.shape, object)
        for row, place in np.ndindex(texts.shape):
            where = f"{name}, row {row}, text {place}"
            try:
                text = bytes(texts[row, place]).decode()
            except UnicodeDecodeError as error:
                return Refusal(f"{where}: byte {error.start} is no UTF-8 ({error.reason}); encode texts in UTF-8")
            if not text.strip():
                return Refusal(f"{where} is empty")
            sentences[row, place] = self._settings["template"].replace("{}", text).encode()
        return sentences


def _by_image(tokens: Arrays | Refusal, shape: tuple[int, ...]) -> Arrays | Refusal:
    if isinstance(tokens, Refusal):
        return tokens
    return {name: array.reshape(*shape, array.shape[-1]) for name, array in tokens.items()}
