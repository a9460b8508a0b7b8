"""`plansmith flows deploy`: creates a service's deployments on the work pools of a Prefect server from its file.

A second call finds nothing to change. Nothing goes that plansmith did not make: what it makes bears the service's tag,
its schedules have slugs of their own, and what is there beside them stays.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from plansmith.config.service import SERVED, FlowDeployment, FlowSchedule, Pool, ServiceConfig
from plansmith.errors import UsageError
from plansmith.flows.deploy.automations import Change, Deployed, apply_automations, crash_silent_runs, require_blocks
from plansmith.flows.deploy.deployments import deployments_of, service_tag
from plansmith.flows.prefect_api.api import CHANGING_RETRIES, asking, require_api, schema_of

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import DeploymentSchedule, WorkPool
    from prefect.client.schemas.responses import DeploymentResponse

_BARE = {"process"}
"""Types of pools whose runs need nothing of a job template but what Prefect's own has."""

FOREIGN = "its job template is neither plansmith's nor Prefect's own"
SLUG = "plansmith-"
"""How the slugs of schedules begin that plansmith made."""


def job_template(kind: str) -> dict[str, Any]:
    """Return the job template for a work pool type: Prefect's own, with what plansmith's runs need."""
    text = (files("plansmith") / "configs" / "work_pools" / f"{kind}.json").read_text(encoding="utf-8")
    template: dict[str, Any] = json.loads(text)
    return template


def require_pools(client: SyncPrefectClient, pools: Mapping[str, Pool]) -> set[str]:
    """Return the work pools to create, after checking that the others exist with the right type.

    Raises:
        UsageError: a pool is missing and not to be made, or is of another type.
    """
    present = {pool.name: pool.type for pool in client.read_work_pools()}
    missing = {name for name in pools if name not in present}
    unknown = [name for name in pools if name in missing and not pools[name].create]
    if unknown:
        available = ", ".join(f"{name} ({kind})" for name, kind in sorted(present.items())) or "none at all"
        name = unknown[0]
        raise UsageError(
            f"the Prefect server has no work pool {' and none '.join(unknown)}; there: {available}",
            remedy=f"write `create: true` into the pool's settings, or: prefect work-pool create {name} --type"
            f" {pools[name].type}",
        )
    for name, pool in pools.items():
        if name in present and present[name] != pool.type:
            raise UsageError(
                f"the work pool {name} is of the type {present[name]} on the Prefect server, and not {pool.type}",
                remedy=f"write `type: {present[name]}` into its settings, or name another pool",
            )
    return missing


def apply_pools(
    client: SyncPrefectClient, pools: Mapping[str, Pool], missing: Iterable[str], *, dry_run: bool
) -> Iterator[Change]:
    """Create missing work pools, update the job templates of managed ones, and yield the changes.

    A job template that somebody has changed by hand stays: that change says so in its words.
    """
    missing, present = set(missing), {pool.name: pool for pool in client.read_work_pools()}
    for name, pool in pools.items():
        if name in missing:
            if not dry_run:
                _create_pool(client, name, pool.type)
            yield Change(what="work pool", name=name, outcome="made")
        elif pool.create and pool.type not in _BARE:
            yield _renewed(client, present[name], dry_run=dry_run)
        else:
            yield Change(what="work pool", name=name, outcome="left")


def _create_pool(client: SyncPrefectClient, name: str, kind: str) -> None:
    from prefect.client.schemas.actions import WorkPoolCreate

    template = job_template(kind)
    described = _description(template)
    client.create_work_pool(WorkPoolCreate(name=name, type=kind, base_job_template=template, description=described))


def _renewed(client: SyncPrefectClient, pool: WorkPool, *, dry_run: bool) -> Change:
    from prefect.client.schemas.actions import WorkPoolUpdate

    template = job_template(pool.type)
    if pool.base_job_template == template:
        return Change(what="work pool", name=pool.name, outcome="left")
    if not _is_untouched(client, pool):
        return Change(what="work pool", name=pool.name, outcome="left", words=(FOREIGN,))
    if not dry_run:
        renewed = WorkPoolUpdate(base_job_template=template, description=_description(template))
        client.update_work_pool(pool.name, renewed)
    return Change(what="work pool", name=pool.name, outcome="changed", words=("job template",))


def _is_untouched(client: SyncPrefectClient, pool: WorkPool) -> bool:
    """Whether a pool's job template is an older one of plansmith, or Prefect's default for new pools."""
    template = pool.base_job_template
    if not template or pool.description == _description(template):
        return True
    workers = [kinds[pool.type] for kinds in client.read_worker_metadata().values() if pool.type in kinds]
    return template in [metadata["default_base_job_configuration"] for metadata in workers]


