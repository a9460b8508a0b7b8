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
from plansmith.system.gpus import Card, chosen_gpus, lock_gpu, visible_gpus

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


def ask_gpus(library: Path | None, *environments: dict[str, str], code: str = ASK) -> list[Any]:
    """The GPUs that are visible in some environments, or the error there, by the real binding."""
    answers: list[Any] = json.loads(printed(code, library, json.dumps(environments)))
    return answers


def test_real_binding_matches_gpu_record(nvml_stub: Path) -> None:
    """The real binding tells of each GPU what its record holds."""
    all_of_them, exchanged, unified = ask_gpus(nvml_stub, {}, {"CUDA_VISIBLE_DEVICES": "1,0"}, {"NVML_STUB": "unified"})
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


def test_mig_gpu_is_its_parts(nvml_stub: Path) -> None:
    """A GPU in MIG mode is its parts."""
    (*parts, whole), (named,) = ask_gpus(
        nvml_stub,
        {"NVML_STUB": "divided"},
        {"NVML_STUB": "divided", "CUDA_VISIBLE_DEVICES": f"MIG-{FIRST}/2/0"},
    )
    assert [part["uuid"] for part in parts] == PARTS
    assert parts[0]["name"] == "NVIDIA A100-SXM4-80GB MIG 3g.40gb"
    assert (parts[0]["compute_capability"], parts[0]["memory_bytes"]) == ("8.0", 40 << 30)
    assert whole["uuid"] == SECOND
    assert named["uuid"] == PARTS[1]


def test_silent_library_is_fault(nvml_stub: Path) -> None:
    """A library without GPUs or a driver is no fault, but one that does not answer is."""
    none, not_loaded, error = ask_gpus(
        nvml_stub, *({"NVML_STUB": matter} for matter in ("no GPU", "not loaded", "mismatch"))
    )
    assert none == not_loaded == []
    assert error["error"] == "EnvironmentFault"
    assert "NVML/RM version mismatch" in error["message"]
    assert "nvidia-smi" in error["remedy"]


@pytest.mark.skipif(gpus._has_library(), reason="an NVIDIA driver is here")
def test_no_driver_library_no_gpus() -> None:
    """Without the driver's library there are no GPUs."""
    assert visible_gpus() == ()
    assert ask_gpus(None, {}, code=WITHOUT_BINDING + ASK) == [[]]


def test_missing_driver_package_says_remedy(nvml_stub: Path) -> None:
    """A driver without its Python package says what to install."""
    (error,) = ask_gpus(nvml_stub, {}, code=WITHOUT_BINDING + ASK)
    assert "nvidia-ml-py" in error["message"]
    assert error["remedy"] == "pip install 'plansmith[tensorrt]'"


def test_peak_device_memory_is_seen(nvml_stub: Path, tmp_path: Path) -> None:
    """The peak of device memory above that of the beginning is seen."""
    used = tmp_path / "used"
    assert printed(WATCH, nvml_stub, used, NVML_STUB_USED=str(used)).strip() == "8000"


def test_unknown_gpu_memory_stays_unknown() -> None:
    """Nothing is known of the memory of a GPU that no driver knows."""
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
def test_visible_devices_read_like_cuda(named: str | None, left: list[str]) -> None:
    """The list of visible devices is read as CUDA reads it."""
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
def test_gpu_parts_keep_both_names(named: str | None, left: list[str]) -> None:
    """Parts of a GPU go by their names, old and new."""
    environment = {} if named is None else {"CUDA_VISIBLE_DEVICES": named}
    assert [gpu.uuid for gpu in chosen_gpus([L4S[0], DIVIDED], environment)] == left


