"""GPUs by the driver's real binding, as CUDA would see them; their locks, in real processes."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from plansmith.errors import EnvironmentFault
from plansmith.records.engine import Gpu
from plansmith.system import gpus
from plansmith.system.gpus import Card, chosen_gpus, held, visible_gpus

ROOT = Path(__file__).parents[3]
ASK = """
import json, os, sys
from plansmith.errors import PlansmithError
from plansmith.system.gpus import visible_gpus
answers = []
for environment in json.loads(sys.argv[1]):
    os.environ.update(environment)
    try:
        answers.append([gpu.model_dump() for gpu in visible_gpus()])
    except PlansmithError as error:
        answers.append(error.to_dict())
    for name in environment:
        del os.environ[name]
print(json.dumps(answers))
"""
WITHOUT_BINDING = "import sys; sys.modules['pynvml'] = None\n"
WATCH = """
import pathlib, sys, time
from plansmith.records.engine import Gpu
from plansmith.system.gpus import MemoryWatch, visible_gpus
used = pathlib.Path(sys.argv[1])
def say(count):
    used.with_suffix(".new").write_text(str(count))
    used.with_suffix(".new").replace(used)
gpu = visible_gpus()[1]
say(1000)
with MemoryWatch(gpu) as watch:
    for count in (6000, 9000, 2000):
        say(count)
        while count - 1000 > watch.peak_bytes:
            time.sleep(0.01)
