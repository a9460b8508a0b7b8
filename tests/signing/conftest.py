"""A folder of keys, and the command line in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..support.certificates import KeyRing
from ..support.cli.in_process import InProcess
from ..support.servers.aws_server import aws, s3_server
from ..support.stores.s3 import plain_client, s3, server_abilities

__all__ = ["aws", "plain_client", "s3", "s3_server", "server_abilities"]


@pytest.fixture
def ring(tmp_path: Path) -> KeyRing:
    """Keys in a folder of their own."""
    (tmp_path / "keys").mkdir()
    return KeyRing(tmp_path / "keys")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> InProcess:
    """The command line."""
    return InProcess(tmp_path, monkeypatch, capfd)
