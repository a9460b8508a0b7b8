"""The process around a build, with programs of its own: what it keeps, how it ends, and what an end leaves behind."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from plansmith.compilers.trt import build as plan_building
from plansmith.compilers.trt import build_worker
from plansmith.compilers.trt.build import probe, refit_plan
from plansmith.compilers.trt.timing_cache import TimingCaches, key_of
from plansmith.errors import EngineError, EnvironmentFault, RepositoryError
from plansmith.records.engine import BuildFlags, BuildRequest
from plansmith.system import gpus, memory

from ...support.faults.ends import still_running
from ...support.tensorrt.builds import CHILD, ROOT, build, gpu, request_in
from ...support.tensorrt.child import VERSION

# What each program does before it leaves a plan; it notes its number and arguments beside it.
BUILDS = """\
#!/bin/sh
for argument; do printf '%s\\n' "$argument"; done > "$(dirname "$0")/arguments"
echo "building on $CUDA_VISIBLE_DEVICES"
{first}
for argument; do case $argument in
  --saveEngine=*) printf 'a plan' > "${{argument#--saveEngine=}}" ;;
  --timingCacheFile=*) printf 'measured ' >> "${{argument#--timingCacheFile=}}" ;;
esac; done
"""
WAITS = 'echo $$ > "$(dirname "$0")/number.new"; mv "$(dirname "$0")/number.new" "$(dirname "$0")/number"\n'
UNTIL_RELEASED = f'{WAITS}while [ ! -e "$(dirname "$0")/release" ]; do sleep 0.05; done'
FOR_EVER = f"trap '' TERM INT\n{WAITS}exec sleep 600"
HOLDS_MEMORY = "head -c 200000000 /dev/zero | tail -c 150000000 > /dev/null"
FAILS = "echo 'no room for the workspace' >&2; exit 1"

pytestmark = pytest.mark.usefixtures("gpu_locks", "tests_child")


@pytest.fixture
def tests_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that run the builders of `child`."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(plan_building, "WORKER_MODULE", CHILD)


def program_in(folder: Path, first: str = "") -> Path:
    """A program in place of trtexec."""
    folder.mkdir(parents=True)
    program = folder / "trtexec"
    program.write_text(BUILDS.format(first=first))
    program.chmod(0o755)
    return program


def wait_until(condition: Callable[[], bool]) -> None:
    """Look again until it is so; the test's own limit ends it otherwise."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def number_of(program: Path) -> int:
    """The process number of a program that waits."""
    wait_until(program.with_name("number").exists)
    return int(program.with_name("number").read_text())


def is_free(uuid: str = "GPU-1") -> bool:
    """Whether nobody has a GPU."""

    def refuse(_: int | None) -> None:
        raise InterruptedError

    with suppress(InterruptedError), gpus.lock_gpu(gpu(uuid), refuse):
        return True
    return False


@contextmanager
def building(folder: Path, program: Path, uuid: str = "GPU-1") -> Iterator[subprocess.Popen[str]]:
    """A process of `builds`, which is dead in the end."""
    command = [sys.executable, "-m", "tests.support.tensorrt.builds", str(folder), uuid, str(program)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, process_group=0) as process:
        try:
            yield process
        finally:
            process.kill()


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_build_leaves_plan_and_log(tmp_path: Path) -> None:
    """A build leaves its plan its log and how to do it again."""
    (tmp_path / "worker.log").write_text("of another build\n")
    request = request_in(tmp_path, trtexec=program_in(tmp_path / "bin"))
    messages: list[str] = []
    plan = build(request, tmp_path, progress=messages.append)
    out = Path(request.out)
    assert {path.name for path in out.iterdir()} == {"model.plan", "build.log", "request.json", "reproduce.sh"}
    assert (out / plan.file).read_text() == "a plan"
    assert (out / plan.log).read_text() == "building on GPU-1\n"
    assert (plan.gpu, plan.builder, plan.tensorrt) == (request.gpu, "trtexec", VERSION)
    assert BuildRequest.model_validate_json((out / "request.json").read_text()) == request.model_copy(
        update={"out": ""}
    )
    assert "running the program" in messages
    assert is_free()


