"""The first screen: passed or failed, how far from the limits, and the figures that people ask for first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from plansmith.formatting import format_bytes
from plansmith.records.model import EngineKind, Precision, Trial
from plansmith.report import margins, numbers
from plansmith.report.facts import ReportFacts
from plansmith.report.margins import Margin

MODEL_FOLDER, MEMBERS_FOLDER = "model/", "members/"
ENGINES = {
    EngineKind.ONNXRUNTIME: "ONNX Runtime",
    EngineKind.TENSORRT: "TensorRT",
    EngineKind.PYTHON: "Triton's Python backend",
}

_FIRST_FAILURES = 5


@dataclass(frozen=True)
class Tile:
    """A figure with its name above and a word about it below."""

    label: str
    value: str
    note: str


@dataclass(frozen=True)
class Verdict:
    """What the gate said, in words.

    Args:
        word: Passed or Failed.
        sentence: follows the model's name.
        nearest: the figure that is nearest to its limit, or farthest beyond it.
        failures: the first breaches.
        more_failures: the others.
        cautions: what a reader must know before he relies on it.
        tiles: the figures.
    """

    word: str
    sentence: str
    nearest: Margin | None
    failures: tuple[str, ...]
    more_failures: tuple[str, ...]
    cautions: tuple[str, ...]
    tiles: tuple[Tile, ...]


def verdict_of(facts: ReportFacts) -> Verdict:
    """The verdict and the figures beside it."""
    failures = tuple(facts.failures())
    return Verdict(
        word="Passed" if facts.passed else "Failed",
        sentence=_sentence(facts, len(failures)),
        nearest=margins.nearest(facts.validation) if facts.validation else None,
        failures=failures[:_FIRST_FAILURES],
        more_failures=failures[_FIRST_FAILURES:],
        cautions=tuple(_cautions(facts)),
        tiles=tuple(_tiles(facts)),
    )


def _sentence(facts: ReportFacts, failures: int) -> str:
    form = f"in {facts.precision.upper()}" if facts.precision else "as compiled"
    kind = facts.engine.kind if facts.engine else facts.spec.get("engine")
    runtime = f" with {ENGINES[EngineKind(kind)]}" if kind else ""
    if facts.passed:
        original = "the original model" if facts.precision is Precision.FP32 else "the FP32 model"
        return f"{form}{runtime} answers as {original} does, within everything that is allowed."
    end = " Nothing was published." if facts.version is None else ""
    if facts.validation is None:
        tried = numbers.count(len(facts.trials), "recipe")
        return f"{form}{runtime} was refused: of {tried} that were tried, none is accurate enough.{end}"
    found = numbers.count(failures, "figure is", "figures are")
    return f"{form}{runtime} was refused: {found} beyond what is allowed.{end}"


def _cautions(facts: ReportFacts) -> Iterator[str]:
    if facts.source is not None and facts.source.random_weights:
        yield "The weights were drawn at random: this tells of the graph, not of a trained model."
    guessed = facts.onnx.reference.guessed if facts.onnx else False
    if facts.data is not None and facts.data.guessed:
        yield f"The samples were drawn at random ({facts.data.words}): real ones would tell more."
    elif facts.data is not None and not facts.data.real:
        yield f"The samples are not the model's own kind of data but {facts.data.words}: real ones would tell more."
    elif facts.data is None and guessed and facts.validation is not None:
        yield f"The inputs are {facts.validation.data}: real ones would tell more."
    for held in facts.onnx.held if facts.onnx else ():
        yield f"{held.words}."
    if facts.lowered is not None and facts.lowered.warnings:
        doubts = facts.lowered.warnings
        yield f"{numbers.count(len(doubts), 'doubtful thing')} in the lowering of the file; the first: {doubts[0]}."
    for words in facts.not_validated:
        yield f"Not tried on this machine: {words}."
    if facts.version is not None and facts.served is None:
        yield "Not checked on a running Triton."


def _tiles(facts: ReportFacts) -> Iterator[Tile]:
    chosen = facts.chosen
    if chosen is not None:
        kept = ", the others kept" if chosen.kept else ""
        yield Tile("Lowered", f"{chosen.lowered:,}", f"of {chosen.lowered + chosen.kept:,} nodes{kept}")
    size = _size(facts, chosen)
    if size is not None:
        yield size
    if chosen is not None and chosen.speed is not None:
        yield _speed(chosen)
    yield from _latency(facts)
    evaluation = facts.validation.evaluation if facts.validation else None
    if evaluation is not None and evaluation.agreements:
        worst = min(evaluation.agreements, key=lambda agreement: agreement.mean_cosine)
        note = f"of {worst.samples:,} held-out samples, smallest {numbers.cosine(worst.min_cosine)}"
        yield Tile("Mean cosine", numbers.cosine(worst.mean_cosine), note)
    for metric in evaluation.metrics if evaluation else ():
        note = f"{numbers.measure(metric.reference)} before, {numbers.measure(metric.candidate)} now"
        yield Tile(f"Change of {metric.name}", numbers.signed(metric.change.value), note)
    compared = [c for c in facts.validation.comparisons if c.elements] if facts.validation else []
    if compared and evaluation is None:
        largest = max(compared, key=lambda c: c.max_relative)
        yield Tile("Largest error", numbers.relative(largest.max_relative), f"of the magnitude, at {largest.case}")
        least = min(compared, key=lambda c: c.min_cosine)
        yield Tile("Smallest cosine", numbers.cosine(least.min_cosine), f"of a sample, at {least.case}")


def _latency(facts: ReportFacts) -> Iterator[Tile]:
    """How fast the plans are at the opt shapes of their first profiles."""
    speeds = facts.validation.speeds if facts.validation else ()
    for plan in dict.fromkeys(speed.plan for speed in speeds):
        speed = next(speed for speed in speeds if speed.plan == plan)
        higher = [b.speed for b in speed.baselines if b.kind == "plan" and b.speed is not None]
        note = f"{speed.profile} on {plan}"
        if higher:
            note += f", {numbers.times(higher[0].ratio)} the speed of the next higher precision"
        yield Tile("Plan's median", numbers.milliseconds(speed.median_ms), note)


def _size(facts: ReportFacts, chosen: Trial | None) -> Tile | None:
    """The size of what is served, beside that of FP32 where that is known."""
    if chosen is None:
        served = [file.bytes for file in facts.files if file.path.startswith((MODEL_FOLDER, MEMBERS_FOLDER))]
        note = numbers.count(len(served), "file")
        return Tile("Size", format_bytes(sum(served)), f"{note} for Triton") if served else None
    full = facts.lowered.fp32_bytes if facts.lowered else 0
    note = "of the graph"
    if full:
        note = f"{numbers.percent(chosen.file_bytes / full)} of FP32's {format_bytes(full)}"
    return Tile("Size", format_bytes(chosen.file_bytes), note)


def _speed(chosen: Trial) -> Tile:
    assert chosen.speed is not None
    speed = chosen.speed
    between = f"{numbers.times(speed.low)} to {numbers.times(speed.high)} at 95\N{NO-BREAK SPACE}%"
    verdict = "undecided: " if speed.verdict == "undecided" else ""
    return Tile("Speed beside FP32", numbers.times(speed.ratio), f"{verdict}{between}")
