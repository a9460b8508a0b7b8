"""A registry that the environment names, and nothing else of whoever runs the tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from ...support.servers.aws_server import aws, s3_server
from .registry import Registry, running

__all__ = ["aws", "s3_server"]


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    for name in [name for name in os.environ if name.startswith(("MLFLOW_", "PLANSMITH_MLFLOW_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    with running() as server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
        yield server
