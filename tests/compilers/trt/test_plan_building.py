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

    with suppress(InterruptedError), gpus.held(gpu(uuid), refuse):
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


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_build_leaves_its_plan_its_log_and_how_to_do_it_again(tmp_path: Path) -> None:
    (tmp_path / "worker.log").write_text("of another build\n")
    request = request_in(tmp_path, trtexec=program_in(tmp_path / "bin"))
    told: list[str] = []
    plan = build(request, tmp_path, progress=told.append)
    out = Path(request.out)
    assert {path.name for path in out.iterdir()} == {"model.plan", "build.log", "request.json", "reproduce.sh"}
    assert (out / plan.file).read_text() == "a plan"
    assert (out / plan.log).read_text() == "building on GPU-1\n"
    assert (plan.gpu, plan.builder, plan.tensorrt) == (request.gpu, "trtexec", VERSION)
    assert BuildRequest.model_validate_json((out / "request.json").read_text()) == request.model_copy(
        update={"out": ""}
    )
    assert "running the program" in told
    assert is_free()


def test_a_build_by_the_api_sees_one_gpu_and_calls_it_number_0(tmp_path: Path) -> None:
    request = request_in(tmp_path)
    plan = build(request, tmp_path)
    assert Path(request.out, plan.log).read_text() == "built on GPU-1, number 0\n"
    assert plan.gpu.index == 3
    assert plan.warnings == ("a warning of the builder's",)


def test_the_script_of_a_program_runs_it_with_the_same_options_elsewhere(tmp_path: Path) -> None:
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


