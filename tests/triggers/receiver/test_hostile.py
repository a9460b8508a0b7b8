"""A real receiver under forged, replayed, malformed, oversized and slow requests takes what is right, and only that.

Some hundred of them here; `make soak` sends ten thousand, with PLANSMITH_SOAK_SEED the same ones again.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ...support.deliveries.attacking import attack
from ...support.deliveries.hostile_kinds import KINDS
from ...support.deliveries.served import served

NUMBER = int(os.environ.get("PLANSMITH_SOAK_DELIVERIES") or 12 * len(KINDS))
SEED = int(os.environ.get("PLANSMITH_SOAK_SEED") or 11)


@pytest.mark.slow
def test_hostile_requests_leave_nothing(tmp_path: Path) -> None:
    """Each is answered as it may be, what is right is kept once, and memory stays bounded."""
    with served(tmp_path) as receiver:
        problems = attack(receiver, number=NUMBER, seed=SEED, at_once=64 if NUMBER < 1000 else 200)
    assert problems == []
