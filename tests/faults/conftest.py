"""Folders, disks and scripts of the durability tests."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..support.faults.compiles import write_tiny_bert
from ..support.faults.cramped import Cramped, cramped_folder

ROOT = Path(__file__).parents[2]

RunScript = Callable[..., Any]


@pytest.fixture(scope="session")
def run_script() -> RunScript:
    """Run a module of this folder in a fresh interpreter with some arguments; the JSON that it prints."""
    return _run_script


def _run_script(module: str, *arguments: object) -> Any:
    command = [sys.executable, "-m", f"tests.support.faults.{module}", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def memory_folder() -> Iterator[Path]:
    """A folder in memory where there is such a place: many small files and no waiting for a disk."""
    place = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=place if place.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture
def cramped(tmp_path: Path) -> Iterator[Cramped]:
    """A folder with room for 64 KiB."""
    with cramped_folder(tmp_path / "cramped", 64 * 1024) as folder:
        yield folder


@pytest.fixture
def tiny_bert(tmp_path: Path) -> Path:
    """The configuration of a BERT that takes seconds to compile; its weights are drawn (--random-weights)."""
    return write_tiny_bert(tmp_path / "tiny-bert")
