"""Inboxes in SQLite and in a real PostgreSQL, and AWS (moto)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..support.servers.aws_server import aws, s3_server
from ..support.triggers.aws_account import account
from ..support.triggers.fixtures import clock, database_server, inbox, postgresql_url, url

__all__ = ["account", "aws", "clock", "database_server", "inbox", "postgresql_url", "s3_server", "url"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of the one PostgreSQL in one process."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("services"):
            item.add_marker(pytest.mark.xdist_group("inbox"))
