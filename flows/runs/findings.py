"""What a compile found out, in a few figures that travel with the outcome of its flow run."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from plansmith.records.model import Record
from plansmith.records.release import Manifest, PublishedVersion
from plansmith.records.validation import ValidationReport
from plansmith.triton.repository.release import read_manifest

Figures = dict[str, int | float | str]
"""Values by name."""

_DIGITS = 6


class Findings(Record):
    """What a compile found out beside how it ended.

    `places`: where the version stands, each in words; `manifest_digest`: of its release; `figures`: of what was judged,
    also where the gate refused it.
    """

    places: tuple[str, ...] = ()
    manifest_digest: str = ""
    figures: Figures = Field(default_factory=dict)


def findings_of(ended: PublishedVersion | BaseException, judged: ValidationReport | None) -> Findings:
    """What was found out of a compile.

    Args:
        ended: the version that stands now, or what ended the compile.
        judged: the gate's last report; None where it did not get so far.

    Raises:
        RepositoryError: what was just published cannot be read.
    """
    if isinstance(ended, BaseException):
        return Findings(figures=_judged(judged) if judged is not None else {})
    stores = (f"{one.place} version {one.version}" for one in ended.publications)
    return Findings(
        places=(f"{ended.repository} version {ended.version}", *stores),
        manifest_digest=ended.manifest_digest,
        figures=figures_of(read_manifest(Path(ended.release))),
    )


def figures_of(manifest: Manifest) -> Figures:
    """A release in a few figures: its size, how fast it answers, and how far it is from the reference."""
    told: Figures = {"bytes": sum(file.bytes for file in manifest.files)}
    if manifest.served is not None:
        told["served_ms"] = _short(manifest.served.median_seconds * 1000)
    return {**told, **_judged(manifest.validation)}


def _judged(report: ValidationReport) -> Figures:
    worst = report.worst().values()
    told: Figures = {}
    if report.precision is not None:
        told["precision"] = report.precision
    if worst:
        told["max_relative"] = _short(max(row["max_relative"] for row in worst))
        told["min_cosine"] = _short(min(row["min_cosine"] for row in worst))
    if report.speeds:
        told["plan_ms"] = _short(max(one.median_ms for one in report.speeds))
    if report.evaluation is not None:
        told["samples"] = report.evaluation.samples
        for metric in report.evaluation.metrics:
            told[metric.name] = _short(metric.candidate)
            told[f"{metric.name}_reference"] = _short(metric.reference)
    return told


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
