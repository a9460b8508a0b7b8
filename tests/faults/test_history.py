"""The order, the numbers and the damage of noted runs, and of a model's versions."""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from plansmith.cli import cli
from plansmith.config.spec import make_spec
from plansmith.errors import EnvironmentFault, GateError
from plansmith.steps.provenance.history import HISTORY, History, Run, recorded
from plansmith.steps.runner import Listener, StageRunner

from ..support.faults.packages import draft_of, publish, write_package
from ..support.faults.runs import run_record


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the commands run."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(*arguments: str) -> str:
    """What a command line prints that must succeed."""
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_order_survives_clock_set_back(folder: Path) -> None:
    """The order is that of writing when the clock was set back."""
    history = History(folder / "artifacts" / HISTORY)
    for model, started in (("first", "2030-01-01T00:00:00+00:00"), ("second", "2026-01-01T00:00:00+01:00")):
        history.add(run_record(model, started=started))
        os.utime(history.file(history.numbers()[-1]), (2e9, 2e9))
    _head, second, first = printed("history").splitlines()
    assert second.startswith("2025-12-31 23:00  second")
    assert first.startswith("2030-01-01 00:00  first")


def test_refused_lowering_failed_the_gate(folder: Path) -> None:
    """A lowering whose recipes are all too inaccurate has failed the gate, without a report of it."""
    stages: Any = SimpleNamespace(results={}, records=[], step="lower", log_file=lambda _: folder / "lower.log")
    run = Run(stages, make_spec({"source": "onnx:model.onnx"}), "minilm", folder)
    assert run.record(GateError("none of 2 recipes is accurate enough", step="lower")).gate_text == "failed"
    assert run.record(EnvironmentFault("the disk is full", step="lower")).gate_text == "-"


def test_table_fits_eighty_columns(folder: Path) -> None:
    """A table fits eighty columns and shows the first line of what failed."""
    history = History(folder / "artifacts" / HISTORY)
    for failed in (False, True):
        history.add(run_record("minilm", failed=failed))
    lines = printed("history").splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[2] == "    GateError (exit code 5): logits differ"


@pytest.mark.parametrize("damage", [b"", b'{"schema_version": 1', b"\x00\xff", b"[]"])
def test_damaged_record_left_out(damage: bytes, folder: Path) -> None:
    """A damaged record is left out."""
    history = History(folder / "artifacts" / HISTORY)
    for model in ("first", "second", "third"):
        history.add(run_record(model))
    history.file(2).write_bytes(damage)
    assert [row["model"] for row in json.loads(printed("history", "--json"))["runs"]] == ["third", "first"]
    history.add(run_record("fourth"))
    assert history.numbers() == [1, 2, 3, 4]


def test_unreadable_records_are_counted(folder: Path) -> None:
    """Records that cannot be read are counted in one line."""
    history = History(folder / "artifacts" / HISTORY)
    for model in ("first", "second", "third"):
        history.add(run_record(model))
    assert "cannot be read" not in printed("history")
    history.file(1).write_text("{")
    assert printed("history").splitlines()[-1] == "1 record cannot be read"
    history.file(3).write_text("[]")
    assert printed("history", "third").splitlines()[1:] == ["2 records cannot be read"]
    assert json.loads(printed("history", "--json"))["unreadable"] == 2


def test_other_version_fields_ignored(folder: Path) -> None:
    """A record with fields of another version is read without them."""
    history = History(folder / "artifacts" / HISTORY)
    history.add(run_record("tiny", failed=True))
    fields = json.loads(history.file(1).read_text())
    steps = [{"name": "fetch", "seconds": 1.0, "cached": False, "peak_bytes": 7}]
    more = {"schema_version": 2, "host": {"name": "here"}, "steps": steps}
    history.file(1).write_text(json.dumps(fields | more | {"failure": fields["failure"] | {"log": None}}))
    document = json.loads(printed("history", "--json"))
    (run,) = document["runs"]
    assert document["unreadable"] == 0
    assert (run["model"], run["failure"]) == ("tiny", fields["failure"])
    assert run["steps"] == [{"name": "fetch", "seconds": 1.0, "cached": False}]


ENDS: dict[str, tuple[BaseException, int]] = {
    "an error of ours": (GateError("logits differ"), 5),
    "a file that cannot be read": (PermissionError(13, "Permission denied", "/file"), 9),
    "a bug": (ZeroDivisionError(), 1),
    "Ctrl-C": (KeyboardInterrupt(), 130),
    "a signal": (SystemExit(143), 143),
    "an exit without a code": (SystemExit(None), 0),
    "an exit with a text": (SystemExit("no more"), 1),
}


@pytest.mark.parametrize(("error", "code"), ENDS.values(), ids=ENDS)
def test_run_noted_with_exit_code(error: BaseException, code: int, tmp_path: Path) -> None:
    """A run is noted with the exit code of the command line, and its own error passes."""
    stages = StageRunner("tiny", tmp_path, listener=Listener(), force=False, dry=False)
    run, history = Run(stages, make_spec({"source": "hf:./tiny"}), "tiny", tmp_path), History(tmp_path / HISTORY)
    with pytest.raises(type(error)) as passed, recorded(run, history):
        raise error
    assert passed.value is error
    noted = history.read(1)
    assert noted is not None
    assert noted.failure is not None
    assert noted.failure.exit_code == code


def _add(root: Path, model: str) -> None:
    History(root).add(run_record(model))


def test_simultaneous_runs_all_noted(tmp_path: Path) -> None:
    """Runs that end at once are all noted."""
    models = [f"model-{n}" for n in range(16)]
    with ProcessPoolExecutor(8) as processes:
        list(processes.map(_add, [tmp_path] * len(models), models))
    assert sorted(run.model for run in History(tmp_path).newest_first()) == sorted(models)
    assert History(tmp_path).numbers() == list(range(1, 17))


def test_show_says_why_hidden(folder: Path) -> None:
    """Show says why a version is not shown to Triton."""
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
