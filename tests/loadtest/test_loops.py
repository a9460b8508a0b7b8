"""Closed and open loops against a small server that counts."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from plansmith.loadtest.results import StageResult
from plansmith.loadtest.runner.load_runner import Progress
from plansmith.loadtest.stages import Stage

from ..support.loadtest.http_server import HttpServer, Response
from ..support.loadtest.runs import SAMPLES, run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("busy_machine")]

PAUSE = Response(after_seconds=0.02)


def sent(stage: StageResult, due: int) -> int:
    """How many of the due requests were sent; a busy machine may send fewer."""
    return round(stage.client.sent_share * due)


@pytest.mark.parametrize("processes", [1, 2])
def test_stage_has_users_and_requests(tmp_path: Path, processes: int) -> None:
    """What is sent in the warm-up and while users start is in no figure; each user keeps its connection."""
    with HttpServer(lambda _: PAUSE) as server:
        stages = (Stage(users=2, seconds=1.5), Stage(users=5, seconds=1.5, name="more"))
        report = run(tmp_path, server.place, *stages, processes=processes)
    assert (report.ending, report.reason) == ("done", "")
    assert [(stage.stage.label, stage.users) for stage in report.stages] == [("2 users", 2), ("more", 5)]
    for stage in report.stages:
        assert (stage.loop, stage.stats.failed) == ("closed", 0)
        assert stage.stats.samples == SAMPLES * stage.stats.requests > 0
    assert sum(stage.stats.requests for stage in report.stages) < server.requests
    assert server.max_connections <= 5 + processes
    assert max(second.users for second in report.timeline) == 5


def test_one_process_runs_two_hundred_users(tmp_path: Path) -> None:
    """Two hundred users run in one process."""
    with HttpServer(lambda _: Response(after_seconds=0.2)) as server:
        report = run(tmp_path, server.place, Stage(users=200, seconds=3))
        assert server.max_connections >= 200
    assert (report.stages[0].users, report.stages[0].stats.failed) == (200, 0)


def test_models_get_requests_by_weight(tmp_path: Path) -> None:
    with HttpServer(lambda _: PAUSE) as server:
        report = run(tmp_path, server.place, Stage(users=4, seconds=2), models=("a=9", "b=1"))
    (stage,) = report.stages
    requests = {model: stats.requests for model, stats in stage.models.items()}
    assert requests["a"] > 4 * requests["b"] > 0
    assert sum(requests.values()) == stage.stats.requests
    assert set(server.paths) == {"/v2/models/a/infer", "/v2/models/b/infer"}


@pytest.mark.parametrize("processes", [1, 2])
def test_due_request_counted_once(tmp_path: Path, processes: int) -> None:
    """A constant rate and a recorded trace, also shared by several processes."""
    trace = tmp_path / "trace.txt"
    trace.write_text("\n".join(["7"] * 20 + ["7.5"] * 5 + ["8.0"] * 7))
    with HttpServer() as server:
        stages = (Stage(rate=40, seconds=2), Stage(trace=str(trace)))
        report = run(tmp_path, server.place, *stages, processes=processes)
    for stage, due in zip(report.stages, (80, 32), strict=True):
        assert stage.loop == "open"
        assert (stage.stats.requests, stage.stats.failed) == (sent(stage, due), 0)


def test_stall_shows_in_due_requests(tmp_path: Path) -> None:
    """Of 3 s without an answer, an open loop of 20 per second has some 60 slow requests, a closed one a single one."""
    slow = {}
    for name, stage in {"closed": Stage(users=1, seconds=4), "open": Stage(rate=20, seconds=4)}.items():
        with StallingServer() as server:
            report = run(tmp_path / name, server.place, stage, progress=server.stall)
        histogram = report.stages[0].stats.buckets
        slow[name] = sum(count for bucket, count in histogram.items() if 1.01**bucket > 300)
    assert slow["open"] >= 20 > slow["closed"]


def test_late_answers_count_in_stage(tmp_path: Path) -> None:
    """Answers after the stage count in it."""
    with HttpServer(lambda _: Response(after_seconds=1.5)) as server:
        report = run(tmp_path, server.place, Stage(rate=20, seconds=1))
    assert report.stages[0].stats.requests == sent(report.stages[0], 20)
    assert report.stages[0].stats.throughput == 0


def test_rate_beyond_client_refused(tmp_path: Path) -> None:
    """No figures are reported for a rate that the client cannot send, and the reason names the remedy."""
    with HttpServer() as server:
        report = run(tmp_path, server.place, Stage(rate=200_000, seconds=2))
    (stage,) = report.stages
    assert stage.client.sent_share < 0.5
    assert "--processes" in stage.client.saturated
    assert (stage.stats.throughput, stage.stats.latency) == (None, None)


def test_excess_requests_wait(tmp_path: Path) -> None:
    """Too many requests in flight wait."""
    with HttpServer(lambda _: Response(after_seconds=0.5)) as server:
        report = run(tmp_path, server.place, Stage(rate=50, seconds=3), max_in_flight=4)
        assert server.max_connections <= 4 + 2  # with those of the check and the warm-up
    assert report.stages[0].client.sent_share < 0.5
    assert any("the server answers more slowly than requests are due" in note for note in report.notes)


class StallingServer(HttpServer):
    """Answers nothing for 3 s, once the first stage begins."""

    def __init__(self) -> None:
        super().__init__(lambda _: Response(after_seconds=max(0.0, self._until - time.monotonic())))
        self._until = 0.0

    def stall(self, progress: Progress) -> None:
        """Begin, with the first stage."""
        if progress.stage == 0 and not self._until:
            self._until = time.monotonic() + 3
