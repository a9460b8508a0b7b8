"""Every file of journeys in one process, so that its stories share what they compiled; and the services."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..support.cli.command import CommandLine
from ..support.prefect.prefect_server import prefect, prefect_database
from ..support.servers.aws_server import aws, s3_server
from ..support.stores.s3 import plain_client, s3, server_abilities

__all__ = [
    "aws",
    "plain_client",
    "prefect",
    "prefect_database",
    "s3",
    "s3_server",
    "server_abilities",
]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, and keep those of a file in one process."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.journey)
            item.add_marker(pytest.mark.xdist_group(f"journeys-{item.path.stem}"))


@pytest.fixture
def terminal(tmp_path: Path) -> CommandLine:
    """`plansmith` in an empty folder."""
    return CommandLine(tmp_path)
