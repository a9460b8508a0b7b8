"""An index that is a folder, and a model that needs a package of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plansmith.records.engine import Engine
from plansmith.records.model import OnnxModel
from plansmith.steps.runner import StepResult

from .releases import make_engine, make_reference


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose wheels are all that is got, whatever pip is configured for."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    (tmp_path / "index").mkdir()
    return tmp_path / "index"


@pytest.fixture
def engine(tmp_path: Path) -> StepResult[Engine]:
    """A model for the Python backend that needs a package."""
    return make_engine(tmp_path / "engine")


@pytest.fixture
def reference(engine: StepResult[Engine], tmp_path: Path) -> StepResult[OnnxModel]:
    """One case."""
    return make_reference(engine, tmp_path)