def test_the_script_of_the_api_builds_on_a_gpu_of_the_same_kind(
    tmp_path: Path, nvml_stub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_the_gpu_of_the_build_comes_before_others_of_its_kind() -> None:
    wanted, others = gpu("GPU-2"), [gpu("GPU-1"), gpu("GPU-2")]
    assert build_worker.same_gpu(wanted, others).uuid == "GPU-2"
    assert build_worker.same_gpu(gpu("GPU-3"), others).uuid == "GPU-1"
    with pytest.raises(EnvironmentFault, match="here is NVIDIA T400") as raised:
        build_worker.same_gpu(wanted, [gpu().model_copy(update={"name": "NVIDIA T400"})])
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
def test_an_interrupt_ends_the_build_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    program = program_in(tmp_path / "bin", FOR_EVER)
    with building(tmp_path, program) as parent:
        running = psutil.Process(number_of(program))
        family = psutil.Process(parent.pid).children(recursive=True)
        assert running in family
        os.killpg(parent.pid, signal.SIGINT)
        assert said(parent) == "interrupted"
        assert still_running(family) == []
        assert is_free()
        assert list((tmp_path / "its out").iterdir()) == []


@pytest.mark.slow
def test_builds_on_one_gpu_wait_for_one_another_and_on_two_they_do_not(tmp_path: Path) -> None:
    programs = [program_in(tmp_path / name / "bin", UNTIL_RELEASED) for name in ("first", "other", "second")]
    first, other, second = programs
    with (
        building(tmp_path / "first", first, "GPU-1") as one,
        building(tmp_path / "other", other, "GPU-2") as beside,
    ):
        number_of(first), number_of(other)
        with building(tmp_path / "second", second, "GPU-1") as after:
            who = int(said(after).removeprefix("waiting "))
            assert who in [child.pid for child in psutil.Process(one.pid).children()]
            assert not second.with_name("number").exists()
            for program in programs:
                program.with_name("release").touch()
            assert [said(process) for process in (one, beside, after)] == ["built"] * 3


def test_whoever_does_not_want_to_wait_for_the_gpu_ends_at_once(tmp_path: Path) -> None:
    program = program_in(tmp_path / "bin", UNTIL_RELEASED)

    def refuse(process: int | None) -> None:
        raise EngineError(f"process {process} has it", remedy="wait")

    with building(tmp_path / "first", program):
        number_of(program)
        with pytest.raises(EngineError, match=r"process \d+ has it"):
            build(request_in(tmp_path / "second"), tmp_path / "second", waiting=refuse)


@pytest.mark.slow
def test_a_build_that_goes_on_beyond_its_deadline_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_failed_program_leaves_its_words_in_the_log_and_nothing_else(tmp_path: Path) -> None:
    request = request_in(tmp_path, trtexec=program_in(tmp_path / "bin", FAILS))
    with pytest.raises(EngineError, match="trtexec ended with 1") as raised:
        build(request, tmp_path)
    assert raised.value.log is not None
    assert "no room for the workspace" in raised.value.log.read_text()
    assert list(Path(request.out).iterdir()) == []
    assert is_free()


def test_a_killed_child_says_what_to_do_about_memory(tmp_path: Path) -> None:
    request = request_in(tmp_path, what="be killed")
    with pytest.raises(EnvironmentFault, match=r"killed during build \(doing what the graph says\)") as raised:
        build(request, tmp_path)
    assert memory.REMEDY in raised.value.remedy
    assert list(Path(request.out).iterdir()) == []


@pytest.mark.slow
def test_a_program_whose_child_was_killed_ends_too_and_its_end_is_not_waited_for(tmp_path: Path) -> None:
    program = program_in(tmp_path / "bin", FOR_EVER)
    seen: list[psutil.Process] = []

    def kill_the_child() -> None:
        running = psutil.Process(number_of(program))
        seen.append(running)
        running.parents()[0].kill()

    killer = threading.Thread(target=kill_the_child)
    killer.start()
    with pytest.raises(EnvironmentFault, match=r"killed during build \(running the program\)"):
        build(request_in(tmp_path, trtexec=program), tmp_path)
    killer.join()
    assert still_running(seen) == []
    wait_until(is_free)


def test_caches_of_builds_at_the_same_time_are_combined_by_the_next_that_can(tmp_path: Path) -> None:
    caches, key = TimingCaches(tmp_path / "cache" / "timing"), key_of("10.16.1.11", gpu(), BuildFlags())
    with caches.lent(key, BuildFlags()) as one, caches.lent(key, BuildFlags()) as other:
        for loan, entries in ((one, "a b "), (other, "b c d ")):
            loan.file.write_text(entries)
            caches.take_back(key, loan)
    build(request_in(tmp_path), tmp_path)
    (kept,) = caches.root.glob("*.cache")
    assert kept.read_text() == "b c d a graph "


def test_the_memory_of_a_program_counts_as_the_builds(tmp_path: Path) -> None:
    plan = build(request_in(tmp_path, trtexec=program_in(tmp_path / "bin", HOLDS_MEMORY)), tmp_path)
    assert plan.peak_host_bytes is not None
    assert 150_000_000 < plan.peak_host_bytes < 500_000_000
    assert plan.peak_device_bytes is None


def test_a_full_disk_is_said_in_words_with_a_remedy(tmp_path: Path) -> None:
    request = request_in(tmp_path / "while it builds", what="fill the disk")
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


def test_what_a_build_measured_is_there_for_the_next_and_for_no_other_kind(tmp_path: Path) -> None:
    def kept() -> list[str]:
        return sorted(path.read_text() for path in (tmp_path / "cache" / "timing").glob("*.cache"))

    program = program_in(tmp_path / "bin")
    build(request_in(tmp_path / "a", trtexec=program), tmp_path)
    assert kept() == ["measured "]
    build(request_in(tmp_path / "b", trtexec=program), tmp_path)
    assert kept() == ["measured measured "]
    build(request_in(tmp_path / "c", trtexec=program, flags={"tf32": False}), tmp_path)
    assert kept() == ["measured ", "measured measured "]


def test_a_build_by_the_api_that_ran_out_of_time_keeps_what_it_measured(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="not built in time"):
        build(request_in(tmp_path, what="be late"), tmp_path)
    (kept,) = (tmp_path / "cache" / "timing").glob("*.cache")
    assert kept.read_text() == "graph "


def test_a_build_that_may_measure_nothing_is_refused_where_nothing_is_known(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"nothing was measured yet for TensorRT 10\.16\.1\.11") as raised:
        build(request_in(tmp_path, flags={"error_on_timing_cache_miss": True}), tmp_path)
    assert "error_on_timing_cache_miss" in raised.value.remedy


def test_weights_are_put_back_in_a_child_that_has_the_gpu(tmp_path: Path) -> None:
    request = request_in(tmp_path, flags={"refit": True})
    plan = tmp_path / "stripped.plan"
    plan.write_text("stripped")
    refit_plan(
        plan, Path(request.graph), tmp_path / "whole.plan", spec=request.spec, gpu=gpu(), log=tmp_path / "worker.log"
    )
    assert (tmp_path / "whole.plan").read_text() == "stripped build a plan True"


def test_a_machine_is_asked_for_both_builders_and_survives_a_library_that_crashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_TRTEXEC", "/opt/trtexec")
    found = probe(tmp_path / "log")
    assert (found.api, found.trtexec, found.trtexec_version) == ("10.16.1.11", "/opt/trtexec", VERSION)
    monkeypatch.setenv("TEST_CRASH", "1")
    monkeypatch.delenv("TEST_TRTEXEC")
    found = probe(tmp_path / "log")
    assert (found.api, found.trtexec) == ("", "")
    assert "SIGSEGV" in found.api_problem
