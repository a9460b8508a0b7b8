"""Agreement of a pipeline's answers with those of the source's own library: texts, scores and vectors.

Numbers of the model itself (vectors) are held against the gate's tolerances. A score is what softmax or the logistic
function makes of scores, and neither moves by more than half of what moves its argument most (the derivative of softmax
is p(1 - p) at most, that of the others' scores sums up to as much; of the logistic function it is at most a quarter):
so half of what the gate allows these.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from plansmith.records.model import Precision
from plansmith.records.pipeline import Pipeline, RawAgreement
from plansmith.records.validation import Tolerance, ValidationReport

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from plansmith.records.arrays import Arrays


LABEL, SCORE = "label", "score"
TOKEN, SEQUENCE = "token", "sequence"
ENTITIES, OBJECTS = "entities", "objects"
CLASS_MAP, SEGMENTS = "class_map", "segments"

_SCORED = (ENTITIES, OBJECTS)
"""Outputs that are JSON lists of records with a score."""

_BOX = "box"

_OTHER_PIXELS = 1e-3
"""The share of a map's pixels that may be of another class, as far as two are all but equally likely there."""

_SMALLEST_SCORE_LIMIT = 1e-5
"""Of two correct ways to compute one in single precision."""


@dataclass(frozen=True)
class RawLimits:
    """Tolerances of raw answers.

    Args:
        tolerances: by output of the model.
        usual: for numbers that are made of several outputs: the widest of them.
        score: how far a score may be off.
        exact: whether texts have to be the same: below FP32, two that are all but equally likely may change places.
        ranked: whether labels, or tokens for a mask, stand in the order of their scores, as a pipeline gives them; what
            a script calls so may mean anything.
    """

    tolerances: Mapping[str, Tolerance]
    usual: Tolerance
    score: float
    exact: bool
    ranked: bool = True


def limits_of(report: ValidationReport) -> RawLimits:
    """Derive the tolerances of a pipeline's answers from the gate's report on the model."""
    tolerances = report.tolerances
    magnitude = dict.fromkeys(tolerances, 0.0)
    for comparison in report.comparisons:
        magnitude[comparison.output] = max(magnitude.get(comparison.output, 0.0), comparison.magnitude)
    widest = max((tolerances[name].max_relative * magnitude[name] for name in tolerances), default=0.0)
    exact = report.precision in {Precision.FP32, None}
    return RawLimits(tolerances, _widest(tolerances.values()), max(_SMALLEST_SCORE_LIMIT, widest / 2), exact)


def exact_limits(report: ValidationReport) -> RawLimits:
    """Return the tolerances of FP32, whatever the precision that the gate validated."""
    from plansmith.validation.comparison import LIMITS

    tolerance = LIMITS[Precision.FP32].tolerance
    largest = max((comparison.magnitude for comparison in report.comparisons), default=0.0)
    score = max(_SMALLEST_SCORE_LIMIT, tolerance.max_relative * largest / 2)
    return RawLimits({}, tolerance, score, exact=True)


def widest(limits: Sequence[RawLimits]) -> RawLimits:
    """Return the widest tolerances of several models, for a script whose numbers can come from any of them."""
    return RawLimits(
        tolerances={},
        usual=_widest(limit.usual for limit in limits),
        score=max(limit.score for limit in limits),
        exact=all(limit.exact for limit in limits),
        ranked=False,
    )


def _widest(values: Iterable[Tolerance]) -> Tolerance:
    tolerances = list(values)
    return Tolerance(
        max_relative=max(t.max_relative for t in tolerances),
        quantile_relative=max(t.quantile_relative for t in tolerances),
        min_cosine=min(t.min_cosine for t in tolerances),
        min_mean_cosine=min(t.min_mean_cosine for t in tolerances),
    )