def _description(template: Mapping[str, Any]) -> str:
    """The description of a pool made by plansmith, with a digest that shows whether its job template was changed."""
    digest = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()
    return f"Made by plansmith flows deploy, with the job template {digest[:16]}."


def unattended(client: SyncPrefectClient, pools: Iterable[str]) -> list[str]:
    """Return the existing work pools without an active worker."""
    from prefect.client.schemas.filters import WorkerFilter, WorkerFilterStatus
    from prefect.client.schemas.objects import WorkerStatus

    online = WorkerFilter(status=WorkerFilterStatus(any_=[WorkerStatus.ONLINE]))
    return [name for name in pools if not client.read_workers_for_work_pool(name, worker_filter=online)]


def deploy(config: ServiceConfig, only: Sequence[str] = (), *, dry_run: bool = False) -> Deployed:
    """Create or update the deployments, schedules and automations of a service on the configured server.

    Args:
        config: the service.
        only: the pools to look at; all where there are none.
        dry_run: whether to say only what would be done.

    Raises:
        EnvironmentFault: there is no Prefect API, or it was lost.
        UsageError: a pool, or a block that people are told through, is not there; nothing was changed.
    """
    pools = _picked(config, only)
    deployments = [deployment for deployment in deployments_of(config) if deployment.pool in pools]
    url = require_api()
    with asking(url, retries=CHANGING_RETRIES) as client:
        require_blocks(client, config)
        missing = require_pools(client, pools)
        present = {
            deployment.label: own_deployment(client, config.name, deployment.label) for deployment in deployments
        }
        changes = list(apply_pools(client, pools, missing, dry_run=dry_run))
        changes += [
            _applied(client, deployment, present[deployment.label], dry_run=dry_run) for deployment in deployments
        ]
        # Others are removed last: what failed before left them as they were.
        labels = {deployment.label for deployment in deployments_of(config)}
        changes += _remove_others(client, config.name, labels, only, dry_run=dry_run)
        after_publication = run_after_publication(client, config, deployments_of(config), dry_run=dry_run)
        changes += apply_automations(client, config, after_publication, dry_run=dry_run)
        crashed = () if dry_run else tuple(crash_silent_runs(client, [service_tag(config.name)]))
        available = [name for name in pools if not dry_run or name not in missing]
        return Deployed(changes=tuple(changes), unattended=tuple(unattended(client, available)), crashed=crashed)


def _picked(config: ServiceConfig, only: Sequence[str]) -> dict[str, Pool]:
    unknown = [name for name in only if name not in config.pools]
    if unknown:
        raise UsageError(
            f"the service has no pool {' and none '.join(unknown)}, but {', '.join(config.pools)}",
            remedy="name one of these, or write it into the file of the service, under pools",
        )
    return {name: pool for name, pool in config.pools.items() if not only or name in only}


def _remove_others(
    client: SyncPrefectClient, service: str, labels: Iterable[str], pools: Iterable[str], *, dry_run: bool
) -> Iterator[Change]:
    """Remove the service's deployments, on the given pools, that its file no longer has.

    Args:
        client: of the server.
        service: whose deployments.
        labels: labels of those that it has.
        pools: where to look; everywhere where there are none.
        dry_run: whether to say only what would go.
    """
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags

    ours = DeploymentFilter(tags=DeploymentFilterTags(all_=[service_tag(service)]))
    keep, where = set(labels), set(pools)
    for deployment in client.read_deployments(deployment_filter=ours):
        label = f"{client.read_flow(deployment.flow_id).name}/{deployment.name}"
        if deployment.work_pool_name and label not in keep and (not where or deployment.work_pool_name in where):
            if not dry_run:
                client.delete_deployment(deployment.id)
            yield Change(what="deployment", name=label, outcome="removed")


def own_deployment(client: SyncPrefectClient, service: str, label: str) -> DeploymentResponse | None:
    """Return the deployment of a label; None if there is none.

    Raises:
        UsageError: it is not this service's.
    """
    from prefect.exceptions import ObjectNotFound

    try:
        deployment = client.read_deployment_by_name(label)
    except ObjectNotFound:
        return None
    if service_tag(service) in deployment.tags:
        return deployment
    owners = [tag for tag in deployment.tags if tag.startswith(service_tag(""))]
    whose = f"belongs to the service {owners[0].removeprefix(service_tag(''))!r}" if owners else "is not plansmith's"
    suggestion = (
        "serve it on a Prefect server of its own" if label.endswith(f"/{SERVED}") else "name the pool otherwise"
    )
    raise UsageError(
        f"the deployment {label} is there already and {whose}",
        remedy=f"{suggestion}, or remove it: prefect deployment delete {label}",
    )


