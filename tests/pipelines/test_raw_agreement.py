"""Answers of a pipeline beside those of the source's own library."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from plansmith.pipelines.agreement import RawLimits, compare, widest
from plansmith.records.model import Precision
from plansmith.records.validation import Tolerance
from plansmith.validation.comparison import LIMITS

from ..support.pipelines.columns import column

TOLERANCE = LIMITS[Precision.FP32].tolerance


def limits(*, exact: bool = True) -> RawLimits:
    """Those of a model whose scores may be off by a hundredth."""
    return RawLimits({"sentence_embedding": TOLERANCE}, TOLERANCE, 0.01, exact)


def ranked(*rows: tuple[tuple[bytes, float], ...]) -> dict[str, Any]:
    """Labels with their scores."""
    labels = np.array([[label for label, _ in row] for row in rows], object)
    return {"label": labels, "score": np.array([[score for _, score in row] for row in rows], np.float32)}


def entities(score: float = 0.9, word: str = "Ada") -> dict[str, Any]:
    """One row with one entity."""
    entries = [{"entity_group": "PER", "score": score, "word": word, "start": 0, "end": 3}]
    return {"entities": column(json.dumps(entries).encode())}


def test_near_equal_labels_may_swap() -> None:
    """Labels of all-but-equal scores may stand in either order."""
    expected = ranked(((b"cat", 0.501), (b"dog", 0.499)))
    answer = ranked(((b"dog", 0.5), (b"cat", 0.5)))
    assert compare("one", expected, answer, limits()).same


def test_differing_label_score_names_row() -> None:
    """A label with another score is told with its row."""
    expected = ranked(((b"cat", 0.9), (b"dog", 0.1)), ((b"dog", 0.8), (b"cat", 0.2)))
    answer = ranked(((b"cat", 0.9), (b"dog", 0.1)), ((b"dog", 0.7), (b"cat", 0.3)))
    comparison = compare("two", expected, answer, limits())
    assert not comparison.same
    assert comparison.failures == (
        "row 1: 'dog' has 0.700000, and should have 0.800000",
        "row 1: 'cat' has 0.300000, and should have 0.200000",
    )


def test_scoreless_label_right_or_wrong() -> None:
    """A label without scores, as a script may answer, is right or wrong."""
    expected, answer = {"label": column(b"cat", b"dog")}, {"label": column(b"cat", b"owl")}
    assert compare("two", expected, expected, limits()).same
    comparison = compare("two", expected, answer, limits())
    assert not comparison.same
    assert comparison.failures == ("label of row 1 is 'owl', and should be 'dog'",)
    assert not compare("two", expected, answer, limits(exact=False)).same


def test_label_outside_top_may_tie() -> None:
    """A label that is not among the first may be as likely as the last of them."""
    expected = ranked(((b"cat", 0.6), (b"dog", 0.2)))
    assert compare("one", expected, ranked(((b"cat", 0.6), (b"owl", 0.199))), limits()).same
    assert not compare("one", expected, ranked(((b"cat", 0.6), (b"owl", 0.15))), limits()).same


@pytest.mark.parametrize(
    ("answer", "same"), [(entities(0.905), True), (entities(0.8), False), (entities(word="Ad"), False)]
)
def test_entities_same_within_score_limit(answer: dict[str, Any], same: bool) -> None:
    """Entities are the same ones with scores within the limit."""
    assert compare("one", entities(), answer, limits()).same is same


def test_text_difference_allowed_below_fp32() -> None:
    """Below FP32, another text is noted and let through."""
    comparison = compare("one", entities(), entities(word="Ad"), limits(exact=False))
    assert (comparison.same, comparison.failures) == (False, ())


def test_vectors_held_to_output_tolerances() -> None:
    """Vectors are held against the tolerances of the model's output."""
    chance = np.random.default_rng(0)
    expected = {"sentence_embedding": chance.normal(size=(4, 32)).astype(np.float32)}
    near = {"sentence_embedding": expected["sentence_embedding"] * np.float32(1 + 1e-6)}
    far = {"sentence_embedding": expected["sentence_embedding"] + np.float32(0.01)}
    assert compare("one", expected, near, limits()).same
    (first, *_) = compare("one", expected, far, limits()).failures
    assert first.startswith("sentence_embedding: maximum error relative to the output's magnitude is")