def test_api_build_sees_one_gpu(tmp_path: Path) -> None:
    """A build by the API sees one GPU and calls it number 0."""
    request = request_in(tmp_path)
    plan = build(request, tmp_path)
    assert Path(request.out, plan.log).read_text() == "built on GPU-1, number 0\n"
    assert plan.gpu.index == 3
    assert plan.warnings == ("a warning of the builder's",)


def test_program_script_runs_elsewhere(tmp_path: Path) -> None:
    """The script of a program runs it with the same options elsewhere."""
    program = program_in(tmp_path / "the bin")
    request = request_in(tmp_path, trtexec=program)
    build(request, tmp_path)
    first = program.with_name("arguments").read_text().splitlines()
    script, graph = Path(request.out, "reproduce.sh"), tmp_path / "an other's $graph.onnx"
    assert stat.S_IMODE(script.stat().st_mode) & stat.S_IXUSR
    done = subprocess.run([script, graph, "new plans"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no graph" in done.stderr
    graph.write_text("the same graph")
    subprocess.run([script, graph, "new plans"], cwd=tmp_path, check=True)
    again = program.with_name("arguments").read_text().splitlines()
    assert again[:3] == [f"--onnx={graph}", "--saveEngine=new plans/model.plan", first[2]]
    assert again[3] == "--timingCacheFile=new plans/timing.cache"
    assert (tmp_path / "new plans" / "model.plan").read_text() == "a plan"
    subprocess.run([script], cwd=tmp_path, check=True)
    assert program.with_name("arguments").read_text().splitlines()[0] == first[0]


def test_api_script_builds_on_same_kind(tmp_path: Path, nvml_stub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script of the API builds on a GPU of the same kind."""
    request = request_in(tmp_path, flags={"timing_cache": False})
    build(request, tmp_path)
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\n[ "$1 $2" = "-m plansmith.compilers.trt.build_worker" ] || exit 9\nshift 2\n'
        f'cd "{ROOT}" && exec "{sys.executable}" -m {CHILD} "$@"\n'
    )
    python.chmod(0o755)
    monkeypatch.setenv("PYTHON", str(python))
    command = [f"{request.out}/reproduce.sh", request.graph, str(tmp_path / "again")]
    elsewhere = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert elsewhere.returncode == EnvironmentFault.exit_code
    assert "was built on NVIDIA A100-SXM4-80GB (8.0), and here is no GPU" in elsewhere.stderr
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_stub))
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "built on GPU-11111111-aaaa-bbbb-cccc-000000000001, number 0" in done.stderr
    assert (tmp_path / "again" / "model.plan").exists()


def test_build_gpu_comes_first() -> None:
    """The GPU of the build comes before others of its kind."""
    requested, others = gpu("GPU-2"), [gpu("GPU-1"), gpu("GPU-2")]
    assert build_worker.same_gpu(requested, others).uuid == "GPU-2"
    assert build_worker.same_gpu(gpu("GPU-3"), others).uuid == "GPU-1"
    with pytest.raises(EnvironmentFault, match="here is NVIDIA T400") as raised:
        build_worker.same_gpu(requested, [gpu().model_copy(update={"name": "NVIDIA T400"})])
    assert "CUDA_VISIBLE_DEVICES" in raised.value.remedy


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_killed_compile(number: signal.Signals, tmp_path: Path) -> None:
    program = program_in(tmp_path / "bin", FOR_EVER)
    with building(tmp_path, program) as parent:
        running = psutil.Process(number_of(program))
        family = psutil.Process(parent.pid).children(recursive=True)
        assert running in family
        assert not is_free()
        parent.send_signal(number)
        parent.wait()
        assert still_running(family) == []
        wait_until(is_free)


@pytest.mark.slow
def test_interrupt_ends_build(tmp_path: Path) -> None:
    """An interrupt ends the build at once and leaves nothing."""
    program = program_in(tmp_path / "bin", FOR_EVER)
    with building(tmp_path, program) as parent:
        running = psutil.Process(number_of(program))
        family = psutil.Process(parent.pid).children(recursive=True)
        assert running in family
        os.killpg(parent.pid, signal.SIGINT)
        assert read_line(parent) == "interrupted"
        assert still_running(family) == []
        assert is_free()
        assert list((tmp_path / "its out").iterdir()) == []


@pytest.mark.slow
def test_builds_wait_for_same_gpu(tmp_path: Path) -> None:
    """Builds on one GPU wait for one another, and on two they do not."""
    programs = [program_in(tmp_path / name / "bin", UNTIL_RELEASED) for name in ("first", "other", "second")]
    first, unrelated, second = programs
    with (
        building(tmp_path / "first", first, "GPU-1") as before,
        building(tmp_path / "other", unrelated, "GPU-2") as beside,
    ):
        number_of(first), number_of(unrelated)
        with building(tmp_path / "second", second, "GPU-1") as after:
            blocker = int(read_line(after).removeprefix("waiting "))
            assert blocker in [child.pid for child in psutil.Process(before.pid).children()]
            assert not second.with_name("number").exists()
            for program in programs:
                program.with_name("release").touch()
            assert [read_line(process) for process in (before, beside, after)] == ["built"] * 3


def test_unwilling_waiter_ends_at_once(tmp_path: Path) -> None:
    """Whoever does not want to wait for the GPU ends at once."""
    program = program_in(tmp_path / "bin", UNTIL_RELEASED)

    def refuse(process: int | None) -> None:
        raise EngineError(f"process {process} has it", remedy="wait")

    with building(tmp_path / "first", program):
        number_of(program)
        with pytest.raises(EngineError, match=r"process \d+ has it"):
            build(request_in(tmp_path / "second"), tmp_path / "second", waiting=refuse)


@pytest.mark.slow
def test_late_build_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that goes on beyond its deadline is ended."""
    monkeypatch.setattr(plan_building, "_GRACE_SECONDS", 0.1)
    program = program_in(tmp_path / "bin", FOR_EVER)
    request = request_in(tmp_path, trtexec=program, deadline_seconds=6)
    with pytest.raises(EngineError, match=r"ended after 6\.1 s, .* \(running the program\)") as raised:
        build(request, tmp_path)
    assert "deadline_minutes" in raised.value.remedy
    assert raised.value.log == tmp_path / "worker.log"
    assert not psutil.pid_exists(number_of(program)) or still_running([psutil.Process(number_of(program))]) == []
    assert list(Path(request.out).iterdir()) == []
    assert is_free()


def test_failed_program_leaves_log_only(tmp_path: Path) -> None:
    """A failed program leaves its words in the log and nothing else."""
    request = request_in(tmp_path, trtexec=program_in(tmp_path / "bin", FAILS))
    with pytest.raises(EngineError, match="trtexec ended with 1") as raised:
        build(request, tmp_path)
    assert raised.value.log is not None
    assert "no room for the workspace" in raised.value.log.read_text()
    assert list(Path(request.out).iterdir()) == []
    assert is_free()


def test_killed_child_says_memory_remedy(tmp_path: Path) -> None:
    """A killed child says what to do about memory."""
    request = request_in(tmp_path, content="be killed")
    with pytest.raises(EnvironmentFault, match=r"killed during build \(doing what the graph says\)") as raised:
        build(request, tmp_path)
    assert memory.REMEDY in raised.value.remedy
    assert list(Path(request.out).iterdir()) == []


@pytest.mark.slow
def test_program_of_killed_child_ends(tmp_path: Path) -> None:
    """A program whose child was killed ends too and its end is not waited for."""
    program = program_in(tmp_path / "bin", FOR_EVER)
    processes: list[psutil.Process] = []

    def kill_the_child() -> None:
        running = psutil.Process(number_of(program))
        processes.append(running)
        running.parents()[0].kill()

    killer = threading.Thread(target=kill_the_child)
    killer.start()
    with pytest.raises(EnvironmentFault, match=r"killed during build \(running the program\)"):
        build(request_in(tmp_path, trtexec=program), tmp_path)
    killer.join()
    assert still_running(processes) == []
    wait_until(is_free)


def test_simultaneous_caches_combined_later(tmp_path: Path) -> None:
    """Caches of builds at the same time are combined by the next that can."""
    caches, key = TimingCaches(tmp_path / "cache" / "timing"), key_of("10.16.1.11", gpu(), BuildFlags())
    with caches.lent(key, BuildFlags()) as first, caches.lent(key, BuildFlags()) as second:
        for loan, entries in ((first, "a b "), (second, "b c d ")):
            loan.file.write_text(entries)
            caches.take_back(key, loan)
    build(request_in(tmp_path), tmp_path)
    (cache,) = caches.root.glob("*.cache")
    assert cache.read_text() == "b c d a graph "


def test_program_memory_counts(tmp_path: Path) -> None:
    """The memory of a program counts as the build's."""
    plan = build(request_in(tmp_path, trtexec=program_in(tmp_path / "bin", HOLDS_MEMORY)), tmp_path)
    assert plan.peak_host_bytes is not None
    assert 150_000_000 < plan.peak_host_bytes < 500_000_000
    assert plan.peak_device_bytes is None


def test_full_disk_names_remedy(tmp_path: Path) -> None:
    """A full disk is said in words with a remedy."""
    request = request_in(tmp_path / "while it builds", content="fill the disk")
    with pytest.raises(RepositoryError, match="no space left on the file system") as raised:
        build(request, tmp_path)
    assert "free some space" in raised.value.remedy
    assert list(Path(request.out).iterdir()) == []
    too_large = request_in(tmp_path / "before")
    with Path(too_large.graph).open("ab") as graph:
        graph.truncate(1 << 43)
    with pytest.raises(RepositoryError, match=r"takes about 8\.0 TiB") as raised:
        build(too_large, tmp_path / "before")
    assert "free some space" in raised.value.remedy
    assert not (tmp_path / "before" / "worker.log").exists()


def test_measurements_reused_by_same_kind(tmp_path: Path) -> None:
    """What a build measured is there for the next and for no other kind."""

    def contents() -> list[str]:
        return sorted(path.read_text() for path in (tmp_path / "cache" / "timing").glob("*.cache"))

    program = program_in(tmp_path / "bin")
    build(request_in(tmp_path / "a", trtexec=program), tmp_path)
    assert contents() == ["measured "]
    build(request_in(tmp_path / "b", trtexec=program), tmp_path)
    assert contents() == ["measured measured "]
    build(request_in(tmp_path / "c", trtexec=program, flags={"tf32": False}), tmp_path)
    assert contents() == ["measured ", "measured measured "]


def test_timed_out_build_keeps_measurements(tmp_path: Path) -> None:
    """A build by the API that ran out of time keeps what it measured."""
    with pytest.raises(EngineError, match="not built in time"):
        build(request_in(tmp_path, content="be late"), tmp_path)
    (cache,) = (tmp_path / "cache" / "timing").glob("*.cache")
    assert cache.read_text() == "graph "


def test_unmeasured_build_refused(tmp_path: Path) -> None:
    """A build that may measure nothing is refused where nothing is known."""
    with pytest.raises(EngineError, match=r"nothing was measured yet for TensorRT 10\.16\.1\.11") as raised:
        build(request_in(tmp_path, flags={"error_on_timing_cache_miss": True}), tmp_path)
    assert "error_on_timing_cache_miss" in raised.value.remedy


def test_weights_put_back_in_gpu_child(tmp_path: Path) -> None:
    """Weights are put back in a child process that has the GPU."""
    request = request_in(tmp_path, flags={"refit": True})
    plan = tmp_path / "stripped.plan"
    plan.write_text("stripped")
    refit_plan(
        plan, Path(request.graph), tmp_path / "whole.plan", spec=request.spec, gpu=gpu(), log=tmp_path / "worker.log"
    )
    assert (tmp_path / "whole.plan").read_text() == "stripped build a plan True"


def test_crashing_library_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine is asked for both builders and survives a library that crashes."""
    monkeypatch.setenv("TEST_TRTEXEC", "/opt/trtexec")
    machine = probe(tmp_path / "log")
    assert (machine.api, machine.trtexec, machine.trtexec_version) == ("10.16.1.11", "/opt/trtexec", VERSION)
    monkeypatch.setenv("TEST_CRASH", "1")
    monkeypatch.delenv("TEST_TRTEXEC")
    machine = probe(tmp_path / "log")
    assert (machine.api, machine.trtexec) == ("", "")
    assert "SIGSEGV" in machine.api_problem