def compare(case: str, expected: Arrays, answer: Arrays, limits: RawLimits) -> RawAgreement:
    """Compare one request's answer with the expected one.

    Args:
        case: names the request.
        expected: what the source's library answered, by output; texts are bytes in arrays of objects.
        answer: what the pipeline answered.
        limits: what is allowed.
    """
    from plansmith.validation.comparison import other_shape

    rows = len(next(iter(expected.values())))
    differing = [name for name in expected if expected[name].shape != answer[name].shape]
    if differing:
        messages = tuple(f"{name}: {other_shape(expected[name], answer[name])}" for name in differing)
        return RawAgreement(case=case, rows=rows, same=False, failures=messages)
    failures = list(_numbers(case, expected, answer, limits))
    ranked = next((name for name in (LABEL, TOKEN) if limits.ranked and {name, SCORE} <= expected.keys()), "")
    if ranked:
        failures += _ranks(expected, answer, ranked, limits.score)
        failures += _sequences(expected, answer)
    elif SCORE in expected and expected[SCORE].dtype.kind == "f":
        failures += _scores(expected[SCORE], answer[SCORE], limits.score)
    by_rank = {ranked, SEQUENCE} if ranked else set()
    texts = list(_texts({k: v for k, v in expected.items() if k not in by_rank}, answer, limits.score))
    allowed = failures if not limits.exact else failures + texts
    return RawAgreement(case=case, rows=rows, same=not failures and not texts, failures=tuple(allowed))


def _numbers(case: str, expected: Arrays, answer: Arrays, limits: RawLimits) -> Iterator[str]:
    """Compare vectors and tensors of the model."""
    from plansmith.validation.comparison import compare_output

    for name, array in expected.items():
        if array.dtype.kind == "f" and name != SCORE:
            own = array.astype(answer[name].dtype)
            tolerance = limits.tolerances.get(name, limits.usual)
            yield from (f"{name}: {f}" for f in compare_output(case, name, own, answer[name], tolerance).failures)


def _ranks(expected: Arrays, answer: Arrays, name: str, limit: float) -> Iterator[str]:
    """Compare ranked labels or tokens with scores; those with equal scores may be in either order."""
    for row in range(len(expected[name])):
        owed = dict(zip(_numbered(expected[name][row]), expected[SCORE][row].tolist(), strict=True))
        scores = dict(zip(_numbered(answer[name][row]), answer[SCORE][row].tolist(), strict=True))
        last = min(owed.values())
        for label, score in scores.items():
            expected_score = owed.get(
                label, last
            )  # one that is not among the first may be as likely as the last of them
            if not abs(score - expected_score) <= limit:  # which NaN is not
                yield f"row {row}: {_text(label[0])!r} has {score:.6f}, and should have {expected_score:.6f}"


def _numbered(texts: NDArray[Any]) -> list[tuple[Any, int]]:
    """Number repeated texts by occurrence: several byte tokens may have the same text."""
    listed = texts.tolist()
    return [(text, listed[:place].count(text)) for place, text in enumerate(listed)]


def _sequences(expected: Arrays, answer: Arrays) -> Iterator[str]:
    """Compare filled texts; they match by token, whatever their rank by score."""
    for row in range(len(expected.get(SEQUENCE, ()))):
        owed, actual = (
            {
                token: text
                for token, text in zip(arrays[TOKEN][row], arrays[SEQUENCE][row], strict=True)
                if arrays[TOKEN][row].tolist().count(token) == 1
            }
            for arrays in (expected, answer)
        )
        for token in owed.keys() & actual.keys():
            if owed[token] != actual[token]:
                yield (
                    f"{SEQUENCE} of row {row} with {_text(token)!r} is {_text(actual[token])[:80]!r}, and should be"
                    f" {_text(owed[token])[:80]!r}"
                )


def _scores(expected: NDArray[Any], answer: NDArray[Any], limit: float) -> Iterator[str]:
    import numpy as np

    worst = float(np.abs(expected.astype(np.float64) - answer.astype(np.float64)).max(initial=0.0))
    if not worst <= limit:
        yield f"{SCORE} is off by {worst:.3g}, allowed {limit:.3g}"


