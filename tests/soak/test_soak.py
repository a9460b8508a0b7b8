"""Compiles that are killed by chance, a few rounds here and as many as one likes with PLANSMITH_SOAK_ROUNDS.

Kills at every boundary are in faults/test_kills.py.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROUNDS = int(os.environ.get("PLANSMITH_SOAK_ROUNDS") or 3)


@pytest.mark.slow
def test_killed_compile_resumes_last_step(tmp_path: Path) -> None:
    """A compile killed at any moment goes on from its last finished step."""
    seed = os.environ.get("PLANSMITH_SOAK_SEED") or str(random.randrange(10**6))
    command = [sys.executable, "-m", "tests.support.faults.compile_kills", str(tmp_path), str(ROUNDS), seed]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    assert [(seed, outcome) for outcome in outcomes if outcome["problems"]] == []
    assert len(outcomes) == ROUNDS
