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
def test_a_compile_killed_at_any_moment_goes_on_from_its_last_finished_step(tmp_path: Path) -> None:
    seed = os.environ.get("PLANSMITH_SOAK_SEED") or random.randrange(10**6)
    outcomes = _outcomes("compile_kills", tmp_path, ROUNDS, seed)
    assert [(seed, outcome) for outcome in outcomes if outcome["problems"]] == []
    assert len(outcomes) == ROUNDS


@pytest.mark.slow
@pytest.mark.parametrize(("what", "versions"), [("different content", 16), ("the same content", 1)])
def test_crowds_of_publishers_get_every_number_once_round_after_round(what: str, versions: int, tmp_path: Path) -> None:
    for outcome in _outcomes("crowd", what, tmp_path, ROUNDS):
        assert outcome["problems"] == []
        assert outcome["versions"] == outcome["shown"] == list(range(1, versions + 1))
        assert sorted(set(outcome["answers"])) == outcome["versions"]


def _outcomes(module: str, *arguments: object) -> list[Any]:
    command = [sys.executable, "-m", f"tests.support.faults.{module}", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    outcomes: list[Any] = json.loads(done.stdout)
    return outcomes
