"""What a lowering made and what it costs, in lines for a person."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import islice

from plansmith.formatting import format_bytes
from plansmith.records.model import LoweredModel, Precision, SpeedRatio
from plansmith.records.validation import Evaluation, OutputAgreement, ValidationReport

_MEASURED_AS = {
    "same_first": ("first class", {"same first class", "same class of a token"}),
    "same_neighbour": ("nearest neighbour", {"same nearest neighbour"}),
}
"""What an agreement counts, its name, and the measures that tell the same with an interval."""

_EVIDENCE = {"shipped": "plansmith's own samples", "drawn": "values drawn at random"}

_MOST_OPERATORS = 5

_FEWEST_DIGITS, _MOST_DIGITS = 4, 9

_ROUNDING = 1e-6


def recipe_lines(lowered: LoweredModel) -> Iterator[str]:
    """How a graph was lowered, how large it became, how fast it is; nothing for what was not lowered."""
    recipe = lowered.recipe
    if recipe is None:
        return
    operators = _counted(recipe.lowered)
    kept = f"; {len(recipe.kept)} {'node stays' if len(recipe.kept) == 1 else 'nodes stay'} higher"
    yield f"{recipe.method}: {operators} lowered{kept if recipe.kept else ''}" if operators else recipe.method
    chosen = next((trial for trial in lowered.trials if trial.chosen), None)
    if chosen is None:
        return
    share = f", {chosen.file_bytes / lowered.fp32_bytes:.2f} of FP32" if lowered.fp32_bytes else ""
    yield f"{format_bytes(chosen.file_bytes)}{share}"
    if chosen.speed is not None:
        yield format_speedup(chosen.speed)
        yield f"  {chosen.speed.setting}"


def format_speedup(speed: SpeedRatio) -> str:
    """A ratio with its interval, and what that does not prove."""
    doubt = "" if speed.verdict == "faster" else f": {speed.verdict}"
    return f"{speed.ratio:.2f} times as fast as FP32 (95 % interval {speed.low:.2f} to {speed.high:.2f}{doubt})"


def describe_choice(lowered: LoweredModel) -> str:
    """What a choice by speed took, and beside what; a precision with no recipe that passed is said to have none."""
    ratios: dict[Precision, list[float]] = {}
    for trial in lowered.trials:
        ratios.setdefault(trial.precision, []).extend([trial.speed.ratio] if trial.speed and not trial.problem else [])
    told = [
        f"{precision} {max(found):.2f} times as fast as fp32" if found else f"no {precision} that can be taken"
        for precision, found in ratios.items()
    ]
    return f"auto took {lowered.precision}: {', '.join(told) or 'nothing lower was tried'}"


def describe_output_agreement(evaluation: Evaluation, agreement: OutputAgreement) -> str:
    """How near one output is to FP32's, but for what a measure of the task tells anyway."""
    words = [
        f"mean cosine {format_cosine(agreement.mean_cosine)}",
        f"worst {format_cosine(agreement.min_cosine)}",
        f"SQNR {agreement.sqnr_db:.1f} dB",
    ]
    if agreement.kl is not None:
        words.append(f"KL {agreement.kl:.2g} nats")
    measured = {metric.name for metric in evaluation.metrics}
    for field, (name, measures) in _MEASURED_AS.items():
        share = getattr(agreement, field)
        if share is not None and measured.isdisjoint(measures):
            words.append(f"the same {name} in {share:.1%}")
    if agreement.first_among_five is not None:
        words.append(f"FP32's class among the first five in {agreement.first_among_five:.1%}")
    return ", ".join(words)


def evaluation_lines(evaluation: Evaluation) -> Iterator[tuple[str, bool]]:
    """What the held-out samples showed, a line an output and a measure, and whether that is within the limits."""
    for agreement in evaluation.agreements:
        yield f"{agreement.output}: {describe_output_agreement(evaluation, agreement)}", not agreement.failures
    for metric in evaluation.metrics:
        yield metric.words(), not metric.failures


def describe_held_out(evaluation: Evaluation) -> str:
    """How many samples, and of what."""
    return f"{evaluation.samples} held-out samples of {evaluation.data}"


def doubts(validation: ValidationReport) -> Iterator[str]:
    """What nothing has shown: a lowering without real inputs, and what could not be tried on this machine."""
    is_lowered = validation.precision not in (None, Precision.FP32)
    if is_lowered and validation.evidence not in (None, "given"):
        own = _EVIDENCE[validation.evidence]
        searched = ", which the search for its recipe had looked at too" if validation.searched else ""
        yield (
            f"{validation.precision} was judged on {own} alone{searched}: give real ones with --data, and keep some for"
            " `evaluation`"
        )
    for words in validation.not_validated:
        yield f"not validated: {words}"


def format_cosine(cosine: float) -> str:
    """A cosine with two digits of what it lacks to 1, cut off rather than rounded up: 0.9986, 0.99995, 1.000000000."""
    digits = 1 + math.ceil(-math.log10(max(1 - cosine, 10.0**-_MOST_DIGITS)))
    digits = min(max(digits, _FEWEST_DIGITS), _MOST_DIGITS)
    return f"{math.floor(cosine * 10**digits + _ROUNDING) / 10**digits:.{digits}f}"


def _counted(operators: Mapping[str, int]) -> str:
    """Operators by their number, the most frequent ones by name."""
    named = [f"{count} {operator}" for operator, count in islice(operators.items(), _MOST_OPERATORS)]
    others = sum(islice(operators.values(), _MOST_OPERATORS, None))
    return ", ".join([*named, f"{others} other nodes"] if others else named)
