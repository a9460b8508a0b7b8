"""A clock that was set back changes nothing in numbers, order and what is kept."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from ..support.cli.command import CommandLine
from .conftest import Compiled

pytestmark = pytest.mark.slow

YEAR = 365 * 86400

# Loaded by every Python that is started with it on its path: its clock goes some seconds behind.
SET_BACK = f"""
import datetime, time
_time, _time_ns, _datetime = time.time, time.time_ns, datetime.datetime
time.time = lambda: _time() - {YEAR}
time.time_ns = lambda: _time_ns() - {YEAR} * 10**9

class SetBack(_datetime):
    @classmethod
    def now(cls, tz=None):
        return _datetime.now(tz) - datetime.timedelta(seconds={YEAR})

datetime.datetime = SetBack
"""


@pytest.fixture
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process whose clock was set back by a year."""
    folder = tmp_path_factory.mktemp("clock")
    (folder / "sitecustomize.py").write_text(SET_BACK)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), "TMPDIR": str(folder)}


def damage(compiled: Compiled) -> None:
    """Give the next compile something to publish."""
    config = compiled.release / "config.pbtxt"
    config.unlink()
    config.write_text("damaged")


def tidied(run_alone: CommandLine, age: str, variables: dict[str, str]) -> list[str]:
    """What a collection takes for its age; what is damaged goes at any, and others' temporary files are theirs."""
    rows = run_alone("gc", "--older-than", age, "--json", **variables).document["garbage"]
    own = tuple(str(folder) for folder in (run_alone.folder, variables["TMPDIR"]))
    return [row["path"] for row in rows if "damaged" not in row["why"] and row["path"].startswith(own)]


def test_clock_set_back_publishes_next(finished: Compiled, run_alone: CommandLine, variables: dict[str, str]) -> None:
    """A process whose clock was set back publishes the next number and tidies nothing."""
    damage(finished)
    answer = run_alone(*finished.command, "--json", **variables)
    assert (answer.status, answer.document["version"]) == (0, 2), answer
    last, first = run_alone("history", "--json").document["runs"]
    assert (last["version"], first["version"]) == (2, 1)
    assert last["started"] < first["started"]
    shown = run_alone("show", "tiny", "--json").document
    assert [(version["version"], version["shown"]) for version in shown["versions"]] == [(1, False), (2, True)]
    assert shown["serves"] == 2
    assert tidied(run_alone, "1h", variables) == []
    assert run_alone(*finished.command, "--json").document["unchanged"]


def test_future_times_publish_next(finished: Compiled, run_alone: CommandLine, variables: dict[str, str]) -> None:
    """With all times in the future, the next version is published, shown and kept."""

    def into_the_future() -> None:
        for path in (finished.folder / "artifacts").rglob("*"):
            os.utime(path, (time.time() + YEAR,) * 2, follow_symlinks=False)

    manifest = finished.release / "manifest.json"
    fields = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**fields, "created": "2999-01-01T00:00:00.000+00:00"}))
    into_the_future()
    assert run_alone(*finished.command, "--json").document["unchanged"]
    damage(finished)
    into_the_future()
    changed = run_alone(*finished.command, "--json").document
    assert (changed["version"], changed["unchanged"]) == (2, False)
    view = Path(changed["repository"]) / "tiny"
    assert sorted(path.name for path in view.iterdir()) == ["2", "config.pbtxt"]
    assert run_alone("show", "tiny", "--json").document["release"]["model"] == "tiny, version 2"
    into_the_future()
    assert tidied(run_alone, "0", {"TMPDIR": variables["TMPDIR"]}) == []