def test_other_shape_not_compared() -> None:
    """Answers of another shape are told and not compared."""
    comparison = compare("one", ranked(((b"cat", 0.9),)), ranked(((b"cat", 0.9),), ((b"cat", 0.9),)), limits())
    assert not comparison.same
    assert comparison.failures[0] == "label: shape is 2x1, expected 1x1"


def test_answers_need_text_place_score() -> None:
    """Answers to a question need the same text, place and score."""

    def answer(start: int, score: float) -> dict[str, Any]:
        return {
            "answer": column(b"Rome"),
            "score": np.array([[score]], np.float32),
            "start": np.array([[start]], np.int64),
        }

    assert compare("one", answer(3, 0.5), answer(3, 0.505), limits()).same
    assert compare("one", answer(3, 0.5), answer(4, 0.5), limits()).failures == (
        "start of row 0 is '4', and should be '3'",
    )
    assert compare("one", answer(3, 0.5), answer(3, 0.6), limits()).failures == ("score is off by 0.1, allowed 0.01",)


@pytest.mark.parametrize("wrong", [ranked(((b"cat", float("nan")), (b"dog", float("nan")))), entities(float("nan"))])
def test_score_must_be_number(wrong: dict[str, Any]) -> None:
    """A score that is no number is no answer."""
    owed = entities() if "entities" in wrong else ranked(((b"cat", 0.9), (b"dog", 0.1)))
    assert compare("one", owed, wrong, limits()).failures


def test_script_gets_widest_model_limits() -> None:
    """A script is allowed the widest of its models."""
    narrow = Tolerance(max_relative=0.1, quantile_relative=0.4, min_cosine=0.9, min_mean_cosine=0.99)
    wide = Tolerance(max_relative=0.3, quantile_relative=0.2, min_cosine=0.95, min_mean_cosine=0.98)
    result = widest([RawLimits({"logits": narrow}, narrow, 0.01, exact=True), RawLimits({}, wide, 0.02, exact=False)])
    usual = Tolerance(max_relative=0.3, quantile_relative=0.4, min_cosine=0.9, min_mean_cosine=0.98)
    assert result == RawLimits({}, usual, 0.02, exact=False, ranked=False)
    assert widest([limits()]).exact


def test_script_labels_compared_in_place() -> None:
    """Labels of a script are texts that stand where they are, wherever their scores are."""
    script = widest([limits()])
    expected = ranked(((b"cat", 0.5), (b"dog", 0.5)))
    assert compare("one", expected, ranked(((b"cat", 0.505), (b"dog", 0.495))), script).same
    assert compare("one", expected, ranked(((b"dog", 0.5), (b"cat", 0.5))), script).failures == (
        "label of row 0 is 'dog', and should be 'cat'",
        "label of row 0 is 'cat', and should be 'dog'",
    )
    assert compare("one", {"label": column(b"cat")}, {"label": column(b"dog")}, script).failures
    assert compare("one", expected, ranked(((b"cat", 0.6), (b"dog", 0.5))), script).failures == (
        "score is off by 0.1, allowed 0.01",
    )


def test_script_output_names_mean_anything() -> None:
    """A script may mean anything by the names of a pipeline's outputs."""
    script = widest([limits()])
    for name in ("score", "entities", "label"):
        assert compare("one", {name: column(b"[")}, {name: column(b"[")}, script).same
        assert compare("one", {name: column(b"[", b"3")}, {name: column(b"[", b"4")}, script).failures == (
            f"{name} of row 1 is '4', and should be '3'",
        )
    expected, answer = ({"label": column(b"a"), "score": np.zeros((1, 2), np.float32)} for _ in range(2))
    assert compare("one", expected, answer, script).same


def test_text_difference_names_row() -> None:
    """A text that differs is told with its row where rows have several."""
    expected, answer = (np.array([[b"a", b"b"], [b"c", last]], object) for last in (b"d", b"e"))
    comparison = compare("one", {"words": expected}, {"words": answer}, limits())
    assert comparison.failures == ("words of row 1 is 'e', and should be 'd'",)
