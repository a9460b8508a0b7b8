"""A quarantined test is run and reported and fails nothing, and is not forgotten there."""

from __future__ import annotations

import shutil
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

import pytest

from .support.quarantine import Quarantined, overdue, read_list

CONFTEST = """
from quarantine import mark_quarantined, read_list
import pathlib

def pytest_collection_modifyitems(items):
    mark_quarantined(items, read_list(pathlib.Path("list.toml")))
"""
TESTS = """
import pytest

@pytest.mark.parametrize("number", [1, 2])
def test_known(number):
    assert number == 2

def test_other():
    assert False
"""


@pytest.mark.parametrize(
    ("listed", "summary"),
    [
        ("", "2 failed, 1 passed"),
        ("test_some.py::test_known", "1 failed, 1 xfailed, 1 xpassed"),
        ("test_some.py::test_known[1]", "1 failed, 1 passed, 1 xfailed"),
    ],
    ids=["none", "all cases", "one case"],
)
def test_only_quarantined_failures_pass(listed: str, summary: str, tmp_path: Path) -> None:
    """Only quarantined failures are let pass."""
    shutil.copy(Path(__file__).parent / "support" / "quarantine.py", tmp_path)
    entry = f'[[test]]\nid = "{listed}"\ndate = 2026-11-28\nseen = "1 is not 2"\n'
    for name, text in (("conftest.py", CONFTEST), ("test_some.py", TESTS), ("list.toml", entry if listed else "")):
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1].rpartition(" in ")[0]) == (1, summary), done.stdout


def test_overdue_entries_named() -> None:
    """Entries that stay for too long are named."""
    day = date(2026, 11, 1)
    entry = Quarantined("tests/test_a.py::test_b", day, "it hung")
    assert overdue([entry], day + timedelta(days=14)) == []
    assert overdue([entry], day + timedelta(days=15)) == [
        "tests/test_a.py::test_b is quarantined since 2026-11-01: it hung; mend it, or delete it"
    ]


def test_list_readable_and_tests_exist() -> None:
    """The list can be read and its tests exist."""
    root = Path(__file__).parents[1]
    for entry in read_list():
        path, _, name = entry.id.partition("::")
        assert f"def {name.partition('[')[0].rpartition('::')[2]}(" in (root / path).read_text()
