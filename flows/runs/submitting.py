"""Starts runs of `compile-model` on a work pool; what they are given is checked before the server gets it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from plansmith.errors import UsageError, first_line
from plansmith.fleet.text import model_for
from plansmith.flows.deploy.deployments import ONE_MODEL
from plansmith.flows.deploy.pool_deployments import HOW_TO_DEPLOY, find_hindrance
from plansmith.flows.prefect_api.parameters import parameter_problems, shortened
from plansmith.formatting import format_bytes

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun
    from prefect.client.schemas.responses import DeploymentResponse
    from prefect.exceptions import PrefectHTTPStatusError

    from plansmith.config.spec import ModelSpec

_MOST_PROBLEMS = 8
_REFUSING = {400, 409, 413, 422}


@dataclass(frozen=True)
class WantedCompile:
    """One model to compile.

    Args:
        model: its name.
        target: the runtime that it is for.
        spec: what is asked for; only what was said in it is sent, the rest is left to the worker's plansmith.
        folder: what relative directories in the spec start from, on the worker.
        directory: what its own folders and its target's file start from there; the folder where left out.
    """

    model: str
    target: str
    spec: ModelSpec
    folder: Path
    directory: str = ""

    @property
    def run_name(self) -> str:
        """What its run is called; the flow itself calls it the same when it starts."""
        return model_for(self.model, self.target)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of its run, as JSON values."""
        said = {"spec": self.spec.model_dump(mode="json", exclude_unset=True), "folder": str(self.folder)}
        return {**said, "directory": self.directory} if self.directory else said


@dataclass(frozen=True)
class SubmittedRun:
    """A flow run that was started; `address`: of its page."""

    id: UUID
    name: str
    address: str

    def document(self) -> dict[str, Any]:
        """It as JSON-ready fields."""
        return {"id": str(self.id), "name": self.name, "address": self.address}


def pool_notice(client: SyncPrefectClient, deployment: DeploymentResponse) -> str:
    """What keeps a deployment's runs from being taken up now, with what to type; empty where nothing does."""
    found = find_hindrance(client, deployment)
    return f"{found.words}: the run waits for: {found.remedy}" if found else ""


def check_parameters(wanted: WantedCompile, deployment: DeploymentResponse) -> None:
    """See that a deployment takes the parameters of a run, by its own schema.

    The server refuses values that do not fit, one by one, and takes parameters that the flow does not have, whose run
    then fails: so both are looked for here.

    Raises:
        UsageError: names what does not fit, or they are larger than the server takes.
    """
    from prefect.settings import get_current_settings

    size, most = _size(wanted.parameters), get_current_settings().server.api.max_parameter_size
    if 0 < most < size:
        raise UsageError(
            f"the spec is too large for a flow run: {format_bytes(size)} as JSON, and a Prefect server takes"
            f" {format_bytes(most)}",
            remedy="shorten it, such as by tolerances for fewer outputs, or compile it on the worker itself",
        ).located(model=wanted.model)
    problems = [words for _, words in parameter_problems(wanted.parameters, deployment.parameter_openapi_schema or {})]
    if problems:
        more = [f"… and {len(problems) - _MOST_PROBLEMS} more"] if len(problems) > _MOST_PROBLEMS else []
        listed = "\n  ".join([*problems[:_MOST_PROBLEMS], *more])
        raise UsageError(
            f"the deployment {ONE_MODEL}/{deployment.name} does not take this spec:\n  {listed}",
            remedy=f"mend these; where its plansmith is another version: {HOW_TO_DEPLOY}",
        ).located(model=wanted.model)


def submit(
    client: SyncPrefectClient, wanted: WantedCompile, deployment: DeploymentResponse, key: str = ""
) -> SubmittedRun:
    """Start a run of a deployment whose parameters were checked.

    Args:
        client: of the API.
        wanted: what to compile.
        deployment: carries it out.
        key: makes two runs one, as the server takes each key once; a new run where left out.

    Raises:
        UsageError: the server does not take its parameters.
        httpx.HTTPError: the API does not answer.
    """
    from prefect.exceptions import PrefectHTTPStatusError

    from plansmith.flows.runs.outcomes import tags_of

    try:
        run = client.create_flow_run_from_deployment(
            deployment.id,
            parameters=wanted.parameters,
            name=wanted.run_name,
            tags=tags_of(wanted.model, wanted.target),
            # Prefect's client sends a request again whose answer was lost: by the key it is the same run.
            idempotency_key=key or f"submit-{uuid4()}",
        )
    except PrefectHTTPStatusError as error:
        if error.response.status_code not in _REFUSING:
            raise
        raise UsageError(
            f"the Prefect server does not take this spec: {_detail(error)}", remedy="mend it; see the server's log"
        ).located(model=wanted.model) from error
    return submitted_run(run)


def submitted_run(run: FlowRun) -> SubmittedRun:
    """A flow run of the API, with what a person needs of it."""
    from prefect.utilities.urls import url_for

    return SubmittedRun(run.id, run.name, url_for(run) or "")


def _size(parameters: Mapping[str, Any]) -> int:
    """As the server reckons it."""
    return len(json.dumps(parameters, separators=(",", ":")).encode())


def _detail(error: PrefectHTTPStatusError) -> str:
    """What a server says of a request that it refuses."""
    try:
        detail = error.response.json()["detail"]
    except (ValueError, KeyError, TypeError):
        detail = first_line(error)
    return shortened(str(detail))
