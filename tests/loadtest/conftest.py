"""A small release and one Triton for the tests of load tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ..support.cli.in_process import InProcess
from ..support.models.graphs import save_product
from ..support.triton.installed import installation, site

if TYPE_CHECKING:
    from ..support.cli.command import Answer

    Command = Callable[..., Answer]

__all__ = ["installation", "site"]


@pytest.fixture(scope="session")
def net_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with `net`: `x` of [batch, 3, 64] times a matrix, in batches of 1 to 8; only to be read."""
    folder = tmp_path_factory.mktemp("net")
    save_product(folder)
    command = ["compile", "onnx:net.onnx", "--shapes", "x=1x3x64:2x3x64:8x3x64", "--no-check-served"]
    subprocess.run([sys.executable, "-m", "plansmith", *command], cwd=folder, check=True, capture_output=True)
    return folder / "artifacts" / "repository"


@pytest.fixture
def busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests may delay a client: that is no saturation here."""
    monkeypatch.setattr("plansmith.loadtest.runner.stage_results._LATE_MS", 60_000)


@pytest.fixture
def loadtest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """`plansmith loadtest`, in a folder of its own."""
    command = InProcess(tmp_path, monkeypatch, capfd)
    return lambda *arguments: command("loadtest", *arguments)