def run_after_publication(
    client: SyncPrefectClient, config: ServiceConfig, deployments: Iterable[FlowDeployment], *, dry_run: bool = False
) -> dict[str, UUID]:
    """Return the existing deployments to run after a publication, by flow.

    Args:
        client: of the server.
        config: the service.
        deployments: of it.
        dry_run: any identifier stands for a deployment that is not there yet.
    """
    targets = [
        deployment
        for deployment in deployments
        if deployment.flow in config.flows and config.flows[deployment.flow].after_publication
    ]
    ids = {}
    for deployment in targets:
        if (existing := own_deployment(client, config.name, deployment.label)) is not None:
            ids[deployment.flow] = existing.id
        elif dry_run:
            ids[deployment.flow] = uuid4()
    return ids


def _applied(
    client: SyncPrefectClient, deployment: FlowDeployment, existing: DeploymentResponse | None, *, dry_run: bool
) -> Change:
    if existing is None:
        if not dry_run:
            _create(client, deployment)
        return Change(what="deployment", name=deployment.label, outcome="made")
    fields = _fields(deployment)
    differing = {key: value for key, value in fields.items() if _plain(getattr(existing, key)) != _plain(value)}
    schedules = list(_apply_schedules(client, existing.id, deployment.schedules, existing.schedules, dry_run=dry_run))
    if differing and not dry_run:
        _update(client, existing.id, differing)
    if not differing and not schedules:
        return Change(what="deployment", name=deployment.label, outcome="left")
    return Change(what="deployment", name=deployment.label, outcome="changed", words=(*differing, *schedules))


def _fields(deployment: FlowDeployment) -> dict[str, Any]:
    """The content of a deployment on the server, except its schedules, by Prefect's field names."""
    return {
        "description": deployment.description,
        "tags": list(deployment.tags),
        "parameters": deployment.parameters,
        "entrypoint": deployment.entrypoint,
        "path": None,
        "work_pool_name": deployment.pool or None,
        "job_variables": deployment.job_variables,
        "pull_steps": list(deployment.pull_steps),
        "enforce_parameter_schema": True,
        "parameter_openapi_schema": schema_of(deployment.flow),
    }


def _create(client: SyncPrefectClient, deployment: FlowDeployment) -> None:
    client.create_deployment(
        flow_id=client.create_flow_from_name(deployment.flow),
        name=deployment.name,
        schedules=[_schedule(schedule) for schedule in deployment.schedules],
        **_fields(deployment),
    )


def _update(client: SyncPrefectClient, deployment: UUID, fields: dict[str, Any]) -> None:
    from prefect.client.schemas.actions import DeploymentUpdate

    client.update_deployment(deployment, DeploymentUpdate(**fields))


def _apply_schedules(
    client: SyncPrefectClient,
    deployment: UUID,
    schedules: Sequence[FlowSchedule],
    present: Sequence[DeploymentSchedule],
    *,
    dry_run: bool,
) -> Iterator[str]:
    """Update the schedules that plansmith made, and return a description of the changes.

    One that was switched off in Prefect's pages stays off.
    """
    ours = {existing.slug: existing for existing in present if existing.slug and existing.slug.startswith(SLUG)}
    for entry in schedules:
        existing, schedule = ours.pop(SLUG + entry.name, None), _schedule(entry)
        if existing is None:
            yield f"schedule {entry.name} is new"
            if not dry_run:
                client.create_deployment_schedules(deployment, [schedule])
        elif _plain(existing.schedule) != _plain(schedule.schedule) or existing.parameters != schedule.parameters:
            yield f"schedule {entry.name}"
            if not dry_run:
                client.update_deployment_schedule(
                    deployment, existing.id, schedule=schedule.schedule, parameters=schedule.parameters
                )
    for slug, existing in ours.items():
        yield f"schedule {str(slug).removeprefix(SLUG)} is gone"
        if not dry_run:
            client.delete_deployment_schedule(deployment, existing.id)


def remove_schedules(client: SyncPrefectClient, deployments: Iterable[FlowDeployment]) -> None:
    """Delete the schedules that plansmith created and the service's file no longer contains.

    For deployments that Prefect's runner has registered: it adds and changes schedules, and leaves the others on.
    """
    for deployment in deployments:
        existing = client.read_deployment_by_name(deployment.label)
        for _ in _apply_schedules(client, existing.id, deployment.schedules, existing.schedules, dry_run=False):
            pass


def _schedule(entry: FlowSchedule) -> Any:
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.schedules import CronSchedule

    return DeploymentScheduleCreate(
        schedule=CronSchedule(cron=entry.cron, timezone=entry.timezone),
        parameters=entry.parameters,
        slug=SLUG + entry.name,
        active=True,
    )


def _plain(value: Any) -> Any:
    """Convert a value to JSON for a comparison with the server's; the order of tags does not matter."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json", exclude_none=True)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = sorted(value)
    return json.loads(json.dumps(value))
