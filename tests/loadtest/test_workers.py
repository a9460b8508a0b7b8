"""Client processes on other machines: each worker here is the command in a folder of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from plansmith.errors import EnvironmentFault
from plansmith.loadtest.client.process import REFUSED
from plansmith.loadtest.runner.load_runner import Progress
from plansmith.loadtest.runner.processes import RemoteWorkers, run_workers
from plansmith.loadtest.stages import Stage

from ..support.cli.command import COMMAND, check_refusal, environment
from ..support.loadtest.http_server import HttpServer, Response
from ..support.loadtest.runs import run

if TYPE_CHECKING:
    from .conftest import Command

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("busy_machine")]

PAUSE = Response(after_seconds=0.02)
END_SECONDS = 90

OTHER_VERSION = """
import os, sys, plansmith
plansmith.__version__ = "9.9"
from plansmith.loadtest.client.process import main
main(["remote", str(os.getppid()), "127.0.0.1", sys.argv[1], "x"])
"""


@pytest.fixture
def port() -> int:
    """Where nothing listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


@contextmanager
def worker(port: int, folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`plansmith loadtest --worker`, which ends with the block at the latest."""
    folder.mkdir()
    command = [*COMMAND, "loadtest", "--worker", f"127.0.0.1:{port}", *options]
    with subprocess.Popen(command, cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def remote(port: int, count: int = 1, **settings: float) -> RemoteWorkers:
    return RemoteWorkers(count=count, host="127.0.0.1", port=port, **settings)


def test_workers_generate_the_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    """Two processes share it, closed and open, and end with it; they fetch the payloads, which they do not have."""
    monkeypatch.chdir(tmp_path)
    stages = (Stage(users=4, seconds=2), Stage(rate=30, seconds=2))
    with HttpServer(lambda _: PAUSE) as server, worker(port, tmp_path / "elsewhere", "--processes", "2") as process:
        report = run(Path(), server.place, *stages, workers=remote(port, 2))
        assert process.wait(END_SECONDS) == 0
    assert (report.ending, [stage.stats.failed for stage in report.stages]) == ("done", [0, 0])
    closed, opened = report.stages
    assert closed.users == 4
    assert closed.stats.requests > 0
    assert opened.stats.requests == round(opened.client.sent_share * 60)
    assert any("the load came from client processes on other machines: 2 on" in note for note in report.notes)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_lost_worker_ends_in_report(tmp_path: Path, port: int) -> None:
    """The report has what was measured, and names the machine; the worker says what became of it."""
    with HttpServer(lambda _: PAUSE) as server, worker(port, tmp_path / "elsewhere") as process:

        def kill(progress: Progress) -> None:
            if progress.requests:
                for child in psutil.Process(process.pid).children():
                    child.kill()

        report = run(tmp_path, server.place, Stage(users=2, seconds=120), workers=remote(port), progress=kill)
        assert process.wait(END_SECONDS) == 9
        assert process.stderr is not None
        assert "ended with signal SIGKILL before the test was over" in process.stderr.read()
    assert report.ending == "client-lost"
    assert f"a client process does not answer, on {socket.gethostname()}" in report.reason
    assert report.stages[0].stats.requests > 0


def test_other_worker_version_refused(tmp_path: Path, port: int) -> None:
    """Before the load; both sides say which versions they have."""
    command = [sys.executable, "-c", OTHER_VERSION, str(port)]
    with (
        HttpServer(lambda _: PAUSE) as server,
        subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) as process,
    ):
        with pytest.raises(EnvironmentFault, match=r"is refused: it has plansmith 9\.9 with Locust"):
            run(tmp_path, server.place, Stage(users=2), workers=remote(port))
        assert process.wait(END_SECONDS) == REFUSED
        assert process.stderr is not None
        assert "refused: it has plansmith 9.9 with Locust" in process.stderr.read()


def test_missing_workers_are_an_error(tmp_path: Path, port: int) -> None:
    """It says how many came, and what to type on the other machines."""
    with HttpServer() as server, pytest.raises(EnvironmentFault, match="0 of 2 workers came within 3 s") as error:
        run(tmp_path, server.place, Stage(users=2), workers=remote(port, 2, wait_seconds=3))
    assert f"plansmith loadtest --worker HOST:{port}" in error.value.remedy


def test_taken_port_is_an_error(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        HttpServer() as server,
        pytest.raises(EnvironmentFault, match="Address already in use"),
    ):
        run(tmp_path, server.place, Stage(users=2), workers=remote(listener.getsockname()[1]))


def test_worker_without_driver_says_so(port: int) -> None:
    """Worker without a driver says so."""
    with pytest.raises(EnvironmentFault, match=f"no load test listens at 127.0.0.1:{port}"):
        run_workers("127.0.0.1", port, 1, progress=lambda _: None, wait_seconds=0.1)


WRONG = {
    "a Triton of this machine": (("net", "--expect-workers", "2"), "answers on this machine alone"),
    "no number": (("net", "--url", "http://a:8000", "--listen", "0.0.0.0:5557"), "--listen goes with --expect-workers"),
    "no port": (("net", "--url", "http://a:8000", "--expect-workers", "2", "--listen", "a:x"), "is not HOST:PORT"),
    "processes of the driver": (
        ("net", "--url", "http://a:8000", "--expect-workers", "2", "--processes", "2"),
        "the load comes from the workers",
    ),
    "a worker with a model": (("net", "--worker", "a:5557"), "gets models and load from the machine"),
}


@pytest.mark.parametrize(("words", "says"), WRONG.values(), ids=WRONG.keys())
def test_wrong_options_are_refused(loadtest: Command, words: tuple[str, ...], says: str) -> None:
    check_refusal(loadtest(*words, "--json"), 2, (says,))
