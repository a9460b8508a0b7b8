"""Deployments of a service: each flow with its work pool, schedule and parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from plansmith.config.service import (
    DEPLOY_ENDPOINTS,
    SERVED,
    FlowDeployment,
    FlowSchedule,
    FlowSettings,
    ScheduledFlow,
    ServiceConfig,
    ServiceFile,
    read_service,
)
from plansmith.config.spec import Problem
from plansmith.errors import UsageError
from plansmith.flows.prefect_api.api import entrypoint_of, parameter_problems, schema_of

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse


TAG = "plansmith"
"""What all runs of plansmith are tagged with."""

ONE_MODEL = "compile-model"
FLEETS: tuple[ScheduledFlow, ...] = ("compile-fleet", "refresh")
"""The flows whose runs wait for others."""

_HOW_TO_BEGIN = (
    "name the file of the service with --service FILE, or write one that begins with `specs: [FOLDER]` and"
    " `pools: {local: {create: true}}`"
)
_SET_DIRECTORY = "prefect.deployments.steps.set_working_directory"
_HEARTBEATS = "PREFECT_FLOWS_HEARTBEAT_FREQUENCY"
_MLFLOW, _S3 = "MLFLOW_TRACKING_URI", "AWS_ENDPOINT_URL_S3"

_WORDS: dict[str, str] = {
    ONE_MODEL: "Compile one model into a published version.",
    "compile-fleet": "Compile what is stale of the service's models.",
    "refresh": "Look for newer models, data and tools, and compile what they change.",
    "verify": "Compare what is published with its digests, and ask servers for it.",
    "collect": "Remove what retention says nobody needs.",
    DEPLOY_ENDPOINTS: "Deploy the endpoints of SageMaker that differ from their files.",
}

HOW_TO_DEPLOY = "plansmith flows deploy"
_MOST_NAMES = 12


def service_tag(name: str) -> str:
    """Return the tag that marks the deployments of one service, as opposed to other services' and foreign ones."""
    return f"service:{name}"


def load_service(path: Path) -> ServiceFile:
    """Read a service's file, and validate its schedules and parameters with Prefect and the flows.

    Raises:
        UsageError: there is no such file; or lists every problem with its line.
    """
    if not path.exists():
        raise UsageError(f"there is no file {path}", remedy=_HOW_TO_BEGIN)
    file = read_service(path, cron=cron_problem)
    file.require(_parameter_problems(file.config))
    return file


def cron_problem(text: str) -> str | None:
    """Return why Prefect refuses a cron schedule; None if it is valid."""
    from prefect.client.schemas.schedules import CronSchedule
    from pydantic import ValidationError

    try:
        CronSchedule(cron=text)
    except ValidationError:
        return (
            "is no cron schedule: five fields, minute hour day month weekday, such as 0 3 * * 1-5 for 3:00 on workdays"
        )
    return None


def deployments_of(config: ServiceConfig, *, served: bool = False) -> tuple[FlowDeployment, ...]:
    """Return the deployments of a service.

    Args:
        config: the service.
        served: whether one process runs all flows itself, without pools.
    """
    pools = [SERVED] if served else list(config.pools)
    models = [_deployment(config, ONE_MODEL, pool, FlowSettings()) for pool in pools]
    whole = []
    flows: list[ScheduledFlow] = [
        flow_name for flow_name in get_args(ScheduledFlow) if flow_name != DEPLOY_ENDPOINTS or config.endpoints
    ]
    for flow in flows:
        settings = config.flow(flow)
        whole.append(_deployment(config, flow, SERVED if served else settings.pool, settings))
    return (*models, *whole)


def _deployment(config: ServiceConfig, flow: str, pool: str, settings: FlowSettings) -> FlowDeployment:
    defaults = _flow_parameters(config, flow, served=pool == SERVED)
    return FlowDeployment(
        flow=flow,
        name=pool,
        entrypoint=entrypoint_of(flow),
        description=_WORDS[flow],
        pool="" if pool == SERVED else pool,
        parameters={**defaults, **settings.parameters},
        schedules=tuple(
            FlowSchedule(name=name, **schedule.model_dump()) for name, schedule in settings.schedules.items()
        ),
        tags=(TAG, service_tag(config.name)),
        **({} if pool == SERVED else _job(config, pool)),
    )


def _job(config: ServiceConfig, name: str) -> dict[str, Any]:
    """How a pool starts runs: a process in an existing folder, or a container with a step that sets its folder."""
    pool = config.pools[name]
    directory = pool.directory or config.directory
    environment = {_HEARTBEATS: str(config.heartbeat_seconds), **environment_of(config), **pool.env}
    variables = {"env": environment, **pool.job_variables}
    if pool.type == "process":
        return {"job_variables": {"working_dir": directory, **variables}, "pull_steps": ()}
    return {"job_variables": variables, "pull_steps": ({_SET_DIRECTORY: {"directory": directory}},)}


