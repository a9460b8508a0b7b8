"""Requests of texts that a pipeline is checked with: plansmith's own sentences, and what is hard about texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from plansmith.data.synthetic import sample_texts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]

_EMOJI = "Grüße aus Zürich 👩‍🚀🚀: naïve café, 東京は夜, привет\N{COMBINING ACUTE ACCENT}!"
_ROWS = 8
_WORDS = (1, 40, 12, 90, 5, 25)
_MOST_TOKENS_OF_A_WORD = 8


def text_questions(
    columns: Sequence[str], *, max_batch: int, longest: int, empty: bool, complete: Callable[[str], str] = str
) -> dict[str, Arrays]:
    """Requests by name.

    Args:
        columns: names of the inputs; of a pair, the second text is what is asked about or compared.
        max_batch: most rows of a request.
        longest: most tokens of a text; more are cut off.
        empty: whether an empty text makes tokens.
        complete: makes of a text what the model can be asked, such as one with a mask in it.
    """
    hard = [_EMOJI, sample_texts(1, 3 * longest, offset=5)[0], *([""] if empty else [])]
    mixed = [sample_texts(1, words, offset=3 * words)[0] for words in _WORDS]
    # What is hard stands between usual texts, and so shows what it does to its neighbours.
    rows = [text for pair in zip(mixed, [*hard, *mixed[len(hard) :]], strict=False) for text in pair]
    single = {"one-short": sample_texts(1, 3), "one-long": sample_texts(1, longest // 2, offset=11)}
    named = single | {
        "emoji": hard[:1],
        "very-long": hard[1:2],
        **({"empty": [""]} if empty else {}),
        "mixed": list(dict.fromkeys(rows))[: min(_ROWS, max_batch)],
    }
    return {name: _request(columns, [complete(text) for text in texts]) for name, texts in named.items()}


def with_mask(text: str, *, mask: str, longest: int, truncation_side: str) -> str:
    """A text with a mask in its middle; where it may have too many tokens, at the end that is not cut off.

    Args:
        text: without one.
        mask: the token's text.
        longest: most tokens of a text.
        truncation_side: "left" or "right": the end that is cut off.
    """
    words = text.split(" ")
    place = len(words) // 2
    if len(words) > longest // _MOST_TOKENS_OF_A_WORD:
        place = len(words) if truncation_side == "left" else 0
    return " ".join(filter(None, [*words[:place], mask, *words[place:]]))


def _request(columns: Sequence[str], texts: Sequence[str]) -> Arrays:
    if len(columns) == 1:
        return {columns[0]: as_texts(texts)}
    firsts = sample_texts(len(texts), 6, offset=17)
    return {columns[0]: as_texts(firsts), columns[1]: as_texts(texts)}


def as_texts(texts: Sequence[str]) -> NDArray[np.generic]:
    """Texts as they travel: [batch, 1] of bytes."""
    import numpy as np

    array = np.empty((len(texts), 1), object)
    array[:, 0] = [text.encode() for text in texts]
    return array
