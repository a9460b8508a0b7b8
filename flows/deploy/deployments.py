"""The deployments of a service: which flow runs in which pool, when, and with what."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from plansmith.config.service.service import (
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
from plansmith.flows.prefect_api.parameters import entrypoint_of, parameter_problems, schema_of

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


def service_tag(name: str) -> str:
    """What tells the deployments of one service from those of others, and from those that plansmith did not make."""
    return f"service:{name}"


def load_service(path: Path) -> ServiceFile:
    """Read the file of a service, and hold its schedules and parameters against Prefect and the flows.

    Raises:
        UsageError: there is no such file; or lists every problem with its line.
    """
    if not path.exists():
        raise UsageError(f"there is no file {path}", remedy=_HOW_TO_BEGIN)
    file = read_service(path, cron=cron_problem)
    file.require(_parameter_problems(file.config))
    return file


def cron_problem(text: str) -> str | None:
    """Why Prefect takes a text for no cron schedule; None where it does."""
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
    """The deployments of a service.

    Args:
        config: the service.
        served: whether one process runs all flows itself, without pools.
    """
    pools = [SERVED] if served else list(config.pools)
    models = [_deployment(config, ONE_MODEL, pool, FlowSettings()) for pool in pools]
    whole = []
    flows: list[ScheduledFlow] = [one for one in get_args(ScheduledFlow) if one != DEPLOY_ENDPOINTS or config.endpoints]
    for flow in flows:
        settings = config.flow(flow)
        whole.append(_deployment(config, flow, SERVED if served else settings.pool, settings))
    return (*models, *whole)


def _deployment(config: ServiceConfig, flow: str, pool: str, settings: FlowSettings) -> FlowDeployment:
    given = _given(config, flow, served=pool == SERVED)
    return FlowDeployment(
        flow=flow,
        name=pool,
        entrypoint=entrypoint_of(flow),
        description=_WORDS[flow],
        pool="" if pool == SERVED else pool,
        parameters={**given, **settings.parameters},
        schedules=tuple(
            FlowSchedule(name=name, **schedule.model_dump()) for name, schedule in settings.schedules.items()
        ),
        tags=(TAG, service_tag(config.name)),
        **({} if pool == SERVED else _job(config, pool)),
    )


def _job(config: ServiceConfig, name: str) -> dict[str, Any]:
    """How a pool starts runs: a process in a folder that exists there; a container by a step inside of it."""
    pool = config.pools[name]
    directory = pool.directory or config.directory
    environment = {_HEARTBEATS: str(config.heartbeat_seconds), **environment_of(config), **pool.env}
    variables = {"env": environment, **pool.job_variables}
    if pool.type == "process":
        return {"job_variables": {"working_dir": directory, **variables}, "pull_steps": ()}
    return {"job_variables": variables, "pull_steps": ({_SET_DIRECTORY: {"directory": directory}},)}


def environment_of(config: ServiceConfig) -> dict[str, str]:
    """Variables of all runs of a service: the servers of MLflow and S3 that have the models that it hears of."""
    if config.triggers is None:
        return {}
    servers = {_MLFLOW: config.triggers.mlflow_server, _S3: config.triggers.s3_server}
    return {variable: server for variable, server in servers.items() if server}


def _given(config: ServiceConfig, flow: str, *, served: bool) -> dict[str, Any]:
    """The parameters that a flow has from the service as a whole."""
    specs = {"specs": list(config.specs)}
    if flow == ONE_MODEL:
        return {}
    if flow == DEPLOY_ENDPOINTS:
        return {"endpoints": list(config.endpoints)}
    if flow in FLEETS:
        return specs if served else {**specs, "pools": config.pool_of_target}
    # What runs of the fleet put somewhere else than its specs say is looked for there.
    parameters = [config.flow(builder).parameters for builder in FLEETS]
    overrides = [given["overrides"] for given in parameters if "overrides" in given]
    return {**specs, "overrides": overrides[0]} if overrides else specs


def _parameter_problems(config: ServiceConfig) -> Iterator[Problem]:
    for flow, settings in config.flows.items():
        schema = schema_of(flow)
        places: list[tuple[tuple[str, ...], dict[str, Any]]] = [(("flows", flow), settings.parameters)]
        places += [
            (("flows", flow, "schedules", name), schedule.parameters) for name, schedule in settings.schedules.items()
        ]
        for root, parameters in places:
            for keys, words in parameter_problems(parameters, schema, partly=True):
                whole = (*root, "parameters", *keys)
                yield Problem(whole, "wrong", f"'{'.'.join(whole[:-1])}': {words}" if keys else words)
