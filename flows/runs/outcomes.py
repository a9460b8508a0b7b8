"""Compile outcomes: stored with the flow run as an artifact for those waiting for the run.

Results of runs travel through Prefect's API and never through files: the process that waits may be on another machine,
and the record of a run that failed is worth as much as that of one that went well.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from pydantic import Field, TypeAdapter

from plansmith.config.source_reference import parse_reference
from plansmith.errors import EnvironmentFault, PlansmithError, first_line
from plansmith.fleet.records import Ended, ModelOutcome, describe_outcome, failure_of, model_for
from plansmith.flows.deploy.automations import PUBLISHED, RELEASES
from plansmith.flows.deploy.deployments import TAG
from plansmith.records.model import Record
from plansmith.records.release import Manifest, PublishedVersion
from plansmith.records.validation import ValidationReport
from plansmith.triton.repository.release import read_manifest

if TYPE_CHECKING:
    from plansmith.config.spec import ModelSpec


Figures = dict[str, int | float | str]
"""Values by name."""

_DIGITS = 6

R = TypeVar("R")
_OUTCOME = "outcome"
_ROWS = TypeAdapter(list[dict[str, Any]])


class Findings(Record):
    """Findings of a compile, in addition to its outcome.

    `places`: where the version stands, each in words; `manifest_digest`: of its release; `figures`: of what was judged,
    also where the gate refused it.
    """

    places: tuple[str, ...] = ()
    manifest_digest: str = ""
    figures: Figures = Field(default_factory=dict)


def findings_of(ended: PublishedVersion | BaseException, judged: ValidationReport | None) -> Findings:
    """Return the findings of a compile.

    Args:
        ended: the version that stands now, or what ended the compile.
        judged: the gate's last report; None where it did not get so far.

    Raises:
        RepositoryError: what was just published cannot be read.
    """
    if isinstance(ended, BaseException):
        return Findings(figures=_judged(judged) if judged is not None else {})
    stores = (f"{publication.place} version {publication.version}" for publication in ended.publications)
    return Findings(
        places=(f"{ended.repository} version {ended.version}", *stores),
        manifest_digest=ended.manifest_digest,
        figures=figures_of(read_manifest(Path(ended.release))),
    )


def figures_of(manifest: Manifest) -> Figures:
    """Return key figures of a release: its size, its latency, and its deviation from the reference."""
    figures: Figures = {"bytes": sum(file.bytes for file in manifest.files)}
    if manifest.served is not None:
        figures["served_ms"] = _short(manifest.served.median_seconds * 1000)
    return {**figures, **_judged(manifest.validation)}


def _judged(report: ValidationReport) -> Figures:
    worst = report.worst().values()
    figures: Figures = {}
    if report.precision is not None:
        figures["precision"] = report.precision
    if worst:
        figures["max_relative"] = _short(max(row["max_relative"] for row in worst))
        figures["min_cosine"] = _short(min(row["min_cosine"] for row in worst))
    if report.speeds:
        figures["plan_ms"] = _short(max(speed.median_ms for speed in report.speeds))
    if report.evaluation is not None:
        figures["samples"] = report.evaluation.samples
        for metric in report.evaluation.metrics:
            figures[metric.name] = _short(metric.candidate)
            figures[f"{metric.name}_reference"] = _short(metric.reference)
    return figures


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


_RECORD, _FINDINGS = "record", "findings"


def model_name(spec: ModelSpec, folder: Path) -> str:
    """Return the model's name in Triton; its source if unreadable, which the compile itself refuses.

    Args:
        spec: of the model.
        folder: what relative directories in it start from.
    """
    try:
        return spec.name or parse_reference(spec.source, relative_to=folder).default_name
    except PlansmithError:
        return spec.source


def key_of(model: str, target: str) -> str:
    """Return the suffix of a model's artifact keys: lower-case letters, digits and dashes, as Prefect requires."""
    return re.sub(r"[^a-z0-9]+", "-", f"{model}-{target}".lower()).strip("-")


def outcome_key(model: str, target: str) -> str:
    """Return the key of the outcome artifact of a model for a target."""
    return f"{_OUTCOME}-{key_of(model, target)}"


def tags_of(model: str, target: str) -> list[str]:
    """Return the tags by which a model's runs for a target are found."""
    return [TAG, f"model:{model}", f"target:{target}"]


