"""The order, the numbers and the damage of noted runs, and of a model's versions."""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from plansmith.cli import cli
from plansmith.history import HISTORY, History

from .packages import draft_of, publish, write_package
from .runs import run_record


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the commands run."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(*words: str) -> str:
    """What a command line prints that must succeed."""
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_order_is_that_of_writing_when_the_clock_was_set_back(folder: Path) -> None:
    history = History(folder / "artifacts" / HISTORY)
    for model, started in (("first", "2030-01-01T00:00:00+00:00"), ("second", "2026-01-01T00:00:00+01:00")):
        history.add(run_record(model, started=started))
        os.utime(history.file(history.numbers()[-1]), (2e9, 2e9))
    _head, second, first = printed("history").splitlines()
    assert second.startswith("2025-12-31 23:00  second")
    assert first.startswith("2030-01-01 00:00  first")


def test_a_table_fits_eighty_columns_and_shows_the_first_line_of_what_failed(folder: Path) -> None:
    history = History(folder / "artifacts" / HISTORY)
    for failed in (False, True):
        history.add(run_record("minilm", failed=failed))
    lines = printed("history").splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[2] == "    GateError (exit code 5): logits differ"


@pytest.mark.parametrize("damage", [b"", b'{"schema_version": 1', b"\x00\xff", b"[]"])
def test_a_damaged_record_is_left_out(damage: bytes, folder: Path) -> None:
    history = History(folder / "artifacts" / HISTORY)
    for model in ("first", "second", "third"):
        history.add(run_record(model))
    history.file(2).write_bytes(damage)
    assert [row["model"] for row in json.loads(printed("history", "--json"))["runs"]] == ["third", "first"]
    history.add(run_record("fourth"))
    assert history.numbers() == [1, 2, 3, 4]


def _add(root: Path, model: str) -> None:
    History(root).add(run_record(model))


def test_runs_that_end_at_once_are_all_noted(tmp_path: Path) -> None:
    models = [f"model-{n}" for n in range(16)]
    with ProcessPoolExecutor(8) as processes:
        list(processes.map(_add, [tmp_path] * len(models), models))
    assert sorted(run.model for run in History(tmp_path).newest_first()) == sorted(models)
    assert History(tmp_path).numbers() == list(range(1, 17))


def test_show_says_why_a_version_is_not_shown_to_triton(folder: Path) -> None:
    root = folder / "artifacts" / "repository"
    for number, output in enumerate(("logits", "scores", "scores", "scores"), 1):
        package = write_package(folder / f"package-{number}", str(number))
        publish(root, package, draft_of(package, output=output), allow_interface_change=True)
    releases = folder / "artifacts" / "repository.plansmith" / "releases" / "tiny"
    shutil.rmtree(root / "tiny" / "2")
    (releases / "2" / "manifest.json").write_text("{")
    rows = [line.split("  ")[-1].strip() for line in printed("show", "tiny@3").splitlines()[2:6]]
    assert rows == [
        "not shown: other inputs or outputs than version 4",
        "not shown: its manifest is damaged",
        "shown",
        "serves",
    ]
