"""A list runs to its end whatever one entry does, and what is finished is not run again."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from plansmith.zoo.entries import Entry
from plansmith.zoo.rows import Row
from plansmith.zoo.running import Listener, Manner, Runner

MANNER = Manner(jobs=2, timeout=60, memory_bytes=1 << 30, child=f"{__package__}.odd_child")


class Heard(Listener):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.kept: dict[str, bool] = {}
        self.said: list[str] = []

    def doing(self, entry: Entry, text: str) -> None:
        self.said.append(f"{entry.label}: {text}")

    def finished(self, row: Row, *, kept: bool) -> None:
        self.kept[row.name] = kept


def entries(*names: str) -> list[Entry]:
    return [Entry(name=name, timm="resnet10t") for name in names]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])  # where `python -m` finds the tests


def test_a_crash_costs_one_entry(tmp_path: Path) -> None:
    rows = Runner(tmp_path, MANNER).run(entries("one", "crash", "two"))
    assert [row.name for row in rows] == ["one", "crash", "two"]
    assert [row.outcome for row in rows] == ["right", "failed", "right"]
    assert "SIGSEGV" in rows[1].problem


def test_an_entry_that_takes_too_long_is_ended_and_costs_one_entry(tmp_path: Path) -> None:
    began = time.monotonic()
    rows = Runner(tmp_path, replace(MANNER, timeout=4)).run(entries("hang", "one", "two"))
    assert time.monotonic() - began < 40
    assert [row.outcome for row in rows] == ["failed", "right", "right"]
    assert rows[0].problem == "it was not finished after 4.0 s"


def test_an_entry_that_holds_too_much_memory_is_ended_and_costs_one_entry(tmp_path: Path) -> None:
    rows = Runner(tmp_path, replace(MANNER, memory_bytes=300 << 20)).run(entries("eat", "one"))
    assert [row.outcome for row in rows] == ["failed", "right"]
    assert rows[0].problem.startswith("it held 3")
    assert rows[0].problem.endswith("and may 300.0 MiB")


def test_what_is_finished_is_kept_and_what_was_ended_is_tried_again(tmp_path: Path) -> None:
    Runner(tmp_path, MANNER).run(entries("one", "crash"))
    heard = Heard()
    rows = Runner(tmp_path, MANNER, heard).run(entries("one", "crash", "two"))
    assert heard.kept == {"one": True, "crash": False, "two": False}
    assert rows[0].outcome == "right"


def test_another_entry_of_the_same_name_is_run_and_force_runs_all(tmp_path: Path) -> None:
    Runner(tmp_path, MANNER).run(entries("one"))
    heard = Heard()
    Runner(tmp_path, MANNER, heard).run([Entry(name="one", timm="resnet18")])
    assert heard.kept == {"one": False}
    Runner(tmp_path, replace(MANNER, force=True), heard).run(entries("one"))
    assert heard.kept == {"one": False}


def test_a_damaged_result_is_made_anew(tmp_path: Path) -> None:
    Runner(tmp_path, MANNER).run(entries("one"))
    (kept,) = tmp_path.glob("*.json")
    kept.write_text("{")
    assert Runner(tmp_path, MANNER).run(entries("one"))[0].outcome == "right"
    assert Row.model_validate_json(kept.read_text()).outcome == "right"


def test_entries_side_by_side_get_a_thread_each_and_one_alone_gets_all(tmp_path: Path) -> None:
    heard = Heard()
    Runner(tmp_path, MANNER, heard).run(entries("one"))
    Runner(tmp_path, replace(MANNER, jobs=1, force=True, compare_bare=True), heard).run(entries("one"))
    assert heard.said == ["one: with 1 threads", "one: with 0 threads and plain exporters"]