print(watch.peak_bytes)
"""
FIRST, SECOND = "GPU-11111111-aaaa-bbbb-cccc-000000000001", "GPU-11112222-aaaa-bbbb-cccc-000000000002"
PARTS = ["MIG-aaaaaaaa-0000-0000-0000-000000000011", "MIG-bbbbbbbb-0000-0000-0000-000000000013"]


def printed(code: str, library: Path | None, *arguments: object, **environment: str) -> str:
    """What a fresh interpreter prints that finds the driver's library in a folder."""
    names = {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LD_LIBRARY_PATH"}
    clean = {name: value for name, value in os.environ.items() if name not in names}
    place = {"LD_LIBRARY_PATH": str(library)} if library is not None else {}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(
        command, env={**clean, **place, **environment}, capture_output=True, text=True, check=True, timeout=60
    ).stdout


def asked(library: Path | None, *environments: dict[str, str], code: str = ASK) -> list[Any]:
    """The GPUs that are visible in some environments, or the error there, by the real binding."""
    answers: list[Any] = json.loads(printed(code, library, json.dumps(environments)))
    return answers


def test_the_real_binding_tells_of_each_gpu_what_its_record_holds(nvml_stub: Path) -> None:
    all_of_them, exchanged, unified = asked(nvml_stub, {}, {"CUDA_VISIBLE_DEVICES": "1,0"}, {"NVML_STUB": "unified"})
    assert all_of_them[0] == {
        "name": "NVIDIA A100-SXM4-80GB",
        "compute_capability": "8.0",
        "memory_bytes": 80 << 30,
        "uuid": FIRST,
        "index": 0,
        "driver": "570.124.06",
    }
    assert [(gpu["uuid"], gpu["index"]) for gpu in all_of_them] == [(FIRST, 0), (SECOND, 1)]
    assert [(gpu["uuid"], gpu["index"]) for gpu in exchanged] == [(SECOND, 0), (FIRST, 1)]
    assert unified[0]["memory_bytes"] == psutil.virtual_memory().total


def test_a_gpu_in_mig_mode_is_its_parts(nvml_stub: Path) -> None:
    (*parts, whole), (named,) = asked(
        nvml_stub,
        {"NVML_STUB": "divided"},
        {"NVML_STUB": "divided", "CUDA_VISIBLE_DEVICES": f"MIG-{FIRST}/2/0"},
    )
    assert [part["uuid"] for part in parts] == PARTS
    assert parts[0]["name"] == "NVIDIA A100-SXM4-80GB MIG 3g.40gb"
    assert (parts[0]["compute_capability"], parts[0]["memory_bytes"]) == ("8.0", 40 << 30)
    assert whole["uuid"] == SECOND
    assert named["uuid"] == PARTS[1]


def test_a_library_without_gpus_or_driver_is_no_fault_and_one_that_does_not_answer_is(nvml_stub: Path) -> None:
    none, not_loaded, error = asked(
        nvml_stub, *({"NVML_STUB": matter} for matter in ("no GPU", "not loaded", "mismatch"))
    )
    assert none == not_loaded == []
    assert error["error"] == "EnvironmentFault"
    assert "NVML/RM version mismatch" in error["message"]
    assert "nvidia-smi" in error["remedy"]


@pytest.mark.skipif(gpus._has_library(), reason="an NVIDIA driver is here")
def test_without_the_drivers_library_there_are_no_gpus() -> None:
    assert visible_gpus() == ()
    assert asked(None, {}, code=WITHOUT_BINDING + ASK) == [[]]


def test_a_driver_without_its_python_package_says_what_to_install(nvml_stub: Path) -> None:
    (error,) = asked(nvml_stub, {}, code=WITHOUT_BINDING + ASK)
    assert "nvidia-ml-py" in error["message"]
    assert error["remedy"] == "pip install 'plansmith[tensorrt]'"


def test_the_most_device_memory_beyond_that_of_the_beginning_is_seen(nvml_stub: Path, tmp_path: Path) -> None:
    used = tmp_path / "used"
    assert printed(WATCH, nvml_stub, used, NVML_STUB_USED=str(used)).strip() == "8000"


def test_nothing_is_known_of_the_memory_of_a_gpu_that_no_driver_knows() -> None:
    with gpus.MemoryWatch(gpu("GPU-nowhere")) as watch:
        pass
    assert watch.peak_bytes is None


def gpu(uuid: str, name: str = "NVIDIA L4") -> Gpu:
    return Gpu(name=name, compute_capability="8.9", memory_bytes=24 << 30, uuid=uuid)


L4S = [Card(gpu(f"GPU-{digit}{digit}")) for digit in "123"]
DIVIDED = Card(gpu("GPU-aa"), (gpu("MIG-1x"), gpu("MIG-1y")), ("MIG-GPU-aa/1/0", "MIG-GPU-aa/2/0"), divided=True)


@pytest.mark.parametrize(
    ("named", "left"),
    [
        (None, ["GPU-11", "GPU-22", "GPU-33"]),
        ("2,0", ["GPU-33", "GPU-11"]),
        ("0, 2,-1,1", ["GPU-11", "GPU-33"]),
        ("0,7,1", ["GPU-11"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("1,1", []),
        ("1gpu2,+2", ["GPU-22", "GPU-33"]),
        ("0,GPU-22", ["GPU-11"]),
        ("GPU-33,GPU-1", ["GPU-33", "GPU-11"]),
        ("GPU-22,GPU-4,GPU-11", ["GPU-22"]),
        ("GPU-22,0", ["GPU-22"]),
        ("GPU-", []),
        ("GPU-2,GPU-22", []),
    ],
)
def test_the_list_of_visible_devices_is_read_as_cuda_reads_it(named: str | None, left: list[str]) -> None:
    environment = {} if named is None else {"CUDA_VISIBLE_DEVICES": named}
    assert [gpu.uuid for gpu in chosen_gpus(L4S, environment)] == left


@pytest.mark.parametrize(
    ("named", "left"),
    [
        (None, ["GPU-11", "MIG-1x", "MIG-1y"]),
        ("1", ["MIG-1x"]),
        ("GPU-a,GPU-11", ["MIG-1x", "GPU-11"]),
        ("MIG-1y,MIG-GPU-aa/1/0", ["MIG-1y", "MIG-1x"]),
        ("MIG-1", []),
        ("MIG-1x,GPU-11", ["MIG-1x"]),
    ],
)
def test_parts_of_a_gpu_go_by_their_names_old_and_new(named: str | None, left: list[str]) -> None:
    environment = {} if named is None else {"CUDA_VISIBLE_DEVICES": named}
    assert [gpu.uuid for gpu in chosen_gpus([L4S[0], DIVIDED], environment)] == left


def test_a_number_among_different_gpus_is_refused_unless_it_is_the_bus_that_counts(nvml_stub: Path) -> None:
    mixed = {"NVML_STUB": "mixed", "CUDA_VISIBLE_DEVICES": "1"}
    error, by_bus, by_uuid = asked(
        nvml_stub, mixed, {**mixed, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, {**mixed, "CUDA_VISIBLE_DEVICES": SECOND}
    )
    assert "does not say which" in error["message"]
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in error["remedy"]
    assert [one["name"] for one in by_bus] == ["NVIDIA T400"]
    assert [one["compute_capability"] for one in by_uuid] == ["7.5"]


class Taken(Exception):
    """Somebody has the GPU."""


def holders(uuid: str) -> list[int | None]:
    """The process that holds a GPU, None where the kernel names nobody; none at all where it is free."""
    found: list[int | None] = []

    def refuse(process: int | None) -> None:
        found.append(process)
        raise Taken

    with suppress(Taken), held(gpu(uuid), refuse):
        pass
    return found


def holder(uuid: str) -> int | None:
    """The process that holds a GPU; None where it is free."""
    found = holders(uuid)
    assert None not in found, "the kernel names nobody"
    return found[0] if found else None


@contextmanager
def holding(uuid: str, *program: str) -> Iterator[subprocess.Popen[str]]:
    """A process of `gpu_holder`, which is dead in the end."""
    command = [sys.executable, "-m", "tests.support.tensorrt.gpu_holder", uuid, *program]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, umask=0o077
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.usefixtures("gpu_locks")
def test_the_lock_of_a_gpu_names_its_holder_and_dies_with_it() -> None:
    with holding("GPU-1") as process:
        assert said(process) == "held"
        assert holder("GPU-1") == process.pid
        assert holder("GPU-2") is None
        process.kill()
        process.wait()
        assert holder("GPU-1") is None


@pytest.mark.usefixtures("gpu_locks")
def test_whoever_waits_for_a_gpu_is_told_for_whom_and_gets_it_afterwards() -> None:
    with holding("GPU-1") as first:
        assert said(first) == "held"
        with holding("GPU-1") as second:
            assert said(second) == f"waiting {first.pid}"
            first.kill()
            assert said(second) == "held"
            assert holder("GPU-1") == second.pid


@pytest.mark.usefixtures("gpu_locks")
def test_a_gpu_is_not_free_while_a_program_of_its_dead_holder_runs() -> None:
    with holding("GPU-1", "sleep", "600") as process:
        program = psutil.Process(int(said(process).removeprefix("started ")))
        try:
            assert said(process) == "held"
            process.kill()
            process.wait()
            assert holder("GPU-1") is not None
        finally:
            program.kill()
        while holders("GPU-1"):
            pass  # the kernel closes the files of what was killed in a moment, and names nobody meanwhile


def test_a_lock_whose_file_was_tidied_away_is_not_held_twice(gpu_locks: Path) -> None:
    with ExitStack() as processes:
        first = processes.enter_context(holding("GPU-1"))
        assert said(first) == "held"
        second = processes.enter_context(holding("GPU-1"))
        assert said(second) == f"waiting {first.pid}"
        (gpu_locks / "GPU-1").unlink()
        third = processes.enter_context(holding("GPU-1"))
        assert said(third) == "held"
        first.kill()
        assert said(second) == f"waiting {third.pid}"
        third.kill()
        assert said(second) == "held"


def test_every_user_can_take_the_lock_whatever_the_umask_of_the_first(gpu_locks: Path) -> None:
    with holding("MIG-GPU-1/2/0") as process:
        assert said(process) == "held"
        assert stat.S_IMODE(gpu_locks.stat().st_mode) == 0o1777
        (lock,) = gpu_locks.iterdir()
        assert stat.S_IMODE(lock.stat().st_mode) == 0o666


def test_a_place_for_locks_that_takes_none_is_named_with_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv(gpus.LOCKS_VARIABLE, str(file))
    with pytest.raises(EnvironmentFault, match="the lock of GPU GPU-1 cannot be taken") as raised, held(gpu("GPU-1")):
        pass
    assert gpus.LOCKS_VARIABLE in raised.value.remedy


def test_a_kind_of_gpu_has_no_lock() -> None:
    with pytest.raises(ValueError, match="a kind of GPU"), held(gpu("")):
        pass
