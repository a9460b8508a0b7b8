"""The work pools that deployments need: there, of the right type, and polled by somebody."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from plansmith.config.service.service import Pool
from plansmith.errors import UsageError
from plansmith.flows.deploy.changes import Change

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import WorkPool


def job_template(kind: str) -> dict[str, Any]:
    """The job template that plansmith has for a type of pools: Prefect's own, with what our runs need."""
    text = (files("plansmith") / "configs" / "work_pools" / f"{kind}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def require_pools(client: SyncPrefectClient, pools: Mapping[str, Pool]) -> set[str]:
    """The names of the pools that are to be made, once it is known that the others are there and of the right type.

    Raises:
        UsageError: a pool is missing and not to be made, or is of another type.
    """
    present = {pool.name: pool.type for pool in client.read_work_pools()}
    missing = {name for name in pools if name not in present}
    unknown = [name for name in pools if name in missing and not pools[name].create]
    if unknown:
        there = ", ".join(f"{name} ({kind})" for name, kind in sorted(present.items())) or "none at all"
        name = unknown[0]
        raise UsageError(
            f"the Prefect server has no work pool {' and none '.join(unknown)}; there: {there}",
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
    """Make the pools that are missing, renew the job templates of those that are ours to make, and say what came of it.

    A job template that somebody has changed by hand stays: that change says so in its words.
    """
    missing, present = set(missing), {pool.name: pool for pool in client.read_work_pools()}
    for name, pool in pools.items():
        if name in missing:
            if not dry_run:
                _create(client, name, pool.type)
            yield Change(what="work pool", name=name, outcome="made")
        elif pool.create and pool.type not in _BARE:
            yield _renewed(client, present[name], dry_run=dry_run)
        else:
            yield Change(what="work pool", name=name, outcome="left")


_BARE = {"process"}
"""Types of pools whose runs need nothing of a job template but what Prefect's own has."""


def _create(client: SyncPrefectClient, name: str, kind: str) -> None:
    from prefect.client.schemas.actions import WorkPoolCreate

    template = job_template(kind)
    described = _description(template)
    client.create_work_pool(WorkPoolCreate(name=name, type=kind, base_job_template=template, description=described))


def _renewed(client: SyncPrefectClient, found: WorkPool, *, dry_run: bool) -> Change:
    from prefect.client.schemas.actions import WorkPoolUpdate

    wanted = job_template(found.type)
    if found.base_job_template == wanted:
        return Change(what="work pool", name=found.name, outcome="left")
    if not _is_untouched(client, found):
        return Change(what="work pool", name=found.name, outcome="left", words=(FOREIGN,))
    if not dry_run:
        renewed = WorkPoolUpdate(base_job_template=wanted, description=_description(wanted))
        client.update_work_pool(found.name, renewed)
    return Change(what="work pool", name=found.name, outcome="changed", words=("job template",))


FOREIGN = "its job template is neither plansmith's nor Prefect's own"


def _is_untouched(client: SyncPrefectClient, found: WorkPool) -> bool:
    """Whether a pool's job template is an older one of plansmith, or the one that Prefect gives to a new pool."""
    template = found.base_job_template
    if not template or found.description == _description(template):
        return True
    workers = [kinds[found.type] for kinds in client.read_worker_metadata().values() if found.type in kinds]
    return template in [one["default_base_job_configuration"] for one in workers]


def _description(template: Mapping[str, Any]) -> str:
    """Of a pool that plansmith made; tells whether its job template is still as it was made."""
    digest = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()
    return f"Made by plansmith flows deploy, with the job template {digest[:16]}."


def unattended(client: SyncPrefectClient, pools: Iterable[str]) -> list[str]:
    """The pools, of those that are there, whose runs nobody takes up now."""
    from prefect.client.schemas.filters import WorkerFilter, WorkerFilterStatus
    from prefect.client.schemas.objects import WorkerStatus

    online = WorkerFilter(status=WorkerFilterStatus(any_=[WorkerStatus.ONLINE]))
    return [name for name in pools if not client.read_workers_for_work_pool(name, worker_filter=online)]
