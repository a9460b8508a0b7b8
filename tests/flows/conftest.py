"""One Prefect server for all tests of flows, and a compile to track."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from ..cli.command import BERT, CommandLine
from ..compilers.trt.conftest import nvml_stub
from . import prefect_server, team
from .prefect_server import PrefectServer
from .service import Service
from .team import Team

__all__ = ["nvml_stub"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of one server's workers in one process: those of a file, and all of the team's."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and isinstance(item, pytest.Function):
            item.add_marker(pytest.mark.xdist_group("team" if "crew" in item.fixturenames else item.path.stem))


@pytest.fixture(scope="session")
def prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    """A Prefect server that asks for a login."""
    with prefect_server.running(tmp_path_factory.mktemp("prefect")) as server:
        yield server


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT as transformers saves it."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    folder = tmp_path_factory.mktemp("models") / "bert"
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        BertForSequenceClassification(BertConfig(**BERT)).save_pretrained(folder)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> CommandLine:
    """`plansmith` in an empty folder."""
    return CommandLine(tmp_path)


@pytest.fixture(scope="session")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    """PostgreSQL, a Prefect server with CSRF protection, three workers."""
    with team.running(tmp_path_factory.mktemp("team")) as started:
        yield started


@pytest.fixture
def service(prefect: PrefectServer, tmp_path: Path) -> Service:
    """A service that no other test has."""
    return Service(prefect, tmp_path, f"pool-{uuid4().hex[:8]}")
