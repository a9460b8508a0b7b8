"""A compile that is ended while a plan is built leaves no process, no half of a plan and a free GPU."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from ..support.cli.command import COMMAND, environment
from ..support.faults.ends import still_running
from ..support.faults.wholeness import cache_problems, repository_problems
from .compiles import Workshop, released
from .machine import in_child
from .subjects import subject

pytestmark = pytest.mark.tensorrt

_LONGEST_SECONDS = 1800
_BUILDING = {"api": "plansmith.compilers.trt.build_worker", "trtexec": "trtexec"}

_TAKE = """
import json
from plansmith.system.gpus import lock_gpu, visible_gpus
waited = []
with lock_gpu(visible_gpus()[0], waited.append):
    print(json.dumps(waited))
"""


def _builders(process: subprocess.Popen[bytes], builder: str) -> list[psutil.Process]:
    """The processes below a compile that build a plan; one may end while it is looked at."""
    matches = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            command = child.cmdline()
        except psutil.Error:
            continue
        if _BUILDING[builder] in command or (command and Path(command[0]).name == _BUILDING[builder]):
            matches.append(child)
    return matches


def _ended_while_building(words: list[str], place: Workshop, builder: str, number: signal.Signals) -> list[str]:
    """Start a compile, end it a moment after it began to build: which of its processes live on."""
    with (place.folder / "said").open("wb") as log:
        process = subprocess.Popen(
            [*COMMAND, *words], cwd=place.folder, env=environment(), stdout=log, stderr=log, start_new_session=True
        )
        deadline = time.monotonic() + _LONGEST_SECONDS
        while not _uses_gpu(_builders(process, builder)):
            assert process.poll() is None, (place.folder / "said").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        below = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        process.wait(_LONGEST_SECONDS)
    return still_running(below)


def _uses_gpu(builders: list[psutil.Process]) -> bool:
    """Whether one of some processes has something on a GPU, as a builder has that measures kernels."""
    command = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    # In a container the driver tells the numbers of the host's processes; then the age of the process has to do.
    return any(str(child.pid) in listed or time.time() - child.create_time() > 20 for child in builders)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_ended_build_leaves_nothing(builder: str, number: signal.Signals, alone: Workshop, saved: Path) -> None:
    """Nothing is left of a build that was ended, and the next one succeeds."""
    command = alone.command_line(subject("resnet50", saved), "--builder", builder, optimization_level=5)
    assert _ended_while_building(command, alone, builder, number) == []
    assert in_child(_TAKE) == [], "the GPU was still held"
    assert [plan for plan in alone.artifacts.rglob("*.plan") if "staging" not in plan.parts] == []
    assert cache_problems(alone.artifacts / "cache") + repository_problems(alone.artifacts / "repository") == []
    finished = released(alone.run([*alone.command_line(subject("resnet50", saved), "--builder", builder), "--json"]))
    assert finished.cached()["export"]
    assert finished.plan_file.is_file()
    assert [plan for plan in alone.artifacts.rglob("*.plan") if "staging" in plan.parts] == []
