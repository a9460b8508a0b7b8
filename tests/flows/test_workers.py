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


def test_a_model_asked_for_twice_at_once_is_built_once(crew: Team, tmp_path: Path) -> None:
    spec = small_spec(tmp_path, held=True)
    runs = [crew.submit(spec, tmp_path), crew.submit(spec, tmp_path)]
    wait_until(lambda: all(crew.run(run)["state"]["type"] == "RUNNING" for run in runs))
    (tmp_path / "go").touch()
    assert [crew.ended(run) for run in runs] == ["COMPLETED", "COMPLETED"]
    first, second = sorted(map(crew.run, runs), key=lambda run: str(run["start_time"]))
    assert second["start_time"] < first["end_time"], "they did not run at once"
    known = records(tmp_path)
    assert sorted(record.outcome for record in known) == ["published", "unchanged"]
    for step in ("fetch", "export", "compile", "validate"):
        built = [not one.cached for record in known for one in record.steps if one.name == step]
        assert sorted(built) == [False, True], step
    check_whole(tmp_path)


def test_a_cancelled_run_ends_with_its_children_and_the_next_goes_on(crew: Team, tmp_path: Path) -> None:
    spec, run, worker = _held(crew, tmp_path)
    crew.server.cancel(run)
    wait_until(lambda: not worker.processes_of(run), seconds=_CANCELLED_SECONDS)
    assert crew.ended(run) == "CANCELLED"
    check_nothing_half_made(tmp_path)
    _check_resumed(crew, spec, tmp_path)


def test_a_run_that_is_killed_has_crashed_and_the_next_goes_on(crew: Team, tmp_path: Path) -> None:
    spec, run, worker = _held(crew, tmp_path)
    belonging = worker.processes_of(run)
    (process,) = [one for one in belonging if "prefect.engine" in words_of(one)]
    process.kill()
    assert crew.ended(run) == "CRASHED"
    assert not still_running(belonging)
    check_nothing_half_made(tmp_path)
    _check_resumed(crew, spec, tmp_path)


def test_a_run_whose_worker_is_killed_ends_at_its_next_line_and_the_next_goes_on(crew: Team, tmp_path: Path) -> None:
    spec, run, worker = _held(crew, tmp_path)
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


def test_a_run_that_outlives_its_worker_builds_on_and_the_next_waits_for_it(crew: Team, tmp_path: Path) -> None:
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


def _held(crew: Team, folder: Path) -> tuple[dict[str, Any], str, PoolWorker]:
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
