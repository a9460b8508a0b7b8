"""A process that is killed leaves nothing half-made, and the next one goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..support.faults.scenarios import SCENARIOS
from .conftest import RunScript

NAMING = {"link", "mkdir", "rename", "replace", "symlink"}


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_kill_leaves_everything_whole(scenario: str, run_script: RunScript, memory_folder: Path) -> None:
    """A kill at any boundary leaves everything whole, and the next run mends it."""
    report = run_script("kill_rounds", scenario, memory_folder)
    assert report["problems"] == []
    assert report["rounds"] > 10


def test_names_flushed_before_triton_looks(run_script: RunScript, memory_folder: Path) -> None:
    """Every name is flushed to the disk before Triton sees the version."""
    calls = [(call, Path(path)) for call, path in run_script("trace_calls", "a first version", memory_folder)]
    shown = next(n for n, (call, path) in enumerate(calls) if call == "replace" and path.parent.name == "repository")
    lasting = [n for n, (call, path) in enumerate(calls[:shown]) if call in NAMING and not _is_passing(path)]
    unflushed = [calls[n] for n in lasting if ("fsync", calls[n][1].parent) not in calls[n:shown]]
    assert len(lasting) > 10
    assert unflushed == []


def _is_passing(path: Path) -> bool:
    """Whether a name stands for a moment only: a staging folder, or the new link before it is exchanged."""
    return path.parent.name == "staging" or path.name == "link"
