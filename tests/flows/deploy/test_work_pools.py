"""The work pools of a service: made, renewed and left, without a server."""

from __future__ import annotations

from typing import Any

import pytest
from prefect.client.schemas.objects import WorkPool

from plansmith.config.service import Pool
from plansmith.flows.deploy.deploying import FOREIGN, apply_pools, job_template

PREFECTS = {"variables": {"properties": {}}, "job_configuration": {"image": "prefects"}}


class Server:
    """Takes what a client sends of work pools, and offers Prefect's own templates."""

    def __init__(self) -> None:
        self.pools: dict[str, WorkPool] = {}

    def read_work_pools(self) -> list[WorkPool]:
        return list(self.pools.values())

    def read_worker_metadata(self) -> dict[str, Any]:
        return {"prefect-docker": {"docker": {"default_base_job_configuration": PREFECTS}}}

    def create_work_pool(self, pool: Any) -> None:
        self.pools[pool.name] = WorkPool.model_construct(
            name=pool.name, type=pool.type, base_job_template=pool.base_job_template, description=pool.description
        )

    def update_work_pool(self, name: str, fields: Any) -> None:
        self.pools[name] = self.pools[name].model_copy(
            update={"base_job_template": fields.base_job_template, "description": fields.description}
        )


def _apply(server: Server, *, create: bool = True, dry_run: bool = False) -> tuple[str, tuple[str, ...]]:
    missing = {"gpus"} - set(server.pools)
    client: Any = server
    (change,) = apply_pools(client, {"gpus": Pool(type="docker", create=create)}, missing, dry_run=dry_run)
    return change.outcome, change.words


@pytest.mark.parametrize("origin", ["an older one of plansmith", "Prefect's own", "none"])
def test_unchanged_job_template_is_renewed(origin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job template that nobody has changed is renewed."""
    server = Server()
    with monkeypatch.context() as patch:
        patch.setattr("plansmith.flows.deploy.deploying.job_template", lambda kind: {"older": kind})
        assert _apply(server) == ("made", ())
    if origin != "an older one of plansmith":
        changed = {"base_job_template": PREFECTS if origin == "Prefect's own" else {}, "description": None}
        server.pools["gpus"] = server.pools["gpus"].model_copy(update=changed)
    before = server.pools["gpus"]
    assert _apply(server, create=False) == ("left", ())
    assert _apply(server, dry_run=True) == ("changed", ("job template",))
    assert server.pools["gpus"] == before
    assert _apply(server) == ("changed", ("job template",))
    assert server.pools["gpus"].base_job_template == job_template("docker")
    assert _apply(server) == ("left", ())


def test_changed_job_template_stays() -> None:
    """A job template that somebody has changed stays and that is said."""
    server = Server()
    _apply(server)
    own = job_template("docker") | {"mine": True}
    server.pools["gpus"] = server.pools["gpus"].model_copy(update={"base_job_template": own})
    assert _apply(server) == ("left", (FOREIGN,))
    assert server.pools["gpus"].base_job_template == own
