"""Rows of token ids: of plansmith's own sentences where a tokenizer makes them, else drawn."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from plansmith.data import synthetic


@dataclass(frozen=True)
class TokenIdSource:
    """What token ids are taken from.

    Args:
        vocabulary: ids are below it.
        special: ids that stand for no word.
        padding: the id behind the end of a row.
        start: the first id of a row; None: any.
        end: the last id of a row, which some models look for; None: any.
        tokenizer: makes ids of sentences; None: they are drawn.
    """

    vocabulary: int
    special: frozenset[int]
    padding: int = 0
    start: int | None = None
    end: int | None = None
    tokenizer: Any = None

    def rows(self, lengths: Sequence[int]) -> list[list[int]]:
        """One row of ids for each length."""
        if self.tokenizer is None:
            return [self._framed(row) for row in self._drawn(lengths)]
        texts = synthetic.sample_texts(len(lengths), max(lengths), offset=sum(lengths))
        rows = self._tokenized(texts, max(8, *lengths))
        # The last token is the model's own end mark; a row is cut before it, never after.
        alone = slice(0, 1) if self.end is None else slice(-1, None)
        cut = [row[: n - 1] + row[-1:] if n > 1 else row[alone] for row, n in zip(rows, lengths, strict=True)]
        return [self._started(row) for row in cut]

    def _tokenized(self, texts: Sequence[str], longest: int) -> list[list[int]]:
        options: dict[str, Any] = {"text": list(texts)}
        if "boxes" in inspect.signature(self.tokenizer.__call__).parameters:
            # Tokenizers of pages take words, each with where it stands.
            words = [text.split() for text in texts]
            options = {"text": words, "boxes": [[[0] * 4] * len(row) for row in words]}
        rows: list[list[int]] = self.tokenizer(**options, truncation=True, max_length=longest)["input_ids"]
        return rows

    def _drawn(self, lengths: Sequence[int]) -> list[list[int]]:
        import numpy as np

        rng = np.random.default_rng(sum(lengths))
        is_word = np.ones(self.vocabulary, dtype=bool)
        is_word[[number for number in self.special if number < self.vocabulary]] = False
        words = np.flatnonzero(is_word) if is_word.any() else np.array([0])
        return [rng.choice(words, n).tolist() for n in lengths]

    def _framed(self, row: list[int]) -> list[int]:
        return self._started(row if self.end is None else [*row[:-1], self.end])

    def _started(self, row: list[int]) -> list[int]:
        return row if self.start is None else [self.start, *row[1:]]
