"""Ctrl-C ends everything at once, leaves nothing half-made, and the same command goes on afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..support.cli.command import CommandLine, check_nothing_made
from ..support.cli.interrupts import interrupt

pytestmark = pytest.mark.slow


def test_an_interrupt_while_the_worker_starts_leaves_nothing(run: CommandLine, models: Path) -> None:
    def worker_began(folder: Path) -> bool:
        return any(folder.glob("artifacts/logs/*-worker.log"))

    words = ["compile", f"hf:{models / 'bert'}", "--no-check-served"]
    status, said, left = interrupt(words, run.folder, worker_began)
    assert status == 130
    assert said.splitlines()[-1].startswith("plansmith: interrupted; run the same command again")
    assert "Traceback" not in said
    assert not left
    check_nothing_made(run.folder)


def test_an_interrupt_during_export_leaves_nothing_and_the_same_command_then_succeeds(
    run: CommandLine, models: Path
) -> None:
    def export_writes(folder: Path) -> bool:
        return any(folder.glob("artifacts/cache/staging/*/*"))

    words = ["compile", f"hf:{models / 'bert'}", "--no-check-served"]
    status, said, left = interrupt(words, run.folder, export_writes)
    assert status == 130
    assert "Traceback" not in said
    assert not left
    check_nothing_made(run.folder)
    assert not list(run.folder.glob("artifacts/cache/export/*"))
    answer = run(*words)
    assert answer.status == 0, answer
    assert "bert published, version 1" in answer.stdout


def test_an_interrupt_stops_all_models_of_a_spec(run: CommandLine, models: Path) -> None:
    listed = "".join(f"  - {{source: hf:{models / 'bert'}, name: {name}}}\n" for name in ("first", "second"))
    (run.folder / "models.yaml").write_text(f"models:\n{listed}")

    def worker_began(folder: Path) -> bool:
        return any(folder.glob("artifacts/logs/*-worker.log"))

    status, said, left = interrupt(["compile", "models.yaml", "--no-check-served"], run.folder, worker_began)
    assert status == 130
    assert said.splitlines()[0] == "first (1 of 2)"
    assert said.splitlines()[-1].startswith("plansmith: interrupted; run the same command again")
    assert "second" not in said
    assert not left
    check_nothing_made(run.folder)
