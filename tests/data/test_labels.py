"""Labels: what they are, the ids that their names have in the model, and the measure that follows from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from plansmith.data.labels import Answers, Classes, Span, choose_metric, converted, describe_answers, kind_of, own_names
from plansmith.data.sample import make_sample
from plansmith.errors import SourceError, UsageError

NLI = {"contradiction": 0, "entailment": 1, "neutral": 2}
NOTHING = Answers(classes=0, tags=0, spans=False, vectors=False, token_vectors=False)
VECTORS, SCORES = replace(NOTHING, vectors=True), replace(NOTHING, classes=3)
TAGS, SPANS = replace(NOTHING, tags=9), replace(NOTHING, spans=True)


def convert(label: Any, kind: Any, classes: Classes) -> Any:
    return converted([make_sample(4, {"text": "a b"}, label)], kind, classes)[0].label


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        ([0, 1, 2], "class"),
        (["0", "1"], "class"),
        (["neg", "pos"], "class"),
        ([4.2, 5.0], "score"),
        (["4.0", "5.0"], "score"),
        ([[0, 1], [1]], "tags"),
        ([["O", "B-PER"]], "tags"),
        ([{"text": ["a"], "answer_start": [0]}], "answer"),
        ([], "none"),
        ([None, None], "none"),
        ([float("nan")], "none"),
        ([{"text": "a"}], "none"),
    ],
)
def test_labels_told_by_values(labels: list[Any], kind: str) -> None:
    """Labels are told by their values."""
    assert kind_of(labels) == kind


def test_class_names_get_model_ids() -> None:
    """Names of classes get the IDs that the model gives them."""
    classes = Classes(NLI, ("Entailment", "neutral", "contradiction"), 3)
    assert [convert(n, "class", classes) for n in ("Entailment", "neutral", "contradiction")] == [1, 2, 0]


def test_unknown_names_keep_data_order() -> None:
    """Names that the model does not know count in the order of the data."""
    assert convert("pos", "class", Classes({}, ("neg", "pos"), 2)) == 1


def test_numbered_folders_are_numbers() -> None:
    """Folders named by numbers are these numbers."""
    assert convert("10", "class", Classes({}, tuple(sorted(map(str, range(11)))), 11)) == 10


@pytest.mark.parametrize(
    ("label", "classes", "says"),
    [
        ("maybe", Classes(NLI, (), 3), r"label 'maybe' \(row 4\) is none of the model's classes"),
        ("neutral", Classes(NLI, ("neutral", "maybe"), 3), "label 'maybe' is none"),
        ("cat", Classes({"a": 0, "b": 1, "c": 2}, ("cat", "dog"), 3), "label 'cat' is none"),
        (3, Classes(NLI, (), 3), r"label 3 in row 4 is none of the model's 3 classes \(0 to 2\)"),
    ],
)
def test_unknown_class_refused(label: Any, classes: Classes, says: str) -> None:
    """A class that the model does not have is refused."""
    with pytest.raises(UsageError, match=says) as caught:
        convert(label, "class", classes)
    assert caught.value.remedy


def test_placeholders_are_no_names() -> None:
    assert own_names({"LABEL_0": 0, "LABEL_1": 1}) == {}
    assert own_names(NLI) == NLI


def test_tags_mapped_one_by_one() -> None:
    """Tags are mapped one by one."""
    assert convert(["O", "B-PER"], "tags", Classes({"B-PER": 0, "I-PER": 1, "O": 2}, (), 3)) == [2, 0]


@pytest.mark.parametrize(
    ("label", "span"),
    [
        ({"text": ["bc", "c"], "answer_start": [1, 2]}, Span(1, 3)),
        ({"text": "bc", "answer_start": 1}, Span(1, 3)),
        ({"text": [], "answer_start": []}, Span(0, 0)),
    ],
)
def test_the_first_answer_counts(label: Any, span: Span) -> None:
    assert convert(label, "answer", Classes({}, (), 0)) == span


def test_answer_without_start_refused() -> None:
    """An answer without its start is refused."""
    with pytest.raises(SourceError, match="row 4 has 2 text"):
        convert({"text": ["a", "b"], "answer_start": [0]}, "answer", Classes({}, (), 0))


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ({"logits": (2, 3)}, SCORES),
        ({"logits": (2, 7, 9)}, TAGS),
        ({"start_logits": (2, 7), "end_logits": (2, 7)}, SPANS),
        ({"last_hidden_state": (2, 7, 8), "pooler_output": (2, 8)}, replace(VECTORS, token_vectors=True)),
        ({"features": (2, 8)}, VECTORS),
        ({"logits": (2, 1)}, NOTHING),
        ({"y": (5, 3)}, NOTHING),
    ],
)
def test_outputs_told_by_name(shapes: dict[str, tuple[int, ...]], expected: Answers) -> None:
    """Outputs are told by name and rank."""
    answer = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    assert describe_answers(answer, 2) == expected


@pytest.mark.parametrize(
    ("answers", "kind", "paired", "metric"),
    [
        (SCORES, "class", False, "accuracy"),
        (SCORES, "class", True, "accuracy"),
        (TAGS, "tags", False, "token-f1"),
        (SPANS, "answer", True, "answer-f1"),
        (VECTORS, "score", True, "spearman"),
        (VECTORS, "class", True, "spearman"),
        (VECTORS, "score", False, "neighbours"),
        (VECTORS, "none", False, "neighbours"),
        (SCORES, "none", False, "accuracy"),
        (NOTHING, "class", False, "none"),
    ],
)
def test_measure_follows_labels(answers: Answers, kind: Any, paired: bool, metric: str) -> None:
    """The measure follows from outputs and labels."""
    assert choose_metric("auto", answers, kind, paired=paired) == metric
    assert choose_metric("none", answers, kind, paired=paired) == "none"


def test_unfitting_measure_refused() -> None:
    """A measure that cannot be taken is refused with what it needs."""
    with pytest.raises(
        UsageError, match=r"accuracy needs an output of class scores .*; there are no labels, .*vectors"
    ):
        choose_metric("accuracy", VECTORS, "none", paired=False)
