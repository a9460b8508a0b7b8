"""Ctrl-C ends everything at once, leaves nothing half-made, and the same command goes on afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..support.cli.command import CommandLine, check_nothing_made
from ..support.cli.interrupts import interrupt

pytestmark = pytest.mark.slow


def test_interrupt_at_start_leaves_nothing(run: CommandLine, models: Path) -> None:
    """An interrupt while the worker starts leaves nothing."""

    def worker_began(folder: Path) -> bool:
        return any(folder.glob("artifacts/logs/*-worker.log"))

    command = ["compile", f"hf:{models / 'bert'}", "--no-check-served"]
    status, output, left = interrupt(command, run.folder, worker_began)
    assert status == 130
    assert output.splitlines()[-1].startswith("plansmith: interrupted; run the same command again")
    assert "Traceback" not in output
    assert not left
    check_nothing_made(run.folder)


def test_interrupted_export_can_be_repeated(run: CommandLine, models: Path) -> None:
    """An interrupt during export leaves nothing, and the same command then succeeds."""

    def export_writes(folder: Path) -> bool:
        return any(folder.glob("artifacts/cache/staging/*/*"))

    command = ["compile", f"hf:{models / 'bert'}", "--no-check-served"]
    status, output, left = interrupt(command, run.folder, export_writes)
    assert status == 130
    assert "Traceback" not in output
    assert not left
    check_nothing_made(run.folder)
    assert not list(run.folder.glob("artifacts/cache/export/*"))
    answer = run(*command)
    assert answer.status == 0, answer
    assert "bert published, version 1" in answer.stdout


def test_interrupt_stops_all_models(run: CommandLine, models: Path) -> None:
    """An interrupt stops all models of a spec."""
    listed = "".join(f"  - {{source: hf:{models / 'bert'}, name: {name}}}\n" for name in ("first", "second"))
    (run.folder / "models.yaml").write_text(f"models:\n{listed}")

    def worker_began(folder: Path) -> bool:
        return any(folder.glob("artifacts/logs/*-worker.log"))

    status, output, left = interrupt(["compile", "models.yaml", "--no-check-served"], run.folder, worker_began)
    assert status == 130
    assert output.splitlines()[0] == "first (1 of 2)"
    assert output.splitlines()[-1].startswith("plansmith: interrupted; run the same command again")
    assert "second" not in output
    assert not left
    check_nothing_made(run.folder)
