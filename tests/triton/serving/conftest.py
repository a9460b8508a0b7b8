"""One Triton for all tests of this folder: the models of `models.py`, each version in a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from plansmith.triton.server.server import TritonServer

from .asking import PROTOCOLS, Asker
from .models import write_repository

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from plansmith.triton.server.installation import Installation


@pytest.fixture(scope="package")
def server(installation: Installation, site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A running Triton with all models; it must be up to the end, whatever it was sent."""
    folder = tmp_path_factory.mktemp("serving")
    names = write_repository(folder / "repository", site)
    with TritonServer(
        folder / "repository", installation, folder / "log", site=site, models=names, deadline_seconds=120
    ) as running:
        yield running


@pytest.fixture(params=PROTOCOLS)
def asker(server: TritonServer, request: pytest.FixtureRequest) -> Iterator[Asker]:
    """A client of each protocol."""
    with Asker(server, request.param) as client:
        yield client


@pytest.fixture
def http(server: TritonServer) -> Iterator[Asker]:
    """A client over HTTP, where the protocol does not matter."""
    with Asker(server, "http") as client:
        yield client
