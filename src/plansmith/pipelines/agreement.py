"""How a pipeline's answers compare with those of the source's own library: texts, scores and vectors.

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
from plansmith.records.pipeline import Pipeline, RawAgreement, Script
from plansmith.records.validation import Tolerance, ValidationReport
from plansmith.validation.comparison import LIMITS, compare_output, other_shape

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]

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
    """What is allowed.

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
    """What the gate's verdict on the model means for what is made of its outputs."""
    tolerances = report.tolerances
    magnitude = dict.fromkeys(tolerances, 0.0)
    for one in report.comparisons:
        magnitude[one.output] = max(magnitude.get(one.output, 0.0), one.magnitude)
    widest = max((tolerances[name].max_relative * magnitude[name] for name in tolerances), default=0.0)
    exact = report.precision in {Precision.FP32, None}
    return RawLimits(tolerances, _widest(tolerances.values()), max(_SMALLEST_SCORE_LIMIT, widest / 2), exact)


def exact_limits(report: ValidationReport) -> RawLimits:
    """What FP32 is allowed, whatever the precision of the model that the gate judged."""
    tolerance = LIMITS[Precision.FP32].tolerance
    largest = max((one.magnitude for one in report.comparisons), default=0.0)
    score = max(_SMALLEST_SCORE_LIMIT, tolerance.max_relative * largest / 2)
    return RawLimits({}, tolerance, score, exact=True)


def widest(limits: Sequence[RawLimits]) -> RawLimits:
    """What is allowed a script, of which nobody knows which of several models a number comes from."""
    return RawLimits(
        tolerances={},
        usual=_widest(one.usual for one in limits),
        score=max(one.score for one in limits),
        exact=all(one.exact for one in limits),
        ranked=False,
    )


def _widest(given: Iterable[Tolerance]) -> Tolerance:
    tolerances = list(given)
    return Tolerance(
        max_relative=max(t.max_relative for t in tolerances),
        quantile_relative=max(t.quantile_relative for t in tolerances),
        min_cosine=min(t.min_cosine for t in tolerances),
        min_mean_cosine=min(t.min_mean_cosine for t in tolerances),
    )


def compare(case: str, expected: Arrays, answer: Arrays, limits: RawLimits) -> RawAgreement:
    """One request's answer beside the one that was expected.

    Args:
        case: names the request.
        expected: what the source's library answered, by output; texts are bytes in arrays of objects.
        answer: what the pipeline answered.
        limits: what is allowed.
    """
    rows = len(next(iter(expected.values())))
    differing = [name for name in expected if expected[name].shape != answer[name].shape]
    if differing:
        words = tuple(f"{name}: {other_shape(expected[name], answer[name])}" for name in differing)
        return RawAgreement(case=case, rows=rows, same=False, failures=words)
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
    """Vectors and tensors of the model."""
    for name, array in expected.items():
        if array.dtype.kind == "f" and name != SCORE:
            own = array.astype(answer[name].dtype)
            tolerance = limits.tolerances.get(name, limits.usual)
            yield from (f"{name}: {f}" for f in compare_output(case, name, own, answer[name], tolerance).failures)


def _ranks(expected: Arrays, answer: Arrays, name: str, limit: float) -> Iterator[str]:
    """Labels or tokens with their scores, the likeliest first; those of equal scores may stand in either order."""
    for row in range(len(expected[name])):
        owed = dict(zip(_numbered(expected[name][row]), expected[SCORE][row].tolist(), strict=True))
        found = dict(zip(_numbered(answer[name][row]), answer[SCORE][row].tolist(), strict=True))
        last = min(owed.values())
        for label, score in found.items():
            wanted = owed.get(label, last)  # one that is not among the first may be as likely as the last of them
            if not abs(score - wanted) <= limit:  # which NaN is not
                yield f"row {row}: {_text(label[0])!r} has {score:.6f}, and should have {wanted:.6f}"


def _numbered(texts: NDArray[Any]) -> list[tuple[Any, int]]:
    """Texts, each with how often it stood there before: several tokens of bytes may be the same text."""
    listed = texts.tolist()
    return [(text, listed[:place].count(text)) for place, text in enumerate(listed)]