def environment_of(config: ServiceConfig) -> dict[str, str]:
    """Return the environment of all runs of a service: the MLflow and S3 servers of its triggering models."""
    if config.triggers is None:
        return {}
    servers = {_MLFLOW: config.triggers.mlflow_server, _S3: config.triggers.s3_server}
    return {variable: server for variable, server in servers.items() if server}


def _flow_parameters(config: ServiceConfig, flow: str, *, served: bool) -> dict[str, Any]:
    """The parameters that a flow takes from the service's configuration."""
    specs = {"specs": list(config.specs)}
    if flow == ONE_MODEL:
        return {}
    if flow == DEPLOY_ENDPOINTS:
        return {"endpoints": list(config.endpoints)}
    if flow in FLEETS:
        return specs if served else {**specs, "pools": config.pool_of_target}
    # What runs of the fleet put somewhere else than its specs say is looked for there.
    parameters = [config.flow(builder).parameters for builder in FLEETS]
    overrides = [values["overrides"] for values in parameters if "overrides" in values]
    return {**specs, "overrides": overrides[0]} if overrides else specs


def _parameter_problems(config: ServiceConfig) -> Iterator[Problem]:
    for flow, settings in config.flows.items():
        schema = schema_of(flow)
        places: list[tuple[tuple[str, ...], dict[str, Any]]] = [(("flows", flow), settings.parameters)]
        places += [
            (("flows", flow, "schedules", name), schedule.parameters) for name, schedule in settings.schedules.items()
        ]
        for root, parameters in places:
            for keys, message in parameter_problems(parameters, schema, partly=True):
                whole = (*root, "parameters", *keys)
                yield Problem(whole, "wrong", f"'{'.'.join(whole[:-1])}': {message}" if keys else message)


@dataclass(frozen=True)
class Obstacle:
    """What keeps a deployment's runs from being picked up now, and the remedy."""

    message: str
    remedy: str


def find_deployment(client: SyncPrefectClient, pool: str | None) -> DeploymentResponse:
    """Return the deployment of compile-model for a work pool; without one, the only existing deployment.

    Args:
        client: of the API.
        pool: the work pool, by which the deployment is called; `served` for that of `plansmith flows serve`.

    Raises:
        UsageError: there is none, with the names of those that are there.
        httpx.HTTPError: the API does not answer.
    """
    from prefect.client.schemas.filters import FlowFilter, FlowFilterName

    deployments = client.read_deployments(flow_filter=FlowFilter(name=FlowFilterName(any_=[ONE_MODEL])))
    matches = [deployment for deployment in deployments if pool in {None, deployment.name}]
    if len(matches) == 1:
        return matches[0]
    names = sorted(deployment.name for deployment in deployments)
    if not deployments:
        raise UsageError(
            f"the Prefect server has no deployment of {ONE_MODEL}",
            remedy=f"{HOW_TO_DEPLOY}, or on one machine: plansmith flows serve",
        )
    if pool is None:
        raise UsageError(f"{ONE_MODEL} is deployed to {len(names)} work pools", remedy=f"--pool {_listed(names)}")
    if pool in {deployment.name for deployment in client.read_work_pools()}:
        raise UsageError(
            f"{ONE_MODEL} is not deployed to the work pool {pool}; it is to {_listed(names)}", remedy=HOW_TO_DEPLOY
        )
    raise UsageError(
        f"there is no work pool {pool}; {ONE_MODEL} is deployed to {_listed(names)}",
        remedy=f"name one of those, or {HOW_TO_DEPLOY}",
    )


def find_hindrance(client: SyncPrefectClient, deployment: DeploymentResponse) -> Obstacle | None:
    """Return what keeps a deployment's runs from being picked up now; None if nothing does."""
    from prefect.client.schemas.filters import WorkerFilter, WorkerFilterStatus
    from prefect.client.schemas.objects import DeploymentStatus, WorkerStatus

    pool = deployment.work_pool_name
    if pool is None:
        if deployment.status == DeploymentStatus.READY:
            return None
        problem = f"nobody serves the deployment {ONE_MODEL}/{deployment.name}"
        return Obstacle(problem, "plansmith flows serve, on the machine that builds")
    if client.read_work_pool(pool).is_paused:
        return Obstacle(f"the work pool {pool} is paused", f"prefect work-pool resume {pool}")
    online = WorkerFilter(status=WorkerFilterStatus(any_=[WorkerStatus.ONLINE]))
    if not client.read_workers_for_work_pool(pool, worker_filter=online, limit=1):
        return Obstacle(
            f"no worker polls the work pool {pool}", f"prefect worker start --pool {pool}, where it can build"
        )
    return None


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more
