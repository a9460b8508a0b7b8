"""A list runs to its end whatever one entry does, and what is finished is not run again."""

from __future__ import annotations

import contextvars
import os
import time
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from plansmith.compilers import onnxrt
from plansmith.fleet.zoo.entries import ZooEntry
from plansmith.fleet.zoo.records import Limit, ZooRow
from plansmith.fleet.zoo.run import Listener, Runner, ZooOptions

from ...support.precision import lint_graphs

MANNER = ZooOptions(jobs=2, timeout=60, memory_bytes=1 << 30, child=f"{__package__}.odd_child")


class Heard(Listener):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.cache_flags: dict[str, bool] = {}
        self.lines: list[str] = []

    def doing(self, entry: ZooEntry, text: str) -> None:
        self.lines.append(f"{entry.label}: {text}")

    def finished(self, row: ZooRow, *, kept: bool) -> None:
        self.cache_flags[row.name] = kept


def entries(*names: str) -> list[ZooEntry]:
    return [ZooEntry(name=name, timm="resnet10t") for name in names]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])  # where `python -m` finds the tests


@pytest.mark.slow
def test_a_crash_costs_one_entry(tmp_path: Path) -> None:
    rows = Runner(tmp_path, MANNER).run(entries("one", "crash", "two"))
    assert [row.name for row in rows] == ["one", "crash", "two"]
    assert [row.outcome for row in rows] == ["right", "failed", "right"]
    assert "SIGSEGV" in rows[1].problem


@pytest.mark.slow
def test_slow_entry_is_ended(tmp_path: Path) -> None:
    """An entry that takes too long is ended and costs one entry."""
    began = time.monotonic()
    rows = Runner(tmp_path, replace(MANNER, timeout=10)).run(entries("hang", "one", "two"))
    assert time.monotonic() - began < 60
    assert [row.outcome for row in rows] == ["failed", "right", "right"]
    assert rows[0].problem == "it was not finished after 10.0 s (hanging); --timeout 20 gives it longer"


@pytest.mark.slow
def test_memory_hungry_entry_is_ended(tmp_path: Path) -> None:
    """An entry that holds too much memory is ended and costs one entry."""
    rows = Runner(tmp_path, replace(MANNER, memory_bytes=300 << 20)).run(entries("eat", "one"))
    assert [row.outcome for row in rows] == ["failed", "right"]
    assert rows[0].problem.startswith("it held 3")
    assert rows[0].problem.endswith("(eating), and may hold 300.0 MiB; --memory 0.586 allows it more")


@pytest.mark.slow
def test_limited_result_kept_until_raised(tmp_path: Path) -> None:
    """What was ended at a limit is kept until it is allowed more."""
    short = replace(MANNER, timeout=2)
    (first,) = Runner(tmp_path, short).run(entries("hang"))
    heard = Heard()
    assert Runner(tmp_path, replace(short, memory_bytes=2 << 30), heard).run(entries("hang")) == [first]
    assert heard.cache_flags == {"hang": True}
    (longer,) = Runner(tmp_path, replace(short, timeout=2.5), heard).run(entries("hang"))
    assert heard.cache_flags == {"hang": False}
    assert longer.limit == Limit(kind="time", allowed=2.5)


@pytest.mark.slow
def test_finished_kept_and_ended_retried(tmp_path: Path) -> None:
    """What is finished is kept, and what was ended is tried again."""
    Runner(tmp_path, MANNER).run(entries("one", "crash"))
    heard = Heard()
    rows = Runner(tmp_path, MANNER, heard).run(entries("one", "crash", "two"))
    assert heard.cache_flags == {"one": True, "crash": False, "two": False}
    assert rows[0].outcome == "right"


def test_machine_failure_tried_again(tmp_path: Path) -> None:
    """What the machine failed at is told and tried again."""
    (row,) = Runner(tmp_path, MANNER).run(entries("full"))
    assert (row.outcome, row.problem) == ("failed", "no room")
    heard = Heard()
    Runner(tmp_path, MANNER, heard).run(entries("full"))
    assert heard.cache_flags == {"full": False}


@pytest.mark.slow
def test_wrong_row_names_log(tmp_path: Path) -> None:
    """A row that is not right names the log of its process."""
    right, failed = Runner(tmp_path, MANNER).run(entries("one", "crash"))
    assert right.log == ""
    assert Path(failed.log).parent == tmp_path / "logs"
    assert Path(failed.log).name.startswith("crash-")
    assert Path(failed.log).is_file()


def test_changed_entry_is_rerun(tmp_path: Path) -> None:
    """Another entry of the same name is run, and --force runs all."""
    Runner(tmp_path, MANNER).run(entries("one"))
    heard = Heard()
    Runner(tmp_path, MANNER, heard).run([ZooEntry(name="one", timm="resnet18")])
    assert heard.cache_flags == {"one": False}
    Runner(tmp_path, replace(MANNER, force=True), heard).run(entries("one"))
    assert heard.cache_flags == {"one": False}


def test_damaged_result_is_remade(tmp_path: Path) -> None:
    """A damaged result is made anew."""
    Runner(tmp_path, MANNER).run(entries("one"))
    (file,) = tmp_path.glob("*.json")
    file.write_text("{")
    assert Runner(tmp_path, MANNER).run(entries("one"))[0].outcome == "right"
    assert ZooRow.model_validate_json(file.read_text()).outcome == "right"


def test_parallel_entries_share_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries side by side share the cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    heard = Heard()
    Runner(tmp_path, MANNER, heard).run(entries("one"))
    Runner(tmp_path, replace(MANNER, jobs=3, force=True, compare_bare=True), heard).run(entries("one"))
    assert heard.lines == ["one: with 4 threads", "one: with 2 threads and plain exporters"]
    assert replace(MANNER, jobs=16).threads == 1


def test_session_uses_entry_threads(tmp_path: Path) -> None:
    """A session computes with as many threads as the entry may."""

    def threads_of_a_session(limit: int | None) -> int:
        if limit is not None:
            onnxrt.limit_threads(limit)
        return int(onnxrt.open_session(path).get_session_options().intra_op_num_threads)

    path = tmp_path / "net.onnx"
    onnx.save(lint_graphs.cnn(), path)
    assert contextvars.Context().run(threads_of_a_session, 3) == 3
    assert contextvars.Context().run(threads_of_a_session, None) == 0
