"""`plansmith flows deploy`: the deployments of a service on the work pools of a Prefect server, as its file says.

A second call finds nothing to change. Nothing goes that plansmith did not make: what it makes bears the service's tag,
its schedules have slugs of their own, and what is there beside them stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from plansmith.config.service.service import SERVED, FlowDeployment, FlowSchedule, Pool, ServiceConfig
from plansmith.errors import UsageError
from plansmith.flows.deploy.automations import apply_automations, require_blocks
from plansmith.flows.deploy.changes import Change, Deployed
from plansmith.flows.deploy.deployments import deployments_of, service_tag
from plansmith.flows.deploy.silent_runs import crash_silent_runs
from plansmith.flows.deploy.work_pools import apply_pools, require_pools, unattended
from plansmith.flows.prefect_api.api import CHANGING_RETRIES, asking, require_api
from plansmith.flows.prefect_api.parameters import schema_of

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import DeploymentSchedule
    from prefect.client.schemas.responses import DeploymentResponse

SLUG = "plansmith-"
"""How the slugs of schedules begin that plansmith made."""


def deploy(config: ServiceConfig, only: Sequence[str] = (), *, dry_run: bool = False) -> Deployed:
    """Make the deployments, schedules and automations of a service on the configured server what they should be.

    Args:
        config: the service.
        only: the pools to look at; all where there are none.
        dry_run: whether to say only what would be done.

    Raises:
        EnvironmentFault: there is no Prefect API, or it was lost.
        UsageError: a pool, or a block that people are told through, is not there; nothing was changed.
    """
    pools = _picked(config, only)
    deployments = [one for one in deployments_of(config) if one.pool in pools]
    url = require_api()
    with asking(url, retries=CHANGING_RETRIES) as client:
        require_blocks(client, config)
        missing = require_pools(client, pools)
        present = {one.label: own_deployment(client, config.name, one.label) for one in deployments}
        changes = list(apply_pools(client, pools, missing, dry_run=dry_run))
        changes += [_applied(client, one, present[one.label], dry_run=dry_run) for one in deployments]
        # Others are removed last: what failed before left them as they were.
        labels = {one.label for one in deployments_of(config)}
        changes += _remove_others(client, config.name, labels, only, dry_run=dry_run)
        after_publication = run_after_publication(client, config, deployments_of(config), dry_run=dry_run)
        changes += apply_automations(client, config, after_publication, dry_run=dry_run)
        crashed = () if dry_run else tuple(crash_silent_runs(client, [service_tag(config.name)]))
        there = [name for name in pools if not dry_run or name not in missing]
        return Deployed(changes=tuple(changes), unattended=tuple(unattended(client, there)), crashed=crashed)


def _picked(config: ServiceConfig, only: Sequence[str]) -> dict[str, Pool]:
    unknown = [name for name in only if name not in config.pools]
    if unknown:
        raise UsageError(
            f"the service has no pool {' and none '.join(unknown)}, but {', '.join(config.pools)}",
            remedy="name one of these, or write it into the file of the service, under pools",
        )
    return {name: pool for name, pool in config.pools.items() if not only or name in only}


def _remove_others(
    client: SyncPrefectClient, service: str, kept: Iterable[str], pools: Iterable[str], *, dry_run: bool
) -> Iterator[Change]:
    """Remove the deployments of the service, on some pools, that its file does not have any more.

    Args:
        client: of the server.
        service: whose deployments.
        kept: labels of those that it has.
        pools: where to look; everywhere where there are none.
        dry_run: whether to say only what would go.
    """
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags

    ours = DeploymentFilter(tags=DeploymentFilterTags(all_=[service_tag(service)]))
    keep, where = set(kept), set(pools)
    for found in client.read_deployments(deployment_filter=ours):
        label = f"{client.read_flow(found.flow_id).name}/{found.name}"
        if found.work_pool_name and label not in keep and (not where or found.work_pool_name in where):
            if not dry_run:
                client.delete_deployment(found.id)
            yield Change(what="deployment", name=label, outcome="removed")


def own_deployment(client: SyncPrefectClient, service: str, label: str) -> DeploymentResponse | None:
    """The deployment of a label; None where there is none.

    Raises:
        UsageError: it is not this service's.
    """
    from prefect.exceptions import ObjectNotFound

    try:
        found = client.read_deployment_by_name(label)
    except ObjectNotFound:
        return None
    if service_tag(service) in found.tags:
        return found
    owners = [tag for tag in found.tags if tag.startswith(service_tag(""))]
    whose = f"belongs to the service {owners[0].removeprefix(service_tag(''))!r}" if owners else "is not plansmith's"
    other = "serve it on a Prefect server of its own" if label.endswith(f"/{SERVED}") else "name the pool otherwise"
    raise UsageError(
        f"the deployment {label} is there already and {whose}",
        remedy=f"{other}, or remove it: prefect deployment delete {label}",
    )


def run_after_publication(
    client: SyncPrefectClient, config: ServiceConfig, deployments: Iterable[FlowDeployment], *, dry_run: bool = False
) -> dict[str, UUID]:
    """The deployments that are to run after a publication, by flow; those that are there.

    Args:
        client: of the server.
        config: the service.
        deployments: of it.
        dry_run: any identifier stands for a deployment that is not there yet.
    """
    wanted = [one for one in deployments if one.flow in config.flows and config.flows[one.flow].after_publication]
    ids = {}
    for one in wanted:
        if (found := own_deployment(client, config.name, one.label)) is not None:
            ids[one.flow] = found.id
        elif dry_run:
            ids[one.flow] = uuid4()
    return ids


def _applied(
    client: SyncPrefectClient, one: FlowDeployment, found: DeploymentResponse | None, *, dry_run: bool
) -> Change:
    if found is None:
        if not dry_run:
            _create(client, one)
        return Change(what="deployment", name=one.label, outcome="made")
    wanted = _fields(one)
    differing = {key: value for key, value in wanted.items() if _plain(getattr(found, key)) != _plain(value)}
    schedules = list(_apply_schedules(client, found.id, one.schedules, found.schedules, dry_run=dry_run))
    if differing and not dry_run:
        _update(client, found.id, differing)
    if not differing and not schedules:
        return Change(what="deployment", name=one.label, outcome="left")
    return Change(what="deployment", name=one.label, outcome="changed", words=(*differing, *schedules))


def _fields(one: FlowDeployment) -> dict[str, Any]:
    """What a deployment of the server holds, but for its schedules, by the names of Prefect's fields."""
    return {
        "description": one.description,
        "tags": list(one.tags),
        "parameters": one.parameters,
        "entrypoint": one.entrypoint,
        "path": None,
        "work_pool_name": one.pool or None,
        "job_variables": one.job_variables,
        "pull_steps": list(one.pull_steps),
        "enforce_parameter_schema": True,
        "parameter_openapi_schema": schema_of(one.flow),
    }


