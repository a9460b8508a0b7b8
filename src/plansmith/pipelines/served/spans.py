"""Token offsets: the start and end character of each token in its text."""

from __future__ import annotations

from typing import Any

import numpy as np
from tokenizers import Encoding

UNPLACED = -1
"""Begin and end of a token that stands nowhere: padding, special tokens, and those of another text."""


def token_spans(row: Encoding) -> np.ndarray[Any, Any]:
    """Return the spans [tokens, 2] of all tokens except special ones."""
    spans = np.array(row.offsets, np.int32).reshape(-1, 2)
    spans[np.array(row.special_tokens_mask, bool)] = UNPLACED
    return spans


def word_spans(row: Encoding, side: int) -> np.ndarray[Any, Any]:
    """Return spans [tokens, 2]: of the whole word that contains each token of one text of a pair.

    Args:
        row: tokens of a pair.
        side: which text of it: 0 or 1.
    """
    spans = np.full((len(row.ids), 2), UNPLACED, np.int32)
    ranges: dict[int, tuple[int, int]] = {}
    ours = [
        (place, word, offset)
        for place, (sequence, word, offset) in enumerate(zip(row.sequence_ids, row.word_ids, row.offsets, strict=True))
        if sequence == side
    ]
    for _, word, (begin, end) in ours:
        if word is not None:
            low, high = ranges.get(word, (begin, end))
            ranges[word] = min(low, begin), max(high, end)
    for place, word, offset in ours:
        spans[place] = offset if word is None else ranges[word]
    return spans
