"""Two small classifiers that read the same texts, and what transformers' own pipelines answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..models.architectures import save
from .columns import column
from .texts import SIZES, word_piece

LABELS = {"mood": ("bad", "fine", "good"), "topics": ("sport", "science", "art", "trade")}
WIDTHS = {"mood": 32, "topics": 40}
LIVELY = 0.2
"""What weights are drawn with; with the usual 0.02, small models say the same of all texts."""


def save_classifiers(folder: Path) -> None:
    """Save a model of each name, with MiniLM's tokenizer and random weights."""
    tokenizer = word_piece(model_max_length=128)
    sizes = SIZES | {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, "initializer_range": LIVELY}
    for name, labels in LABELS.items():
        named = {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
        fields = sizes | named | {"hidden_size": WIDTHS[name]}
        save(folder / name, "BertForSequenceClassification", "BertConfig", tokenizer, **fields)


@dataclass(frozen=True)
class Classifier:
    """A saved model in transformers' own pipeline.

    Args:
        ask: that pipeline.
        top_k: how many labels are answered, the likeliest first.
    """

    ask: Any
    top_k: int

    def scores(self, texts: Sequence[str]) -> list[dict[str, float]]:
        """For each text every label with its score."""
        results = self.ask(list(texts), top_k=None, truncation=True)
        return [{entry["label"]: entry["score"] for entry in row} for row in results]

    def __call__(self, text: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """As a script asks it."""
        rows = self.scores([item.decode() for item in text[:, 0]])
        ranked = [sorted(row.items(), key=lambda item: -item[1])[: self.top_k] for row in rows]
        labels = np.array([[label.encode() for label, _ in row] for row in ranked], object)
        return {"label": labels, "score": np.array([[score for _, score in row] for row in ranked], np.float32)}


def classifier(folder: Path, *, top_k: int) -> Classifier:
    """A saved model, as transformers asks it."""
    from transformers import pipeline

    text_pipeline: Any = pipeline("text-classification", model=str(folder), device="cpu")
    return Classifier(text_pipeline, top_k)


def close_ranks(
    answer: Mapping[str, NDArray[Any]], owed: Sequence[Mapping[str, float]], limit: float, *, of: str = ""
) -> None:
    """See that labels stand with their scores in the order of these; those that are as likely in either order.

    Args:
        answer: of a server.
        owed: for each row every label with its score.
        limit: how far a score may be off.
        of: what the names of the outputs begin with.
    """
    assert len(answer[f"{of}label"]) == len(answer[f"{of}score"]) == len(owed)
    for labels, scores, row in zip(answer[f"{of}label"], answer[f"{of}score"], owed, strict=True):
        ranked = sorted(row.values(), reverse=True)[: len(labels)]
        assert len({*labels}) == len(labels)
        np.testing.assert_allclose(scores, ranked, atol=limit)
        np.testing.assert_allclose(scores, [row[label.decode()] for label in labels], atol=limit)


def as_requests(texts: Sequence[str], largest: int) -> list[NDArray[Any]]:
    """Texts as requests of 1 to `largest` rows, the sizes in turn."""
    requests: list[NDArray[Any]] = []
    start = 0
    while start < len(texts):
        size = len(requests) % largest + 1
        requests.append(column(*texts[start : start + size]))
        start += size
    return requests