def outcome_of(model: str, target: str, ended: PublishedVersion | BaseException, seconds: float) -> ModelOutcome:
    """Return the outcome of the current flow run's compile.

    Args:
        model: its name.
        target: the runtime that it is for.
        ended: the version that stands now, or what ended the compile.
        seconds: that it took.
    """
    from prefect.runtime import flow_run
    from prefect.utilities.urls import url_for

    where: dict[str, Any] = {"model": model, "target": target, "file": "", "seconds": round(seconds, 3)}
    where["run"] = url_for("flow-run", flow_run.get_id()) or flow_run.get_id()
    if not isinstance(ended, BaseException):
        return ModelOutcome(ended="unchanged" if ended.unchanged else "published", version=ended.version, **where)
    how: Ended = "failed" if isinstance(ended, Exception) else "interrupted"
    return ModelOutcome(ended=how, failure=failure_of(ended), **where)


def server_time() -> datetime:
    """Return the start of the current flow run by the server's clock, as clocks differ between machines."""
    from prefect.client.orchestration import get_client
    from prefect.runtime import flow_run

    with get_client(sync_client=True) as client:
        began = client.read_flow_run(UUID(flow_run.get_id())).updated
    assert began is not None
    return began


def leave_outcome(outcome: ModelOutcome, findings: Findings) -> None:
    """Create the outcome artifact in the current flow run: a row for display, with the complete records in it.

    Raises:
        httpx.HTTPError, PrefectException: Prefect did not take it.
    """
    from prefect.artifacts import create_table_artifact

    row = {
        "model": outcome.model,
        "target": outcome.target,
        "ended": outcome.ended,
        "version": outcome.version,
        "failure": outcome.failure.message if outcome.failure else "",
        _RECORD: outcome.model_dump_json(),
        _FINDINGS: findings.model_dump_json(),
    }
    create_table_artifact(
        [row],
        key=outcome_key(outcome.model, outcome.target),
        description=f"{model_for(outcome.model, outcome.target)}: {describe_outcome(outcome)}",
    )


def read_outcome(run: UUID) -> ModelOutcome | None:
    """Read the outcome of a compile-model run; None if it stored none, for example because it was killed.

    Raises:
        EnvironmentFault: what it left cannot be read.
        httpx.HTTPError, PrefectException: Prefect cannot be asked.
    """
    return _read(run, lambda row: ModelOutcome.model_validate_json(row[_RECORD]))


def read_findings(run: UUID) -> Findings | None:
    """Read the findings of a compile-model run; otherwise as `read_outcome`."""
    return _read(run, lambda row: Findings.model_validate_json(row.get(_FINDINGS, "{}")))


def _read(run: UUID, of: Callable[[dict[str, Any]], R]) -> R | None:
    """Read a part of the newest outcome that a run stored."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, ArtifactFilterKey

    selection = ArtifactFilter(
        flow_run_id=ArtifactFilterFlowRunId(any_=[run]), key=ArtifactFilterKey(like_=f"{_OUTCOME}-%")
    )
    with get_client(sync_client=True) as client:
        artifacts = client.read_artifacts(artifact_filter=selection)
    # A run that was started twice, as one whose worker was lost for a while, has left one for each time.
    if not artifacts:
        return None
    newest = max(artifacts, key=lambda artifact: str(artifact.created))
    try:
        (row,) = _ROWS.validate_json(str(newest.data))
        return of(row)
    except (ValueError, KeyError) as error:
        raise EnvironmentFault(
            f"what its run left as {newest.key} cannot be read: {first_line(error)}",
            remedy="install one version of plansmith on all machines, and look at the run",
        ) from error


def announce(published: PublishedVersion, target: str) -> None:
    """Emit the Prefect event of a new version, which triggers automations."""
    from prefect.events import emit_event

    emit_event(
        PUBLISHED,
        resource={
            "prefect.resource.id": f"{RELEASES}{key_of(published.name, target)}",
            "prefect.resource.name": model_for(published.name, target),
        },
        payload={
            "model": published.name,
            "target": target,
            "version": published.version,
            "repository": published.repository,
            "release": published.release,
            "manifest_digest": published.manifest_digest,
            "published": published.published,
            "stores": [publication.place for publication in published.publications],
        },
    )
