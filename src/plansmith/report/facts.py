"""What a report tells of: a release's manifest, or as much of it as a refused compile had."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pydantic import Field

from plansmith import __version__
from plansmith.records.engine import Engine
from plansmith.records.model import DataSet, FileEntry, LoweredModel, OnnxModel, Precision, Record, SourceModel, Trial
from plansmith.records.pipeline import Pipeline, Script
from plansmith.records.release import Manifest, ReleasedModel, StepRecord
from plansmith.records.validation import ServedReport, ValidationReport
from plansmith.validation.coverage import never_ran


class ReportFacts(Record):
    """A release, or a compile that was refused: then `version` and what comes after the refusal are None or empty.

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
        """What the candidate is stored and computed in; None where no record says so."""
        made = self.lowered or self.engine or self.onnx
        return made.precision if made else None

    @property
    def chosen(self) -> Trial | None:
        """The trial whose recipe was taken, where recipes were tried."""
        return next((trial for trial in self.trials if trial.chosen), None)

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Every recipe that was tried."""
        return self.lowered.trials if self.lowered else ()

    def failures(self) -> list[str]:
        """One line per breach; per recipe, the best first, where none was accurate enough."""
        if self.validation is not None:
            return self.validation.failures()
        best_first = sorted(self.trials, key=lambda trial: -trial.score)
        return [f"{trial.name}: {trial.problem}" for trial in best_first if trial.problem is not None]

    @property
    def not_validated(self) -> tuple[str, ...]:
        """What could not be tried on this machine, from the gate, from lowering and of the plans, each once.

        What a plan that ran has shown of what lowering could not try, the gate knows.
        """
        ran = self.validation is not None and bool(self.validation.ran)
        recipe = self.lowered.recipe if self.lowered and not ran else None
        told = [found.not_validated for found in (self.validation, recipe) if found is not None]
        told += [never_ran(self.engine, self.validation.ran)] if self.engine and self.validation else []
        return tuple(dict.fromkeys(line for lines in told for line in lines))


def facts_of(manifest: Manifest) -> ReportFacts:
    """What the manifest of a release tells."""
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
    """What is known of a compile that the gate, or the lowering before it, has just refused.

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
