"""What came of a compile, left with its flow run as an artifact that whoever waits for the run reads.

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

from prefect.artifacts import create_table_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, ArtifactFilterKey
from prefect.events import emit_event
from prefect.runtime import flow_run
from prefect.utilities.urls import url_for
from pydantic import TypeAdapter

from plansmith.config.source_reference import parse_reference
from plansmith.errors import EnvironmentFault, PlansmithError, first_line
from plansmith.fleet.records import Ended, ModelOutcome, failure_of
from plansmith.fleet.text import describe_outcome, model_for
from plansmith.flows.deploy.automations import PUBLISHED, RELEASES
from plansmith.flows.deploy.deployments import TAG
from plansmith.flows.runs.findings import Findings

if TYPE_CHECKING:
    from plansmith.config.spec import ModelSpec
    from plansmith.records.release import PublishedVersion

R = TypeVar("R")

_OUTCOME = "outcome"
_RECORD, _FINDINGS = "record", "findings"
_ROWS = TypeAdapter(list[dict[str, Any]])


def model_name(spec: ModelSpec, folder: Path) -> str:
    """What the model is called in Triton; its source where that cannot be read, which the compile itself refuses.

    Args:
        spec: of the model.
        folder: what relative directories in it start from.
    """
    try:
        return spec.name or parse_reference(spec.source, relative_to=folder).default_name
    except PlansmithError:
        return spec.source


def key_of(model: str, target: str) -> str:
    """The end of the keys of a model's artifacts, in the small letters, digits and dashes that Prefect takes."""
    return re.sub(r"[^a-z0-9]+", "-", f"{model}-{target}".lower()).strip("-")


def outcome_key(model: str, target: str) -> str:
    """The key of the artifact that tells what came of a model for a target."""
    return f"{_OUTCOME}-{key_of(model, target)}"


def tags_of(model: str, target: str) -> list[str]:
    """What runs of a model for a target are found by."""
    return [TAG, f"model:{model}", f"target:{target}"]


def outcome_of(model: str, target: str, ended: PublishedVersion | BaseException, seconds: float) -> ModelOutcome:
    """What came of the compile of the current flow run.

    Args:
        model: its name.
        target: the runtime that it is for.
        ended: the version that stands now, or what ended the compile.
        seconds: that it took.
    """
    where: dict[str, Any] = {"model": model, "target": target, "file": "", "seconds": round(seconds, 3)}
    where["run"] = url_for("flow-run", flow_run.get_id()) or flow_run.get_id()
    if not isinstance(ended, BaseException):
        return ModelOutcome(ended="unchanged" if ended.unchanged else "published", version=ended.version, **where)
    how: Ended = "failed" if isinstance(ended, Exception) else "interrupted"
    return ModelOutcome(ended=how, failure=failure_of(ended), **where)


def server_time() -> datetime:
    """When the current flow run began, by the clock of the server: other machines have other clocks."""
    with get_client(sync_client=True) as client:
        began = client.read_flow_run(UUID(flow_run.get_id())).updated
    assert began is not None
    return began


def leave_outcome(outcome: ModelOutcome, findings: Findings) -> None:
    """Make the artifact of an outcome in the current flow run: a row to look at, with the whole records in it.

    Raises:
        httpx.HTTPError, PrefectException: Prefect did not take it.
    """
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
    """What a flow run of compile-model left; None where it left nothing, such as one that was killed.

    Raises:
        EnvironmentFault: what it left cannot be read.
        httpx.HTTPError, PrefectException: Prefect cannot be asked.
    """
    return _read(run, lambda row: ModelOutcome.model_validate_json(row[_RECORD]))


def read_findings(run: UUID) -> Findings | None:
    """What a flow run of compile-model found out; as `read_outcome` otherwise."""
    return _read(run, lambda row: Findings.model_validate_json(row.get(_FINDINGS, "{}")))


def _read(run: UUID, of: Callable[[dict[str, Any]], R]) -> R | None:
    """A part of the newest row that a run left."""
    wanted = ArtifactFilter(
        flow_run_id=ArtifactFilterFlowRunId(any_=[run]), key=ArtifactFilterKey(like_=f"{_OUTCOME}-%")
    )
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(artifact_filter=wanted)
    # A run that was started twice, as one whose worker was lost for a while, has left one for each time.
    if not found:
        return None
    newest = max(found, key=lambda artifact: str(artifact.created))
    try:
        (row,) = _ROWS.validate_json(str(newest.data))
        return of(row)
    except (ValueError, KeyError) as error:
        raise EnvironmentFault(
            f"what its run left as {newest.key} cannot be read: {first_line(error)}",
            remedy="install one version of plansmith on all machines, and look at the run",
        ) from error


def announce(published: PublishedVersion, target: str) -> None:
    """Tell Prefect's automations of a new version."""
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
            "stores": [one.place for one in published.publications],
        },
    )
