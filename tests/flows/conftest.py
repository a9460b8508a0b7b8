"""One Prefect server for all tests of flows, and a compile to track."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..cli.command import BERT, CommandLine
from . import prefect_server
from .prefect_server import PrefectServer


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
