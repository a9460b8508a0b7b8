"""Report summary: passed or failed, the distance from the limits, and the key figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import Field

from plansmith import __version__, formatting
from plansmith.formatting import format_bytes
from plansmith.records.engine import Engine
from plansmith.records.model import (
    DataSet,
    EngineKind,
    FileEntry,
    LoweredModel,
    OnnxModel,
    Precision,
    Record,
    SourceModel,
    Trial,
)
from plansmith.records.pipeline import Pipeline, Script
from plansmith.records.release import Manifest, ReleasedModel, StepRecord
from plansmith.records.validation import ServedReport, ValidationReport
from plansmith.report import numbers
from plansmith.report.numbers import Margin
from plansmith.validation.coverage import never_ran

ENGINES = {
    EngineKind.ONNXRUNTIME: "ONNX Runtime",
    EngineKind.TENSORRT: "TensorRT",
    EngineKind.PYTHON: "Triton's Python backend",
}
_FIRST_FAILURES = 5


class ReportFacts(Record):
    """Facts on a release or refused compile; for the latter, `version` and all after the refusal are None or empty.

    `validation` is None where no recipe was accurate enough for an engine; `lowered.trials` say why. `target` is the
    target's name; `spec` is what was asked for, as JSON values.
    """

    name: str
    version: int | None = None
    created: str
    plansmith: str = __version__
    target: str
    spec: dict[str, Any]
    validation: ValidationReport | None
    release_digest: str | None = None
    source: SourceModel | None = None
    onnx: OnnxModel | None = None
    data: DataSet | None = None
    lowered: LoweredModel | None = None
    engine: Engine | None = None
    pipeline: Pipeline | None = None
    script: Script | None = None
    beside: dict[str, ReleasedModel] = Field(default_factory=dict)
    served: ServedReport | None = None
    files: tuple[FileEntry, ...] = ()
    steps: tuple[StepRecord, ...] = ()

    @property
    def passed(self) -> bool:
        """The gate's verdict."""
        return self.validation is not None and self.validation.verdict == "passed"

    @property
    def precision(self) -> Precision | None:
        """The candidate's precision of storage and computation; None if not recorded."""
        artifact = self.lowered or self.engine or self.onnx
        return artifact.precision if artifact else None

    @property
    def chosen(self) -> Trial | None:
        """The trial whose recipe was chosen, if recipes were tried."""
        return next((trial for trial in self.trials if trial.chosen), None)

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Every recipe that was tried."""
        return self.lowered.trials if self.lowered else ()

    def failures(self) -> list[str]:
        """Return one line per breach; if no recipe was accurate enough, per recipe, the best first."""
        if self.validation is not None:
            return self.validation.failures()
        best_first = sorted(self.trials, key=lambda trial: -trial.score)
        return [f"{trial.name}: {trial.problem}" for trial in best_first if trial.problem is not None]

    @property
    def not_validated(self) -> tuple[str, ...]:
        """Parts that could not be tested on this machine, from gate, lowering and plans, without duplicates.

        What a plan that ran has shown of what lowering could not try, the gate knows.
        """
        ran = self.validation is not None and bool(self.validation.ran)
        recipe = self.lowered.recipe if self.lowered and not ran else None
        notes = [report.not_validated for report in (self.validation, recipe) if report is not None]
        notes += [never_ran(self.engine, self.validation.ran)] if self.engine and self.validation else []
        return tuple(dict.fromkeys(line for lines in notes for line in lines))


def facts_of(manifest: Manifest) -> ReportFacts:
    """Return the facts in a release's manifest."""
    shared = set(ReportFacts.model_fields) & set(Manifest.model_fields)
    return ReportFacts(**{name: getattr(manifest, name) for name in shared})


def unfinished(
    name: str,
    target: str,
    spec: dict[str, Any],
    validation: ValidationReport | None,
    *,
    source: SourceModel | None = None,
    onnx: OnnxModel | None = None,
    data: DataSet | None = None,
    lowered: LoweredModel | None = None,
    engine: Engine | None = None,
    steps: tuple[StepRecord, ...] = (),
) -> ReportFacts:
    """Return the facts of a compile that the gate, or the lowering before it, has just refused.

    Args:
        name: of the model.
        target: name of the target.
        spec: what was asked for, as JSON values.
        validation: the gate's report; None where the lowering found no recipe that is accurate enough.
        source: the model that was fetched.
        onnx: the exported graph.
        data: the samples.
        lowered: the lowered graph, and how it was found.
        engine: what was built of it.
        steps: how the steps went.
    """
    return ReportFacts(
        name=name,
        created=datetime.now(UTC).isoformat(timespec="milliseconds"),
        target=target,
        spec=spec,
        validation=validation,
        source=source,
        onnx=onnx,
        data=data,
        lowered=lowered,
        engine=engine,
        steps=steps,
    )


MODEL_FOLDER, MEMBERS_FOLDER = "model/", "members/"


@dataclass(frozen=True)
class Tile:
    """Figure with its name above and a short note below."""

    label: str
    value: str
    note: str


@dataclass(frozen=True)
class Verdict:
    """Verdict of the gate, as text.

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
    """Return the verdict and its key figures."""
    failures = tuple(facts.failures())
    return Verdict(
        word="Passed" if facts.passed else "Failed",
        sentence=_sentence(facts, len(failures)),
        nearest=numbers.nearest(facts.validation) if facts.validation else None,
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
        tried = formatting.count(len(facts.trials), "recipe")
        return f"{form}{runtime} was refused: of {tried} that were tried, none is accurate enough.{end}"
    figures = formatting.count(failures, "figure is", "figures are")
    return f"{form}{runtime} was refused: {figures} beyond what is allowed.{end}"


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
    for axis in facts.onnx.constrained_axes if facts.onnx else ():
        yield f"{axis.explanation}."
    if facts.lowered is not None and facts.lowered.warnings:
        doubts = facts.lowered.warnings
        yield f"{formatting.count(len(doubts), 'doubtful thing')} in the lowering of the file; the first: {doubts[0]}."
    for note in facts.not_validated:
        yield f"Not tried on this machine: {note}."
    if facts.version is not None and facts.served is None:
        yield "Not checked on a running Triton."


def _tiles(facts: ReportFacts) -> Iterator[Tile]:
    chosen = facts.chosen
    if chosen is not None:
        suffix = ", the others kept" if chosen.kept else ""
        yield Tile("Lowered", f"{chosen.lowered:,}", f"of {chosen.lowered + chosen.kept:,} nodes{suffix}")
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
    """Return the latency of the plans at the opt shapes of their first profiles."""
    speeds = facts.validation.speeds if facts.validation else ()
    for plan in dict.fromkeys(speed.plan for speed in speeds):
        speed = next(speed for speed in speeds if speed.plan == plan)
        higher = [b.speed for b in speed.baselines if b.kind == "plan" and b.speed is not None]
        note = f"{speed.profile} on {plan}"
        if higher:
            note += f", {numbers.times(higher[0].ratio)} the speed of the next higher precision"
        yield Tile("Plan's median", numbers.milliseconds(speed.median_ms), note)


def _size(facts: ReportFacts, chosen: Trial | None) -> Tile | None:
    """Return the size of the served files, compared with FP32 if known."""
    if chosen is None:
        served = [file.bytes for file in facts.files if file.path.startswith((MODEL_FOLDER, MEMBERS_FOLDER))]
        note = formatting.count(len(served), "file")
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
