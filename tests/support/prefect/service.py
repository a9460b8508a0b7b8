"""A service of plansmith on a Prefect server: its file, its deployment, and what the server has of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from plansmith.errors import UsageError
from plansmith.flows.deploy.automations import Deployed
from plansmith.flows.deploy.deployments import load_service

from .prefect_server import PrefectServer

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient


class Service:
    """A service's file, and its deployment from this process, where Prefect is imported once; its pool has its name."""

    def __init__(self, server: PrefectServer, folder: Path, name: str) -> None:
        self.server, self.name = server, name
        self.path = folder / "service.yaml"
        self.values: dict[str, Any] = {
            "name": name,
            "specs": ["specs"],
            "pools": {name: {"create": True}},
            "flows": {"refresh": {"schedules": {"nightly": {"cron": "0 3 * * *", "timezone": "Europe/Berlin"}}}},
        }

    @contextmanager
    def client(self) -> Iterator[SyncPrefectClient]:
        """A client of the server, which is the configured one for the length of a block."""
        from prefect import settings
        from prefect.client.orchestration import get_client

        variables = self.server.variables()
        overrides = {
            settings.PREFECT_API_URL: variables["PREFECT_API_URL"],
            settings.PREFECT_API_AUTH_STRING: variables["PREFECT_API_AUTH_STRING"],
        }
        with settings.temporary_settings(overrides), get_client(sync_client=True) as client:
            yield client

    def deploy(self, *pools: str, dry_run: bool = False) -> Deployed:
        from plansmith.flows.deploy.deploying import deploy

        with self.client():
            return deploy(load_service(self.write()).config, pools, dry_run=dry_run)

    def write(self) -> Path:
        self.path.write_text(json.dumps(self.values, indent=1))  # which is YAML, too
        return self.path

    def changes(self, *pools: str, dry_run: bool = False) -> dict[str, tuple[str, tuple[str, ...]]]:
        """What came of each thing, but for what was left as it was."""
        results = self.deploy(*pools, dry_run=dry_run).changes
        return {change.name: (change.outcome, change.words) for change in results if change.outcome != "left"}

    def check_refused(self, *says: str) -> None:
        with pytest.raises(UsageError) as refused:
            self.deploy()
        assert not [word for word in says if word not in str(refused.value)], str(refused.value)
        assert not self.server.ask("deployments/filter", deployments={"name": {"any_": [self.name]}})

    def deployment(self, flow: str) -> dict[str, Any]:
        """A deployment as the server has it."""
        names = {"flows": {"name": {"any_": [flow]}}, "deployments": {"name": {"any_": [self.name]}}}
        (document,) = self.server.ask("deployments/filter", **names)
        assert isinstance(document, dict)
        return document

    def schedules(self, flow: str) -> dict[str, tuple[str, bool]]:
        """The schedules of a deployment by slug: cron, and whether it is on."""
        entries = self.deployment(flow)["schedules"]
        return {entry["slug"]: (entry["schedule"]["cron"], entry["active"]) for entry in entries}
