"""Token classification: turns a tagger's logits into entities; adjacent tokens of one tag are merged."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from ..requests import Arrays, Refusal
from .labels import softmax, texts

ENTITIES = "entities"

DIGITS = 6
"""Of a score behind the point."""

_TOKENIZER_FILE = "tokenizer.json"
_OUTSIDE = "O"

Token = tuple[int, str, float]  # its place, its tag and the score of that


class TagsStep:
    """Entity step like transformers' token classification with aggregation_strategy="simple".

    Settings:
        logits: name of the model's output [batch, tokens, tags].
        ids: name of the tokens' ids [batch, tokens].
        spans: name of their places in the text [batch, tokens, 2], below 0 where a token has none.
        text: name of the texts [batch, 1].
        labels: names of the tags, in their order.
        unknown: id of the token that stands for unknown words, or None.
    """

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        self._names = [settings[name] for name in ("logits", "ids", "spans", "text")]
        self._labels, self._unknown = settings["labels"], settings["unknown"]
        self._tokenizer = Tokenizer.from_file(str(folder / _TOKENIZER_FILE))

    def answer(self, feeds: Sequence[Arrays]) -> list[Arrays | Refusal]:
        """Return `entities` [batch, 1]: a JSON list per text, of entity_group, score, word, start and end."""
        return [{ENTITIES: texts([*self._entities(feed)]).reshape(-1, 1)} for feed in feeds]

    def _entities(self, feed: Arrays) -> Iterator[bytes]:
        logits, ids, spans, written = (feed[name] for name in self._names)
        scores = softmax(logits.astype(np.float32))
        best = scores.argmax(axis=-1)
        for row, text in enumerate(written.reshape(-1)):
            places = np.flatnonzero(spans[row, :, 0] >= 0)
            tokens = [(int(p), self._labels[best[row, p]], float(scores[row, p, best[row, p]])) for p in places]
            whole = bytes(text).decode()
            records = [
                self._entity(group, ids[row], spans[row], whole)
                for group in _groups(tokens)
                if _tag(group[0][1]) != _OUTSIDE
            ]
            yield json.dumps(records, ensure_ascii=False).encode()

    def _entity(
        self, group: Sequence[Token], ids: np.ndarray[Any, Any], spans: np.ndarray[Any, Any], text: str
    ) -> dict[str, Any]:
        pieces = [
            text[spans[place, 0] : spans[place, 1]]
            if ids[place] == self._unknown
            else self._tokenizer.id_to_token(int(ids[place])) or ""
            for place, _, _ in group
        ]
        decoder = self._tokenizer.decoder
        return {
            "entity_group": _tag(group[0][1]),
            "score": round(sum(score for _, _, score in group) / len(group), DIGITS),
            "word": " ".join(pieces) if decoder is None else decoder.decode(pieces),
            "start": int(spans[group[0][0], 0]),
            "end": int(spans[group[-1][0], 1]),
        }


def _groups(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """Yield runs of tokens with the same tag; "B-" begins a new run."""
    group: list[Token] = []
    for token in tokens:
        if group and (token[1].startswith("B-") or _kind(token[1]) != _kind(group[-1][1])):
            yield group
            group = []
        group.append(token)
    if group:
        yield group


def _kind(label: str) -> str:
    """Return the tag for comparison with neighbours: without its "B-" or "I-" prefix."""
    return label[2:] if label.startswith(("B-", "I-")) else label


def _tag(label: str) -> str:
    """Return the tag as reported: without the part before the first hyphen."""
    return label.split("-", 1)[-1]
