"""A lowering that is killed or interrupted leaves nothing half-made and no temporary file, and the next run goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from plansmith.system.process import Worker

from ..support.cli.command import COMMAND, environment
from ..support.faults.ends import still_running
from ..support.faults.wholeness import cache_problems, staging_problems
from ..support.precision import lint_graphs
from ..support.precision.given_files import lay_out
from .conftest import ROOT

SECONDS = 180
ENDED_SECONDS = 20


class Lowering:
    """`plansmith lower` in a folder, with a folder of its own for temporary files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.temporary = folder, folder / "temporary"
        self.temporary.mkdir()
        lay_out(lint_graphs.attention(), folder, precision="int8")

    def start(self) -> subprocess.Popen[str]:
        """A run that says its steps on standard error."""
        command = [*COMMAND, "lower", "spec.yaml", "--output", "out", "--json"]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment(TMPDIR=str(self.temporary)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def stop_in_the_middle(self, number: signal.Signals) -> tuple[int, str, list[str]]:
        """End a run while candidates are being made: exit code, messages, processes that outlive it."""
        with self.start() as process:
            deadline = time.monotonic() + SECONDS
            while not any(self.folder.glob("artifacts/cache/staging/*/.plansmith-*-lowering-*/*/*")):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.005)
            children = psutil.Process(process.pid).children(recursive=True)
            began = time.monotonic()
            os.kill(process.pid, number)
            stderr = process.communicate(timeout=SECONDS)[1]
            left = still_running(children)
            assert time.monotonic() - began < ENDED_SECONDS
            return process.returncode, stderr, left

    def problems(self) -> list[str]:
        """What is torn."""
        out = ["there is a graph already"] if (self.folder / "out").exists() else []
        return cache_problems(self.folder / "artifacts" / "cache") + out

    def leftovers(self) -> list[str]:
        """What lies in the staging folder."""
        return staging_problems(self.folder / "artifacts" / "cache" / "staging")

    def goes_on(self) -> bool:
        """Whether the same command then makes the graph, from the last finished step, and leaves nothing behind."""
        with self.start() as process:
            output, stderr = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, stderr
        assert json.loads(output)["lowered"]["precision"] == "int8"
        cached = [line.split()[0] for line in stderr.splitlines() if line.endswith("cached")]
        return (self.folder / "out").is_dir() and cached == ["fetch", "export", "sample"] and not self.leftovers()


@pytest.fixture
def lowering(tmp_path: Path) -> Lowering:
    return Lowering(tmp_path)


@pytest.mark.slow
def test_interrupt_ends_lowering(lowering: Lowering) -> None:
    """An interrupt ends a lowering at once with nothing left."""
    status, stderr, left = lowering.stop_in_the_middle(signal.SIGINT)
    assert (status, left) == (130, [])
    assert stderr.splitlines()[-1].startswith("plansmith: interrupted; run the same command again")
    assert "Traceback" not in stderr
    assert lowering.problems() == lowering.leftovers() == []
    assert list(lowering.temporary.iterdir()) == []
    assert lowering.goes_on()


@pytest.mark.slow
def test_killed_lowering_leaves_nothing(lowering: Lowering) -> None:
    """A killed lowering leaves nothing half made, and the next goes on."""
    status, _, left = lowering.stop_in_the_middle(signal.SIGKILL)
    assert (status, left) == (-signal.SIGKILL, [])
    assert lowering.problems() == []
    names = [path.name for path in lowering.temporary.iterdir()]
    assert all(name.startswith("plansmith-") for name in names), "plansmith gc finds what is named so"
    assert lowering.goes_on()
    assert [path.name for path in lowering.temporary.iterdir()] == names


@pytest.mark.slow
def test_dead_worker_is_one_message(lowering: Lowering) -> None:
    """A worker that dies in the middle of a lowering is one message."""
    with lowering.start() as process:
        while not any(lowering.folder.glob("artifacts/cache/staging/*/.plansmith-*-lowering-*/*/*")):
            assert process.poll() is None
            time.sleep(0.005)
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        output, stderr = process.communicate(timeout=SECONDS)
    document = json.loads(output)
    assert (process.returncode, document["exit_code"], document["step"]) == (9, 9, "lower")
    assert "the worker was killed during lower" in stderr
    assert "Traceback" not in stderr
    assert lowering.problems() == lowering.leftovers() == []
    assert list(lowering.temporary.iterdir()) == []
    assert lowering.goes_on()


def test_temporary_files_go_with_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker leaves among the temporary files goes with it."""
    monkeypatch.chdir(ROOT)
    with Worker("tests.support.faults.tiny_worker", tmp_path / "log") as worker:
        left = Path(worker.call("leave_temporary_file"))
        assert left.read_text() == "left"
    assert not left.exists()
    assert not left.parent.exists()
