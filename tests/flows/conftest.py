"""One Prefect server for all tests of flows, and a compile to track."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from ..support.cli.command import BERT, CommandLine
from ..support.prefect import team
from ..support.prefect.fleets import write_graph
from ..support.prefect.prefect_server import PrefectServer, prefect
from ..support.prefect.service import Service
from ..support.prefect.team import Team
from ..support.tensorrt.nvml import nvml_stub

__all__ = ["nvml_stub", "prefect"]

_FIRST = (
    *("test_kills", "test_workers", "test_fleet_on_workers", "test_serving", "test_fleet_on_pools"),
    *("test_tracked", "test_submit", "test_deploying", "test_prefect_yaml"),
)
"""The files that take longest, and mostly wait: what begins last must be short."""
_SHARED = {"test_kills": "team", "test_workers": "team"}
"""Which files share what they are marked with, and so their servers."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of one server's workers in one process: those of a file, and of the files that share a team."""
    own = [item for item in items if item.path.is_relative_to(Path(__file__).parent)]
    for item in own:
        item.add_marker(pytest.mark.xdist_group(_SHARED.get(item.path.stem, item.path.stem)))
    first = [item for name in _FIRST for item in own if item.path.stem == name]
    items[:] = first + [item for item in items if item not in first]


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
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of an ONNX file that takes a second to compile."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.onnx"
    write_graph(path)
    return f"onnx:{path}"


@pytest.fixture
def run(run_alone: CommandLine) -> CommandLine:
    """`plansmith` in an empty folder, in a process of its own, which Prefect's settings are read in."""
    return run_alone


@pytest.fixture(scope="session")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    """PostgreSQL, a Prefect server with CSRF protection, three workers."""
    with team.running(tmp_path_factory.mktemp("team")) as started:
        yield started


@pytest.fixture
def service(prefect: PrefectServer, tmp_path: Path) -> Service:
    """A service that no other test has."""
    return Service(prefect, tmp_path, f"pool-{uuid4().hex[:8]}")
