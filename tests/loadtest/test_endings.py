"""Whatever happens during a load test ends in a report, and leaves no process."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from plansmith.errors import ServedCheckError
from plansmith.loadtest.report.findings import failure_of
from plansmith.loadtest.results import LoadReport
from plansmith.loadtest.runner.load_runner import Progress
from plansmith.loadtest.stages import LatencyLimit, Stage, StopConditions

from ..support.loadtest.http_server import HttpServer, Response
from ..support.loadtest.runs import run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("busy_machine")]

LONG = Stage(users=2, seconds=120)


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    """Each test ends with the child processes that it began with."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    assert left == []


def run_until(
    folder: Path, server: HttpServer, event: Callable[[], object], stage: Stage = LONG, **settings: Any
) -> LoadReport:
    """A load test in which something happens once requests of the stage were measured."""
    events = iter([event])

    def progress(current: Progress) -> None:
        if current.requests and (happen := next(events, None)) is not None:
            happen()

    return run(folder, server.place, stage, progress=progress, **settings)


def client_process() -> psutil.Process:
    children = psutil.Process().children()
    return next(child for child in children if "plansmith.loadtest.client.process" in child.cmdline())


@pytest.mark.parametrize("stage", [LONG, Stage(rate=20, seconds=120)], ids=["closed", "open"])
def test_dead_server_ends_in_report(tmp_path: Path, stage: Stage) -> None:
    """The report says that the server is lost, keeps what was measured, and stands for exit code 8."""
    with HttpServer() as server:
        report = run_until(tmp_path, server, server.die, stage)
    assert report.ending == "server-lost"
    assert f"the server at {server.place} is lost: it refuses connections" in report.reason
    (result,) = report.stages
    assert result.stopped == report.reason
    assert result.stats.requests > result.stats.failed > 0
    assert {failure.kind for failure in result.failures} == {"connection"}
    error = failure_of(report)
    assert error is not None
    assert error.exit_code == 8


def test_server_dying_early_is_lost(tmp_path: Path) -> None:
    """The end of the last stage comes before the server counts as lost: it is asked once more."""
    with HttpServer() as server:
        report = run_until(tmp_path, server, server.die, Stage(users=2, seconds=4))
    assert report.ending == "server-lost"


def test_hanging_server_ends_in_report(tmp_path: Path) -> None:
    """Hanging server ends in a report."""
    with HttpServer() as server:

        def hang() -> None:
            server.answer = lambda _: Response(0)

        report = run_until(tmp_path, server, hang, timeout_seconds=2)
    assert report.ending == "server-lost"
    assert "has answered nothing for" in report.reason
    failure = report.stages[0].failures[0]
    assert (failure.kind, failure.first) == ("timeout", "no answer within 2 s")


def test_errors_counted_by_kind(tmp_path: Path) -> None:
    """A server that answers errors is no lost one; the first message of each kind is kept whole."""
    message = '{"error":"[StatusCode.INTERNAL] ' + "a long story, " * 200 + 'and its end"}'
    with HttpServer() as server:

        def fail() -> None:
            server.answer = lambda n: (Response(500, message.encode()), Response(400, b"no"), Response(cuts=True))[
                n % 3
            ]

        report = run_until(tmp_path, server, fail, Stage(users=2, seconds=8))
    assert report.ending == "done"
    (stage,) = report.stages
    first = {failure.kind: failure.first for failure in stage.failures}
    assert first.keys() == {"HTTP 500", "HTTP 400", "connection"}
    assert (first["HTTP 500"], first["HTTP 400"]) == (message, "no")
    assert sum(failure.count for failure in stage.failures) == stage.stats.failed < stage.stats.requests


def test_refused_request_keeps_whole_message(tmp_path: Path) -> None:
    """What the server says of the first request is told before any load."""
    message = '{"error":"unexpected shape for input x, ' + "and a long story, " * 100 + 'and its end"}'
    with HttpServer(lambda _: Response(400, message.encode())) as server:
        with pytest.raises(ServedCheckError) as refused:
            run(tmp_path, server.place, LONG)
        assert server.requests == 1
    assert f"refused a request to tiny: HTTP 400: {message}" in refused.value.message


def test_interrupt_ends_in_a_report(tmp_path: Path) -> None:
    with HttpServer() as server:
        report = run_until(tmp_path, server, lambda: os.kill(os.getpid(), signal.SIGINT))
    assert report.ending == "interrupted"
    assert report.stages[0].stats.requests > report.stages[0].stats.failed == 0


@pytest.mark.parametrize("processes", [1, 2])
def test_dead_client_ends_in_report(tmp_path: Path, processes: int) -> None:
    """Dead client ends in a report."""
    with HttpServer() as server:
        report = run_until(tmp_path, server, lambda: client_process().kill(), processes=processes)
    assert report.ending == "client-lost"
    assert "ended with signal SIGKILL" in report.reason
    assert report.stages[0].stats.requests > 0


@pytest.mark.parametrize(
    ("stop_when", "reason"),
    [
        (StopConditions(latency=LatencyLimit(percentile=90, milliseconds=50)), r"p90 was [\d.]+ ms, above 50 ms"),
        (StopConditions(invocations_per_minute=60), r"[\d,]+ requests were answered per minute, and 60 are expected"),
        (StopConditions(error_rate=0.2), r"of the requests failed, more than 20\.0%"),
    ],
)
def test_limit_ends_the_test(tmp_path: Path, stop_when: StopConditions, reason: str) -> None:
    def answer(number: int) -> Response:
        return Response(500 if number and number % 2 else 200, after_seconds=0.1 if number else 0)

    with HttpServer(answer) as server:
        report = run(tmp_path, server.place, Stage(users=8, seconds=60), Stage(users=4), stop_when=stop_when)
    assert report.ending == "threshold"
    assert re.search(reason, report.reason)
    assert [stage.stopped for stage in report.stages] == [report.reason]
    assert failure_of(report) is None


def test_flat_throughput_ends_the_test(tmp_path: Path) -> None:
    """Twice the rate adds nothing where a server answers 20 requests per second at most."""
    stop_when = StopConditions(flat_throughput=0.2)
    stages = [Stage(rate=40, seconds=2), Stage(rate=80, seconds=2), Stage(rate=160)]
    with HttpServer(lambda _: Response(after_seconds=0.1)) as server:
        report = run(tmp_path, server.place, *stages, stop_when=stop_when, max_in_flight=2)
    assert (report.ending, len(report.stages)) == ("threshold", 2)
    assert "it grew by less than 20.0%" in report.reason


def test_narrow_interval_ends_stage(tmp_path: Path) -> None:
    """The next stage begins, and the test ends as planned."""
    stop_when = StopConditions(confidence=0.5)
    stages = [Stage(users=1, seconds=300), Stage(users=1, seconds=1)]
    with HttpServer(lambda _: Response(after_seconds=0.02)) as server:
        report = run(tmp_path, server.place, *stages, stop_when=stop_when)
    assert (report.ending, len(report.stages)) == ("done", 2)
    assert report.stages[0].stopped.startswith("its mean latency is known to ±")
    assert report.stages[0].seconds < 300
