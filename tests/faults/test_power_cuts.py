"""A power cut loses what was not flushed: never what was committed, and nothing that the next command does not mend."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from plansmith.system.digest import Digester
from plansmith.system.files import link_or_copy, make_folder
from plansmith.triton.repository.contents import Withdrawals

from ..support.faults.packages import MODEL, draft_of, publish, write_package
from ..support.faults.scenarios import CUT_SCENARIOS
from ..support.faults.wholeness import store_of
from .conftest import RunScript

STATES = int(os.environ.get("PLANSMITH_SOAK_STATES") or 200)
SEED = int(os.environ.get("PLANSMITH_SOAK_SEED") or random.randrange(10**6))


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What is flushed to the disk from now on."""
    paths: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: paths.append(Path(f"/proc/self/fd/{descriptor}").readlink()))
    return paths


@pytest.mark.slow
@pytest.mark.parametrize("scenario", CUT_SCENARIOS)
def test_power_cut_loses_nothing_committed(scenario: str, run_script: RunScript, memory_folder: Path) -> None:
    """What a power cut leaves is whole, has all that was committed, and the same command goes on from there."""
    report = run_script("power_cuts", scenario, memory_folder, STATES, SEED)
    assert report["problems"] == []
    assert report["calls"] > 2


def test_folder_of_digests_flushed(tmp_path: Path, flushed: list[Path]) -> None:
    """A memo of digests whose folders are new flushes their names: others make theirs in the same folders."""
    (tmp_path / "file").touch()
    Digester(tmp_path / "artifacts" / "cache" / "digests.sqlite").file(tmp_path / "file")
    assert {tmp_path, tmp_path / "artifacts"} <= {*flushed}


def test_empty_folder_flushed(tmp_path: Path, flushed: list[Path]) -> None:
    """A folder that is empty is flushed: a process may have been killed between creating it and that."""
    (tmp_path / "outer").mkdir()
    make_folder(tmp_path / "outer" / "inner")
    assert flushed == [tmp_path, tmp_path / "outer"]
    (tmp_path / "outer" / "inner" / "file").touch()
    make_folder(tmp_path / "outer" / "inner")
    assert len(flushed) == 2


def test_unchanged_publication_flushed(tmp_path: Path, flushed: list[Path]) -> None:
    """A publication that finds its version there and shown flushes both: a killed process may not have done so."""
    package = write_package(tmp_path / "package", "content")
    publish(tmp_path / "repository", package, draft_of(package))
    flushed.clear()
    assert publish(tmp_path / "repository", package, draft_of(package)).unchanged
    assert {store_of(tmp_path / "repository") / "releases" / MODEL, tmp_path / "repository"} <= {*flushed}


def test_ended_trial_flushed(tmp_path: Path, flushed: list[Path]) -> None:
    """The end of a trial is flushed even if a killed process had ended it: it would be withdrawn if it came back."""
    withdrawals = Withdrawals(MODEL, tmp_path)
    withdrawals.begin_trial(2)
    (tmp_path / "trials" / MODEL / "2").unlink()
    flushed.clear()
    withdrawals.end_trial(2)
    assert flushed == [tmp_path / "trials" / MODEL]


def test_copy_flushed_where_links_are_impossible(
    tmp_path: Path, flushed: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a file system has no links, a copy is flushed before it is relied on."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "file").write_text("weights")
    link_or_copy(tmp_path / "file", tmp_path / "copy")
    assert tmp_path / "copy" in flushed
