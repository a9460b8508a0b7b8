"""What a report tells of: a release's manifest, or as much of it as a refused compile had."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from plansmith import __version__
from plansmith.manifest import Manifest, StepRecord
from plansmith.reports import ServedReport, ValidationReport
from plansmith.types import (
    DataSet,
    Engine,
    FileEntry,
    LoweredModel,
    OnnxModel,
    Precision,
    Record,
    SourceModel,
    Trial,
)


class ReportFacts(Record):
    """A release, or a compile that ended at the gate: then `version` and what comes after the gate are None or empty.

    `target` is the target's name; `spec` is what was asked for, as JSON values.
    """

    name: str
    version: int | None = None
    created: str
    plansmith: str = __version__
    target: str
    spec: dict[str, Any]
    validation: ValidationReport
    release_digest: str | None = None
    source: SourceModel | None = None
    onnx: OnnxModel | None = None
    data: DataSet | None = None
    lowered: LoweredModel | None = None
    engine: Engine | None = None
    served: ServedReport | None = None
    files: tuple[FileEntry, ...] = ()
    steps: tuple[StepRecord, ...] = ()

    @property
    def passed(self) -> bool:
        """The gate's verdict."""
        return self.validation.verdict == "passed"

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

    @property
    def not_validated(self) -> tuple[str, ...]:
        """What could not be tried on this machine, from the gate and from lowering, each once."""
        recipe = self.lowered.recipe if self.lowered else None
        return tuple(dict.fromkeys((*self.validation.not_validated, *(recipe.not_validated if recipe else ()))))


def facts_of(manifest: Manifest) -> ReportFacts:
    """What the manifest of a release tells."""
    shared = set(ReportFacts.model_fields) & set(Manifest.model_fields)
    return ReportFacts(**{name: getattr(manifest, name) for name in shared})


def unfinished(
    name: str,
    target: str,
    spec: dict[str, Any],
    validation: ValidationReport,
    *,
    source: SourceModel | None = None,
    onnx: OnnxModel | None = None,
    data: DataSet | None = None,
    lowered: LoweredModel | None = None,
    engine: Engine | None = None,
    steps: tuple[StepRecord, ...] = (),
) -> ReportFacts:
    """What is known of a compile that the gate has just refused.

    Args:
        name: of the model.
        target: name of the target.
        spec: what was asked for, as JSON values.
        validation: the gate's report.
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
