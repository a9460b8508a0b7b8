"""Tiny models, one finished compile that the tests share, and the command line in a folder of its own."""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from plansmith.system.files import locked

from ..support.cli.command import BERT, CommandLine


@dataclass(frozen=True)
class Compiled:
    """A folder in which `plansmith compile` was run once.

    Args:
        folder: the working directory; `artifacts` is in it.
        command: the command line, but for --json.
        document: what it printed with --json.
    """

    folder: Path
    command: tuple[str, ...]
    document: dict[str, Any]

    @property
    def release(self) -> Path:
        """The folder of version 1."""
        return self.folder / "artifacts" / "repository.plansmith" / "releases" / "tiny" / "1"


@pytest.fixture(scope="session")
def models(shared_folder: Path) -> Path:
    """Models as transformers saves them: `bert` (two labels), `three-labels`, and `lacking`, without its last layer."""
    folder = shared_folder / "models"
    with locked(shared_folder / "models.lock"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not folder.is_dir():
            _save_models(shared_folder / "models.new")
            (shared_folder / "models.new").rename(folder)
    return folder


@pytest.fixture(scope="session")
def compiled(shared_folder: Path, models: Path) -> Compiled:
    """`bert` compiled as `tiny`; shared by all tests, so only to be read."""
    folder = shared_folder / "compiled"
    stated = shared_folder / "compiled.json"
    command = ("compile", f"hf:{models / 'bert'}", "--name", "tiny", "--no-check-served")
    with locked(shared_folder / "compiled.lock"):
        if not stated.is_file():
            folder.mkdir()
            answer = CommandLine(folder)(*command, "--json")
            assert answer.status == 0, answer
            stated.write_text(answer.stdout)
    return Compiled(folder, command, json.loads(stated.read_text()))


@pytest.fixture
def finished(compiled: Compiled, tmp_path: Path) -> Compiled:
    """A copy of `compiled` that may be changed; `run` starts in its folder."""
    shutil.copytree(compiled.folder, tmp_path, symlinks=True, dirs_exist_ok=True)
    return replace(compiled, folder=tmp_path)


def _save_models(folder: Path) -> None:
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    for name, labels in (("bert", 2), ("three-labels", 3)):
        model = BertForSequenceClassification(BertConfig(**{**BERT, "num_labels": labels}))
        model.save_pretrained(folder / name)
    weights = {name: tensor for name, tensor in model.state_dict().items() if "layer.1" not in name}
    model.save_pretrained(folder / "lacking", state_dict=weights)