def _texts(expected: Arrays, answer: Arrays, limit: float) -> Iterator[str]:
    """Compare texts and text positions, which are either right or wrong."""
    for name, array in expected.items():
        if array.dtype.kind == "f":
            continue
        if name == CLASS_MAP and array.dtype.kind in "iu":
            yield from _maps(array, answer[name])
            continue
        width = max(1, array.size // max(1, len(array)))
        pairs = zip(array.reshape(-1).tolist(), answer[name].reshape(-1).tolist(), strict=True)
        for place, (owed, actual) in enumerate(pairs):
            is_near = (name in _SCORED and _same_scored(owed, actual, limit)) or (
                name == SEGMENTS and _same_segments(owed, actual)
            )
            if owed != actual and not is_near:
                yield f"{name} of row {place // width} is {_text(actual)[:80]!r}, and should be {_text(owed)[:80]!r}"


def _maps(expected: NDArray[Any], answer: NDArray[Any]) -> Iterator[str]:
    """Compare class maps, one per row."""
    for row, (owed, actual) in enumerate(zip(expected, answer, strict=True)):
        differing = int((owed != actual).sum())
        if differing > _most_pixels(owed.size):
            yield f"{CLASS_MAP} of row {row} has another class in {differing} of {owed.size} pixels"


def _most_pixels(count: int) -> float:
    return max(1.0, _OTHER_PIXELS * count)


def _same_segments(owed: bytes, actual: bytes) -> bool:
    """Whether the pixel counts per class of a map are equal, except for pixels that may be of another class."""
    try:
        counts = [
            {(segment["id"], segment["label"]): segment["pixels"] for segment in json.loads(text)}
            for text in (owed, actual)
        ]
        expected_counts, actual_counts = counts
        apart = sum(
            abs(expected_counts.get(key, 0) - actual_counts.get(key, 0)) for key in expected_counts | actual_counts
        )
        return bool(apart <= 2 * _most_pixels(sum(expected_counts.values())))
    except (ValueError, TypeError, KeyError):
        return False


def _same_scored(owed: bytes, actual: bytes, limit: float) -> bool:
    """Whether entities or objects differ only in scores, or in the rounding of a box to whole pixels.

    Those of equal scores may stand in either order. What a script calls so may be other texts.
    """
    try:
        expected_records, actual_records = json.loads(owed), json.loads(actual)
        if len(expected_records) != len(actual_records) or not all(
            abs(record[SCORE] - candidate[SCORE]) <= limit
            for record, candidate in zip(expected_records, actual_records, strict=True)
        ):
            return False
        for record in expected_records:
            near = [candidate for candidate in actual_records if _same_record(record, candidate, limit)]
            actual_records.remove(min(near, key=partial(_pixels_apart, record)))  # of none, min raises ValueError
    except (ValueError, TypeError, KeyError, AttributeError):
        return False
    return True


def _same_record(owed: Mapping[str, Any], actual: Mapping[str, Any], limit: float) -> bool:
    return (
        {**owed, SCORE: 0, _BOX: 0} == {**actual, SCORE: 0, _BOX: 0}
        and abs(owed[SCORE] - actual[SCORE]) <= limit
        and owed.get(_BOX, {}).keys() == actual.get(_BOX, {}).keys()
        and all(abs(side - actual[_BOX][name]) <= 1 for name, side in owed.get(_BOX, {}).items())
    )


def _pixels_apart(owed: Mapping[str, Any], actual: Mapping[str, Any]) -> int:
    return sum(abs(side - actual[_BOX][name]) for name, side in owed.get(_BOX, {}).items())


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def refusals(pipeline: Pipeline) -> list[str]:
    """Return why a pipeline must not be used: a line per wrong answer."""
    return [f"{agreement.case}: {failure}" for agreement in pipeline.agreements for failure in agreement.failures]
