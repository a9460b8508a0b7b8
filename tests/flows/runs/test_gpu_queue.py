"""Runs that build on one GPU wait in turn in a limit of Prefect's, named by GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ...support.prefect.prefect_server import PrefectServer
from ...support.prefect.programs import own_environment
from ...support.waiting import soon, wait_until

pytestmark = pytest.mark.slow

UUID = "GPU-11111111-aaaa-bbbb-cccc-000000000001"

_QUEUES = """
import json, sys
from plansmith.config.spec import ModelSpec
from plansmith.flows.runs.gpu_queue import queues_of
engine, gpus, outlook = json.loads(sys.argv[1])
print(json.dumps(queues_of(ModelSpec(source="hf:model", engine=engine, tensorrt={"gpus": gpus}), outlook)))
"""
_HOLD = """
import pathlib, sys, time
from prefect import flow
from plansmith.flows.compile_model import InTasks
from plansmith.flows.runs.gpu_queue import limit_of
from plansmith.flows.runs.listening import RunListener
from plansmith.steps.runner import Listener
from plansmith.steps.walk import Step
name, uuid, folder = sys.argv[1:]
def compile():
    began = time.time()
    (pathlib.Path(folder) / f"{name}.began").touch()
    while not (pathlib.Path(folder) / f"{name}.may-end").exists():
        time.sleep(0.05)
    return began, time.time()
@flow(name="hold", persist_result=False)
def hold():
    step = Step("compile", lambda *_: compile())
    return InTasks({"compile": [limit_of(uuid)]}, RunListener(name, "gpu", Listener()))(step, None, None)
print(*hold())
"""


def test_build_step_takes_gpu_limits(nvml_stub: Path) -> None:
    """A step that builds takes the limits of its GPUs."""
    todo = {"lower": "cached", "compile": "would run", "validate": "would run"}
    done = {"compile": "cached", "validate": "would come from the shared cache, or run"}
    first = [f"gpu:{UUID}"]
    assert _queues(nvml_stub, "tensorrt", ["NVIDIA A100-SXM4-80GB"], todo) == {"compile": first, "validate": first}
    assert _queues(nvml_stub, "tensorrt", [], done) == {"validate": first}
    assert _queues(nvml_stub, "tensorrt", ["T4"], todo) == {}
    assert _queues(nvml_stub, "onnxruntime", [], todo) == {}


@pytest.mark.services
def test_runs_on_one_gpu_take_turns(prefect: PrefectServer, tmp_path: Path) -> None:
    """Two runs on one GPU go one after the other."""
    (tmp_path / "second.may-end").touch()
    with _hold(prefect, "first", UUID, tmp_path) as first:
        wait_until((tmp_path / "first.began").exists, (tmp_path / "first.log").read_text)
        with _hold(prefect, "second", UUID, tmp_path) as second:
            waiting = tmp_path / "second.log"
            wait_until(lambda: "queue gpu:" in waiting.read_text(), waiting.read_text)
            (tmp_path / "first.may-end").touch()
            (began, ended), (later, last) = map(_times, (first, second))
    assert began < ended <= later <= last
    limit = _limit(prefect, UUID)
    assert (limit["limit"], limit["active_slots"]) == (1, 0)
    assert "queue gpu:" not in (tmp_path / "first.log").read_text(), "the one that waits says so"


@pytest.mark.services
@pytest.mark.slow
def test_killed_run_loses_its_turn(prefect: PrefectServer, tmp_path: Path) -> None:
    """The turn of a run that was killed ends with its lease."""
    uuid = UUID.replace("1111", "3333")
    (tmp_path / "next.may-end").touch()
    with _hold(prefect, "killed", uuid, tmp_path) as killed:
        wait_until((tmp_path / "killed.began").exists, (tmp_path / "killed.log").read_text)
        assert _limit(prefect, uuid)["active_slots"] == 1
        killed.kill()
    with _hold(prefect, "next", uuid, tmp_path) as following:
        _times(following)
    log = (tmp_path / "next.log").read_text()
    assert "waiting in Prefect's queue gpu:" in log
    assert "gave no turn" not in log
    assert soon(lambda: _limit(prefect, uuid)["active_slots"], 0) == 0


def _queues(library: Path, engine: str, gpus: list[str], preview: dict[str, str]) -> Any:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CUDA_")}
    done = subprocess.run(
        [sys.executable, "-c", _QUEUES, json.dumps([engine, gpus, preview])],
        env={**environment, "LD_LIBRARY_PATH": str(library)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@contextmanager
def _hold(prefect: PrefectServer, name: str, uuid: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A run that holds a GPU's limit until it may end, which is with the block at the latest."""
    command = [sys.executable, "-c", _HOLD, name, uuid, str(folder)]
    with (
        (folder / f"{name}.log").open("wb") as log,
        subprocess.Popen(
            command, env=own_environment(**prefect.variables()), stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def _times(process: subprocess.Popen[str]) -> tuple[float, float]:
    stdout = process.communicate(timeout=300)[0]
    assert process.returncode == 0, stdout
    began, ended = map(float, stdout.split()[-2:])
    return began, ended


def _limit(prefect: PrefectServer, uuid: str) -> dict[str, Any]:
    (limit,) = [entry for entry in prefect.ask("v2/concurrency_limits/filter") if entry["name"].endswith(uuid)]
    assert isinstance(limit, dict)
    return limit
