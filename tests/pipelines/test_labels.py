"""Logits become labels and scores as transformers' text classification makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plansmith.pipelines.served.postprocessing.labels import LabelsStep
from plansmith.pipelines.served.requests import Refusal

from ..support.pipelines.columns import column
from ..support.pipelines.texts import REQUESTS, SENTENCES, bert, close, roberta, serve


def library(folder: Path, texts: Any, top_k: int) -> list[list[dict[str, Any]]]:
    """What transformers' own pipeline answers, from end to end."""
    import transformers

    classifier = transformers.pipeline("text-classification", model=str(folder), device="cpu")
    predictions: Any = classifier(texts, top_k=top_k, truncation=True)
    answers: list[list[dict[str, Any]]] = predictions
    return answers


def compare(folder: Path, out: Path, *, top_k: int = 5) -> None:
    served = serve(folder, out, top_k=top_k)
    answers = served.answers([{"text": column(*texts)} for texts in REQUESTS])
    expected = iter(library(folder, list(SENTENCES), top_k))
    for texts, answer in zip(REQUESTS, answers, strict=True):
        assert not isinstance(answer, Refusal)
        for row in range(len(texts)):
            owed = next(expected)
            assert [label.decode() for label in answer["label"][row]] == [entry["label"] for entry in owed]
            close(answer["score"][row], [entry["score"] for entry in owed], atol=2e-6)


@pytest.mark.slow
def test_labels_and_scores_match_transformers(tmp_path: Path) -> None:
    """256 sentences get the labels and scores of Transformers."""
    names = dict(enumerate(["joy", "Ärger", "fear 😱", "calm", "line\nbreak", "two words", "other"]))
    folder = bert(tmp_path / "model", "ForSequenceClassification", id2label=names, num_labels=7)
    compare(folder, tmp_path / "out", top_k=5)


def test_byte_tokenizer_labels_match(tmp_path: Path) -> None:
    """A tokenizer of bytes gets the labels and scores of Transformers too."""
    compare(roberta(tmp_path / "model", "ForSequenceClassification", num_labels=3), tmp_path / "out", top_k=2)


@pytest.mark.parametrize(
    ("kind", "classes", "apply"),
    [
        ("single_label_classification", 3, "softmax"),
        ("multi_label_classification", 3, "sigmoid"),
        ("regression", 2, "none"),
        ("regression", 1, "none"),
        (None, 1, "sigmoid"),
        (None, 3, "softmax"),
    ],
)
def test_score_function_follows_problem(kind: str | None, classes: int, apply: str, tmp_path: Path) -> None:
    """What makes scores follows from the problem."""
    folder = bert(tmp_path / "model", "ForSequenceClassification", problem_type=kind, num_labels=classes)
    served = serve(folder, tmp_path / "out")
    assert served.draft.after[0].settings["apply"] == apply
    owed = library(folder, [SENTENCES[0]], 5)[0]
    answer = served.answer({"text": column(SENTENCES[0])})
    assert [label.decode() for label in answer["label"][0]] == [entry["label"] for entry in owed]
    close(answer["score"][0], [entry["score"] for entry in owed], atol=2e-6)
    reference = served.draft.ask({"text": column(SENTENCES[0])})
    assert reference["label"].tolist() == answer["label"].tolist()
    close(reference["score"], answer["score"], atol=2e-6)


def step(**changed: Any) -> LabelsStep:
    settings: dict[str, Any] = {"logits": "logits", "labels": ["a", "b", "c"], "top_k": 2, "apply": "softmax"}
    return LabelsStep(settings | changed, Path())


def test_mixed_size_requests_answered() -> None:
    """Requests of several sizes are each answered."""
    feeds = [{"logits": np.array(rows, np.float16)} for rows in ([[0, 2, 1]], [[3, 0, 1], [0, 0, 4]])]
    first, second = step().answer(feeds)
    assert not isinstance(first, Refusal)
    assert not isinstance(second, Refusal)
    assert first["label"].tolist() == [[b"b", b"c"]]
    assert second["label"].tolist() == [[b"a", b"c"], [b"c", b"a"]]
    assert second["score"].dtype == np.float32


def test_equal_scores_keep_class_order() -> None:
    """Of equal scores, the first class goes first."""
    (answer,) = step(top_k=3).answer([{"logits": np.zeros((1, 3), np.float32)}])
    assert not isinstance(answer, Refusal)
    assert answer["label"].tolist() == [[b"a", b"b", b"c"]]


def test_low_logit_scores_zero_silently() -> None:
    """A logit far below zero scores zero without a warning."""
    (answer,) = step(apply="sigmoid", top_k=3).answer([{"logits": np.array([[-1000, 1000, 0]], np.float32)}])
    assert not isinstance(answer, Refusal)
    assert answer["score"].tolist() == [[1.0, 0.5, 0.0]]
