"""Kills and crowds by chance, a few rounds here and as many as one likes with PLANSMITH_SOAK_ROUNDS.

One round of each crowd is in faults/test_crowds.py, and kills at every boundary are in faults/test_kills.py.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ROUNDS = int(os.environ.get("PLANSMITH_SOAK_ROUNDS") or 3)


@pytest.mark.slow
def test_killed_compile_resumes_last_step(tmp_path: Path) -> None:
    """A compile killed at any moment goes on from its last finished step."""
    seed = os.environ.get("PLANSMITH_SOAK_SEED") or random.randrange(10**6)
    outcomes = _outcomes("compile_kills", tmp_path, ROUNDS, seed)
    assert [(seed, outcome) for outcome in outcomes if outcome["problems"]] == []
    assert len(outcomes) == ROUNDS


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "versions"), [("different content", 16), ("the same content", 1)])
def test_publishers_get_each_number_once(scenario: str, versions: int, tmp_path: Path) -> None:
    """Crowds of publishers get every number once round after round."""
    for outcome in _outcomes("crowd", scenario, tmp_path, ROUNDS):
        assert outcome["problems"] == []
        assert outcome["versions"] == outcome["shown"] == list(range(1, versions + 1))
        assert sorted(set(outcome["answers"])) == outcome["versions"]


def _outcomes(module: str, *arguments: object) -> list[Any]:
    command = [sys.executable, "-m", f"tests.support.faults.{module}", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    outcomes: list[Any] = json.loads(done.stdout)
    return outcomes
