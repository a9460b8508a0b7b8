"""Where tokens stand in their text: from and up to which character."""

from __future__ import annotations

from typing import Any

import numpy as np
from tokenizers import Encoding

UNPLACED = -1
"""Begin and end of a token that stands nowhere: padding, special tokens, and those of another text."""


def token_spans(row: Encoding) -> np.ndarray[Any, Any]:
    """[tokens, 2]: of all tokens but special ones."""
    spans = np.array(row.offsets, np.int32).reshape(-1, 2)
    spans[np.array(row.special_tokens_mask, bool)] = UNPLACED
    return spans


def word_spans(row: Encoding, side: int) -> np.ndarray[Any, Any]:
    """[tokens, 2]: of the whole word that each token of one text of a pair is a part of.

    Args:
        row: tokens of a pair.
        side: which text of it: 0 or 1.
    """
    spans = np.full((len(row.ids), 2), UNPLACED, np.int32)
    words: dict[int, tuple[int, int]] = {}
    ours = [
        (place, word, offset)
        for place, (sequence, word, offset) in enumerate(zip(row.sequence_ids, row.word_ids, row.offsets, strict=True))
        if sequence == side
    ]
    for _, word, (begin, end) in ours:
        if word is not None:
            low, high = words.get(word, (begin, end))
            words[word] = min(low, begin), max(high, end)
    for place, word, offset in ours:
        spans[place] = offset if word is None else words[word]
    return spans