def _create(client: SyncPrefectClient, one: FlowDeployment) -> None:
    client.create_deployment(
        flow_id=client.create_flow_from_name(one.flow),
        name=one.name,
        schedules=[_schedule(schedule) for schedule in one.schedules],
        **_fields(one),
    )


def _update(client: SyncPrefectClient, deployment: UUID, fields: dict[str, Any]) -> None:
    from prefect.client.schemas.actions import DeploymentUpdate

    client.update_deployment(deployment, DeploymentUpdate(**fields))


def _apply_schedules(
    client: SyncPrefectClient,
    deployment: UUID,
    wanted: Sequence[FlowSchedule],
    present: Sequence[DeploymentSchedule],
    *,
    dry_run: bool,
) -> Iterator[str]:
    """Make the schedules that plansmith made here what they should be, and say what that takes.

    One that was switched off in Prefect's pages stays off.
    """
    ours = {found.slug: found for found in present if found.slug and found.slug.startswith(SLUG)}
    for one in wanted:
        found, schedule = ours.pop(SLUG + one.name, None), _schedule(one)
        if found is None:
            yield f"schedule {one.name} is new"
            if not dry_run:
                client.create_deployment_schedules(deployment, [schedule])
        elif _plain(found.schedule) != _plain(schedule.schedule) or found.parameters != schedule.parameters:
            yield f"schedule {one.name}"
            if not dry_run:
                client.update_deployment_schedule(
                    deployment, found.id, schedule=schedule.schedule, parameters=schedule.parameters
                )
    for slug, found in ours.items():
        yield f"schedule {str(slug).removeprefix(SLUG)} is gone"
        if not dry_run:
            client.delete_deployment_schedule(deployment, found.id)


def remove_schedules(client: SyncPrefectClient, deployments: Iterable[FlowDeployment]) -> None:
    """Remove the schedules that plansmith made and the service's file does not have any more.

    For deployments that Prefect's runner has registered: it adds and changes schedules, and leaves the others on.
    """
    for one in deployments:
        found = client.read_deployment_by_name(one.label)
        for _ in _apply_schedules(client, found.id, one.schedules, found.schedules, dry_run=False):
            pass


def _schedule(one: FlowSchedule) -> Any:
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.schedules import CronSchedule

    return DeploymentScheduleCreate(
        schedule=CronSchedule(cron=one.cron, timezone=one.timezone),
        parameters=one.parameters,
        slug=SLUG + one.name,
        active=True,
    )


def _plain(value: Any) -> Any:
    """A value as JSON has it, for a comparison with what came back from the server; an order of tags says nothing."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json", exclude_none=True)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = sorted(value)
    return json.loads(json.dumps(value))
