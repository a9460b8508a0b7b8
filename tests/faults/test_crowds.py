"""Many processes that publish at once get in each other's way no more than by waiting."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .conftest import RunScript

EVERYBODY = list(range(1, 17))
ROUNDS = int(os.environ.get("PLANSMITH_SOAK_ROUNDS") or 1)


@pytest.mark.slow
def test_sixteen_processes_get_own_numbers(run_script: RunScript, tmp_path: Path) -> None:
    """Sixteen processes get sixteen numbers, and a reader never sees a broken view."""
    for report in run_script("crowd", "different content", tmp_path, ROUNDS):
        assert report["problems"] == []
        assert sorted(report["answers"]) == EVERYBODY
        assert report["versions"] == report["shown"] == EVERYBODY
        assert report["reads"] > 10


def test_same_content_makes_one_version(run_script: RunScript, tmp_path: Path) -> None:
    """Sixteen processes with one content make one version."""
    for report in run_script("crowd", "the same content", tmp_path, ROUNDS):
        assert report["problems"] == []
        assert report["answers"] == [1] * len(EVERYBODY)
        assert report["versions"] == report["shown"] == [1]


def test_racing_targets_one_wins(run_script: RunScript, tmp_path: Path) -> None:
    """Of two targets that race for a fresh repository, one wins and the other is told."""
    (report,) = run_script("crowd", "two targets", tmp_path, 1)
    assert report["problems"] == []
    assert report["answers"].count(1) == 1
    (refusal,) = (answer for answer in report["answers"] if answer != 1)
    assert "belongs to target" in refusal
    assert len(report["models"]) == 1
