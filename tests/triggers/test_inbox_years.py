"""Simulated years of an inbox: whatever is killed, late or told twice, each event is built once, the newest last."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ..support.simulation.deliveries import MODELS, InboxYears

pytestmark = pytest.mark.slow

SEEDS = int(os.environ.get("PLANSMITH_SOAK_SEEDS") or 200)
FIRST = int(os.environ.get("PLANSMITH_SOAK_FIRST_SEED") or 0)


def test_accepted_deliveries_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An accepted delivery is not lost, is built once and not beside another, and the newest state is what stands."""
    monkeypatch.chdir(tmp_path)
    Path("specs").mkdir()
    for model in MODELS:
        Path(f"specs/{model}.yaml").write_text(f"source: hf:org/{model}\nname: {model}\n")
    for seed in range(FIRST, FIRST + SEEDS):
        InboxYears(seed, tmp_path).run()
