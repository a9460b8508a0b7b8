"""One Prefect server for all tests of flows, and a compile to track."""

from __future__ import annotations

import warnings
from pathlib import Path
from uuid import uuid4

import pytest

from ..support.cli.command import BERT, CommandLine
from ..support.prefect.fleets import write_graph
from ..support.prefect.prefect_server import PrefectServer, prefect, prefect_database
from ..support.prefect.service import Service
from ..support.prefect.team import crew
from ..support.servers.aws_server import aws, s3_server
from ..support.tensorrt.nvml import nvml_stub
from ..support.triggers.aws_account import account

__all__ = ["account", "aws", "crew", "nvml_stub", "prefect", "prefect_database", "s3_server"]

_FIRST = (
    *("test_serving", "test_fleet_on_pools", "test_workers", "test_submit"),
    *("test_tracked", "test_deploying", "test_prefect_yaml", "test_automations", "test_gpu_queue"),
)
"""The files that take longest, and mostly wait: what begins last must be short."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file in one process, which share workers, and begin with those that take longest."""
    own = [item for item in items if item.path.is_relative_to(Path(__file__).parent)]
    for item in own:
        item.add_marker(pytest.mark.xdist_group(item.path.stem))
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


@pytest.fixture
def service(prefect: PrefectServer, tmp_path: Path) -> Service:
    """A service that no other test has."""
    return Service(prefect, tmp_path, f"pool-{uuid4().hex[:8]}")
