"""Greedy CTC decoding: the likeliest token of every frame, without repeats and blanks, as text.

CTC: Graves et al., https://www.cs.toronto.edu/~graves/icml_2006.pdf, section 3.2 (best path decoding).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..requests import Arrays, Refusal
from .decoding import clean_up
from .labels import texts

TEXT = "text"


class TranscriptStep:
    """Transcript step: decodes like transformers' Wav2Vec2CTCTokenizer.

    Settings:
        logits: name of the model's output [batch, frames, tokens].
        mask: name of the model's mask of samples [batch, samples]; empty: all sounds of a request are of one length.
        convolutions: kernel and stride of each, which make frames of samples.
        tokens: by their ids.
        blank: the token that stands for none.
        delimiter: the token between words; `space`: what stands for it in the text.
        lower: whether the text is in lower case.
        cleaned: whether spaces before punctuation are taken away.
    """

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        """See the class; needs no other files in the folder."""
        del folder
        self._settings = settings

    def answer(self, feeds: Sequence[Arrays]) -> list[Arrays | Refusal]:
        """Return `text` [batch, 1]."""
        return [self._transcribed(feed) for feed in feeds]

    def _transcribed(self, feed: Arrays) -> Arrays:
        settings = self._settings
        best = feed[settings["logits"]].argmax(axis=-1)
        counts = np.full(len(best), best.shape[1])
        if settings["mask"]:
            counts = np.minimum(counts, frames_of(feed[settings["mask"]].sum(axis=1), settings["convolutions"]))
        transcripts = [self._text(row[:count].tolist()) for row, count in zip(best, counts, strict=True)]
        return {TEXT: texts(transcripts).reshape(-1, 1)}

    def _text(self, ids: Sequence[int]) -> bytes:
        settings = self._settings
        tokens = [token for token, _ in itertools.groupby(settings["tokens"][number] for number in ids)]
        spaces = {settings["blank"]: "", settings["delimiter"]: settings["space"]}
        text = "".join(spaces.get(token, token) for token in tokens).strip()
        text = text.lower() if settings["lower"] else text
        return (clean_up(text) if settings["cleaned"] else text).encode()


def frames_of(samples: np.ndarray[Any, Any], convolutions: Sequence[tuple[int, int]]) -> np.ndarray[Any, Any]:
    """Return the number of frames that convolutions make of a number of samples.

    Args:
        samples: counts.
        convolutions: kernel and stride of each.
    """
    for kernel, stride in convolutions:
        samples = np.maximum((samples - kernel) // stride + 1, 0)
    return samples