def test_ambiguous_gpu_number_refused(nvml_stub: Path) -> None:
    """A number among different GPUs is refused unless it is the bus that counts."""
    mixed = {"NVML_STUB": "mixed", "CUDA_VISIBLE_DEVICES": "1"}
    error, by_bus, by_uuid = ask_gpus(
        nvml_stub, mixed, {**mixed, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, {**mixed, "CUDA_VISIBLE_DEVICES": SECOND}
    )
    assert "does not say which" in error["message"]
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in error["remedy"]
    assert [gpu["name"] for gpu in by_bus] == ["NVIDIA T400"]
    assert [gpu["compute_capability"] for gpu in by_uuid] == ["7.5"]


class GpuBusy(Exception):
    """Somebody has the GPU."""


def holders(uuid: str) -> list[int | None]:
    """The process that holds a GPU, None where the kernel names nobody; none at all where it is free."""
    processes: list[int | None] = []

    def refuse(process: int | None) -> None:
        processes.append(process)
        raise GpuBusy

    with suppress(GpuBusy), lock_gpu(gpu(uuid), refuse):
        pass
    return processes


def holder(uuid: str) -> int | None:
    """The process that holds a GPU; None where it is free."""
    processes = holders(uuid)
    assert None not in processes, "the kernel names nobody"
    return processes[0] if processes else None


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


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.usefixtures("gpu_locks")
def test_gpu_lock_names_its_holder() -> None:
    """The lock of a GPU names its holder and dies with it."""
    with holding("GPU-1") as process:
        assert read_line(process) == "held"
        assert holder("GPU-1") == process.pid
        assert holder("GPU-2") is None
        process.kill()
        process.wait()
        assert holder("GPU-1") is None


@pytest.mark.usefixtures("gpu_locks")
def test_gpu_waiter_told_holder() -> None:
    """Whoever waits for a GPU is told for whom, and gets it afterwards."""
    with holding("GPU-1") as first:
        assert read_line(first) == "held"
        with holding("GPU-1") as second:
            assert read_line(second) == f"waiting {first.pid}"
            first.kill()
            assert read_line(second) == "held"
            assert holder("GPU-1") == second.pid


@pytest.mark.usefixtures("gpu_locks")
def test_gpu_busy_after_holder_died() -> None:
    """A GPU is not free while a program of its dead holder runs."""
    with holding("GPU-1", "sleep", "600") as process:
        program = psutil.Process(int(read_line(process).removeprefix("started ")))
        try:
            assert read_line(process) == "held"
            process.kill()
            process.wait()
            assert holder("GPU-1") is not None
        finally:
            program.kill()
        while holders("GPU-1"):
            pass  # the kernel closes the files of what was killed in a moment, and names nobody meanwhile


def test_removed_lock_not_held_twice(gpu_locks: Path) -> None:
    """A lock whose file was tidied away is not held twice."""
    with ExitStack() as processes:
        first = processes.enter_context(holding("GPU-1"))
        assert read_line(first) == "held"
        second = processes.enter_context(holding("GPU-1"))
        assert read_line(second) == f"waiting {first.pid}"
        (gpu_locks / "GPU-1").unlink()
        third = processes.enter_context(holding("GPU-1"))
        assert read_line(third) == "held"
        first.kill()
        assert read_line(second) == f"waiting {third.pid}"
        third.kill()
        assert read_line(second) == "held"


def test_lock_open_to_every_user(gpu_locks: Path) -> None:
    """Every user can take the lock whatever the umask of the first."""
    with holding("MIG-GPU-1/2/0") as process:
        assert read_line(process) == "held"
        assert stat.S_IMODE(gpu_locks.stat().st_mode) == 0o1777
        (lock,) = gpu_locks.iterdir()
        assert stat.S_IMODE(lock.stat().st_mode) == 0o666


def test_unusable_lock_place_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place for locks that takes none is named with what to set."""
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv(gpus.LOCKS_VARIABLE, str(file))
    with (
        pytest.raises(EnvironmentFault, match="the lock of GPU GPU-1 cannot be taken") as raised,
        lock_gpu(gpu("GPU-1")),
    ):
        pass
    assert gpus.LOCKS_VARIABLE in raised.value.remedy


def test_gpu_kind_has_no_lock() -> None:
    """A kind of GPU has no lock."""
    with pytest.raises(ValueError, match="a kind of GPU"), lock_gpu(gpu("")):
        pass
