"""Labels: what they are, the ids that their names have in the model, and the measure that follows from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from plansmith.data.labels import Classes, Span, converted, kind_of, own_names
from plansmith.data.sample import make_sample
from plansmith.data.task import Answers, choose_metric, describe_answers
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
def test_labels_are_told_by_their_values(labels: list[Any], kind: str) -> None:
    assert kind_of(labels) == kind


def test_names_of_classes_get_the_ids_that_the_model_gives_them() -> None:
    classes = Classes(NLI, ("Entailment", "neutral", "contradiction"), 3)
    assert [convert(n, "class", classes) for n in ("Entailment", "neutral", "contradiction")] == [1, 2, 0]


def test_names_that_the_model_does_not_know_count_in_the_order_of_the_data() -> None:
    assert convert("pos", "class", Classes({}, ("neg", "pos"), 2)) == 1


def test_folders_named_by_numbers_are_these_numbers() -> None:
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
def test_a_class_that_the_model_does_not_have_is_refused(label: Any, classes: Classes, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        convert(label, "class", classes)
    assert caught.value.remedy


def test_placeholders_are_no_names() -> None:
    assert own_names({"LABEL_0": 0, "LABEL_1": 1}) == {}
    assert own_names(NLI) == NLI


def test_tags_are_mapped_one_by_one() -> None:
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


def test_an_answer_without_its_start_is_refused() -> None:
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
def test_outputs_are_told_by_name_and_rank(shapes: dict[str, tuple[int, ...]], expected: Answers) -> None:
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
def test_the_measure_follows_from_outputs_and_labels(answers: Answers, kind: Any, paired: bool, metric: str) -> None:
    assert choose_metric("auto", answers, kind, paired=paired) == metric
    assert choose_metric("none", answers, kind, paired=paired) == "none"


def test_a_measure_that_cannot_be_taken_is_refused_with_what_it_needs() -> None:
    with pytest.raises(
        UsageError, match=r"accuracy needs an output of class scores .*; there are no labels, .*vectors"
    ):
        choose_metric("accuracy", VECTORS, "none", paired=False)
