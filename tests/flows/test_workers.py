"""Compiles on three process workers: asked for twice, cancelled, and with whoever builds them killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ..support.faults.ends import still_running
from ..support.prefect.compiled import check_nothing_half_made, check_whole, records, small_spec
from ..support.prefect.team import Team
from ..support.prefect.workers import PoolWorker, words_of
from ..support.waiting import wait_until

pytestmark = pytest.mark.services

_CANCELLED_SECONDS = 30
"""What takes ten at most on a machine that has nothing else to do."""


def test_simultaneous_requests_build_once(crew: Team, tmp_path: Path) -> None:
    """A model asked for twice at once is built once."""
    spec = small_spec(tmp_path, held=True)
    runs = [crew.submit(spec, tmp_path), crew.submit(spec, tmp_path)]
    wait_until(lambda: all(crew.run(run)["state"]["type"] == "RUNNING" for run in runs))
    (tmp_path / "go").touch()
    assert [crew.ended(run) for run in runs] == ["COMPLETED", "COMPLETED"]
    first, second = sorted(map(crew.run, runs), key=lambda run: str(run["start_time"]))
    assert second["start_time"] < first["end_time"], "they did not run at once"
    history = records(tmp_path)
    assert sorted(record.outcome for record in history) == ["published", "unchanged"]
    for step in ("fetch", "export", "compile", "validate"):
        built = [not entry.cached for record in history for entry in record.steps if entry.name == step]
        assert sorted(built) == [False, True], step
    check_whole(tmp_path)


def test_cancelled_run_ends_its_children(crew: Team, tmp_path: Path) -> None:
    """A cancelled run ends with its children and the next goes on."""
    spec, run, worker = _blocked_compile(crew, tmp_path)
    crew.server.cancel(run)
    wait_until(lambda: not worker.processes_of(run), seconds=_CANCELLED_SECONDS)
    assert crew.ended(run) == "CANCELLED"
    check_nothing_half_made(tmp_path)
    _check_resumed(crew, spec, tmp_path)


def test_killed_run_has_crashed(crew: Team, tmp_path: Path) -> None:
    """A run that is killed has crashed, and the next one goes on."""
    spec, run, worker = _blocked_compile(crew, tmp_path)
    belonging = worker.processes_of(run)
    (process,) = [candidate for candidate in belonging if "prefect.engine" in words_of(candidate)]
    process.kill()
    assert crew.ended(run) == "CRASHED"
    assert not still_running(belonging)
    check_nothing_half_made(tmp_path)
    _check_resumed(crew, spec, tmp_path)


def test_run_of_killed_worker_ends(crew: Team, tmp_path: Path) -> None:
    """A run whose worker is killed ends at its next line and the next goes on."""
    spec, run, worker = _blocked_compile(crew, tmp_path)
    worker.kill()
    (tmp_path / "go").touch()
    try:
        # Nobody reads what it prints any more: rich, which Prefect prints with, ends a program that finds that out.
        assert crew.ended(run) == "CRASHED", crew.story(run)
        wait_until(lambda: not worker.processes_of(run))
        check_nothing_half_made(tmp_path)
        _check_resumed(crew, spec, tmp_path)
    finally:
        worker.start()


def test_run_outliving_worker_builds_on(crew: Team, tmp_path: Path) -> None:
    """A run that outlives its worker builds on and the next waits for it."""
    spec = small_spec(tmp_path)
    run = crew.submit(spec, tmp_path, stream_output=False)
    worker = crew.worker_of(run)
    (compiling,) = worker.heavy_of(run)
    compiling.suspend()  # so that it still holds its step when the next one comes, however long that takes to start
    worker.kill()
    try:
        again = crew.submit(spec, tmp_path)
        wait_until(lambda: any("waiting for another plansmith" in line for line in crew.server.logs_of(again)))
        assert again not in worker.run_ids()
        compiling.resume()
        assert crew.ended(run) == "COMPLETED", crew.story(run)
        assert crew.ended(again) == "COMPLETED", crew.story(again)
        assert sorted(record.outcome for record in records(tmp_path)) == ["published", "unchanged"]
        check_whole(tmp_path)
    finally:
        worker.start()


def _blocked_compile(crew: Team, folder: Path) -> tuple[dict[str, Any], str, PoolWorker]:
    """A compile that is at work until it may go on: its spec, its run, and the worker that it runs on."""
    spec = small_spec(folder, held=True)
    run = crew.submit(spec, folder)
    wait_until((folder / "held").exists, lambda: crew.story(run))
    return spec, run, crew.worker_of(run)


def _check_resumed(crew: Team, spec: dict[str, Any], folder: Path) -> None:
    """Another run ends in the one version, from what was finished before."""
    (folder / "go").touch()
    assert crew.ended(crew.submit(spec, folder)) == "COMPLETED"
    newest = records(folder)[-1]
    assert newest.outcome == "published"
    assert [step.cached for step in newest.steps if step.name in {"fetch", "publish"}] == [True, False]
    check_whole(folder)