def _sequences(expected: Arrays, answer: Arrays) -> Iterator[str]:
    """Texts with a token in the place of their mask: wherever it stands by its score, a token makes one text."""
    for row in range(len(expected.get(SEQUENCE, ()))):
        owed, found = (
            {
                token: text
                for token, text in zip(one[TOKEN][row], one[SEQUENCE][row], strict=True)
                if one[TOKEN][row].tolist().count(token) == 1
            }
            for one in (expected, answer)
        )
        for token in owed.keys() & found.keys():
            if owed[token] != found[token]:
                yield (
                    f"{SEQUENCE} of row {row} with {_text(token)!r} is {_text(found[token])[:80]!r}, and should be"
                    f" {_text(owed[token])[:80]!r}"
                )


def _scores(expected: NDArray[Any], answer: NDArray[Any], limit: float) -> Iterator[str]:
    import numpy as np

    worst = float(np.abs(expected.astype(np.float64) - answer.astype(np.float64)).max(initial=0.0))
    if not worst <= limit:
        yield f"{SCORE} is off by {worst:.3g}, allowed {limit:.3g}"


def _texts(expected: Arrays, answer: Arrays, limit: float) -> Iterator[str]:
    """Texts and places in them, which are right or wrong."""
    for name, array in expected.items():
        if array.dtype.kind == "f":
            continue
        if name == CLASS_MAP and array.dtype.kind in "iu":
            yield from _maps(array, answer[name])
            continue
        width = max(1, array.size // max(1, len(array)))
        pairs = zip(array.reshape(-1).tolist(), answer[name].reshape(-1).tolist(), strict=True)
        for place, (owed, found) in enumerate(pairs):
            is_near = (name in _SCORED and _same_scored(owed, found, limit)) or (
                name == SEGMENTS and _same_segments(owed, found)
            )
            if owed != found and not is_near:
                yield f"{name} of row {place // width} is {_text(found)[:80]!r}, and should be {_text(owed)[:80]!r}"


def _maps(expected: NDArray[Any], answer: NDArray[Any]) -> Iterator[str]:
    """Maps of classes, a row each."""
    for row, (owed, found) in enumerate(zip(expected, answer, strict=True)):
        differing = int((owed != found).sum())
        if differing > _most_pixels(owed.size):
            yield f"{CLASS_MAP} of row {row} has another class in {differing} of {owed.size} pixels"


def _most_pixels(count: int) -> float:
    return max(1.0, _OTHER_PIXELS * count)


def _same_segments(owed: bytes, found: bytes) -> bool:
    """Whether the classes of a map have as many pixels, but for those that may be of another class."""
    try:
        counts = [{(one["id"], one["label"]): one["pixels"] for one in json.loads(text)} for text in (owed, found)]
        wanted, made = counts
        apart = sum(abs(wanted.get(key, 0) - made.get(key, 0)) for key in wanted | made)
        return bool(apart <= 2 * _most_pixels(sum(wanted.values())))
    except (ValueError, TypeError, KeyError):
        return False


def _same_scored(owed: bytes, found: bytes, limit: float) -> bool:
    """Whether entities or objects differ in their scores alone, or in the rounding of a box to whole pixels.

    Those of equal scores may stand in either order. What a script calls so may be other texts.
    """
    try:
        wanted, made = json.loads(owed), json.loads(found)
        if len(wanted) != len(made) or not all(
            abs(one[SCORE] - other[SCORE]) <= limit for one, other in zip(wanted, made, strict=True)
        ):
            return False
        for one in wanted:
            near = [other for other in made if _same_record(one, other, limit)]
            made.remove(min(near, key=partial(_pixels_apart, one)))  # of none, min raises ValueError
    except (ValueError, TypeError, KeyError, AttributeError):
        return False
    return True


def _same_record(owed: Mapping[str, Any], found: Mapping[str, Any], limit: float) -> bool:
    return (
        {**owed, SCORE: 0, _BOX: 0} == {**found, SCORE: 0, _BOX: 0}
        and abs(owed[SCORE] - found[SCORE]) <= limit
        and owed.get(_BOX, {}).keys() == found.get(_BOX, {}).keys()
        and all(abs(side - found[_BOX][name]) <= 1 for name, side in owed.get(_BOX, {}).items())
    )


def _pixels_apart(owed: Mapping[str, Any], found: Mapping[str, Any]) -> int:
    return sum(abs(side - found[_BOX][name]) for name, side in owed.get(_BOX, {}).items())


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def refusals(pipeline: Pipeline | Script) -> list[str]:
    """Why a pipeline, or a script, must not be used: a line for each answer that is not what it should be."""
    return [f"{one.case}: {failure}" for one in pipeline.agreements for failure in one.failures]
