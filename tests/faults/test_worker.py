"""The worker: its answers, its errors, its end, and its end with the parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest

from plansmith.errors import EnvironmentFault, GateError, InternalError
from plansmith.records.model import Record
from plansmith.steps import runner as stages
from plansmith.system.fork_server import forked_workers
from plansmith.system.memory import kills, kills_counter
from plansmith.system.process import Worker, log_tail, members_of
from plansmith.system.tasks import Nothing, Task

from ..support.faults.ends import still_running
from ..support.faults.groups import small_group
from ..support.waiting import soon
from .conftest import ROOT


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "worker.log"


@pytest.fixture
def progress() -> list[str]:
    return []


TINY = "tests.support.faults.tiny_worker"


@pytest.fixture(params=["program", "fork"])
def worker(
    request: pytest.FixtureRequest, log: Path, progress: list[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Worker]:
    """A worker that was started as a program, and one that a fork server forked: they behave alike."""
    monkeypatch.chdir(ROOT)
    with (
        forked_workers(TINY, ()) if request.param == "fork" else nullcontext(),
        Worker(TINY, log, progress.append) as started,
    ):
        yield started


def test_forked_workers_import_once(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked worker has the libraries that an earlier one imported, and none that were not named."""
    monkeypatch.chdir(ROOT)
    known = []
    with forked_workers(TINY, ["colorsys"]):
        for _ in range(2):
            with Worker(TINY, log) as worker:
                known.append([worker.call("import_module", name=name) for name in ("colorsys", "chunk", "this")])
    assert known == [[False, False, False], [True, False, False]]


def test_dead_fork_server_is_replaced(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker outlives its fork server, and the next one has another."""
    monkeypatch.chdir(ROOT)
    with forked_workers(TINY, ()):
        servers = []
        for _ in range(2):
            with Worker(TINY, log) as worker:
                server = psutil.Process(worker.call("pid")).parent()
                assert server is not None
                assert server.pid != os.getpid()
                server.kill()
                assert worker.call("echo", value="still there") == "still there"
                servers.append(server)
    assert servers[0] != servers[1]
    assert still_running(servers) == []


def test_worker_answers_calls_in_turn(worker: Worker) -> None:
    """A worker answers one call after the other."""
    for value in (1, None, {"text": "ü\n", "rows": [[1.5], []]}, "x" * 1_000_000):
        assert worker.call("echo", value=value) == value


def test_worker_takes_memory_as_large_libraries_need(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker looks for garbage seldom and keeps freed memory, unless its user tells the allocator otherwise."""
    monkeypatch.chdir(ROOT)
    ours = "glibc.malloc.mmap_threshold=67108864:glibc.malloc.trim_threshold=134217728"
    for tunables, expected in (("", ours), ("glibc.malloc.check=0", f"{ours}:glibc.malloc.check=0")):
        monkeypatch.setenv("GLIBC_TUNABLES", tunables)
        with Worker(TINY, log) as worker:
            assert worker.call("memory") == [50_000, expected]


def test_worker_tells_progress_in_order(worker: Worker, progress: list[str]) -> None:
    """A worker tells what it is doing in order."""
    assert worker.call("count", to=3) == 3
    assert progress == ["at 0", "at 1", "at 2"]


def test_own_error_crosses_process(worker: Worker, log: Path) -> None:
    """An error of ours crosses the process with everything it says."""
    with pytest.raises(GateError) as whole:
        worker.call("refuse")
    assert whole.value.to_dict() == {
        "error": "GateError",
        "message": "it differs\nmuch",
        "remedy": "look at it",
        "model": "tiny",
        "step": "validate",
        "log": "/logs/own.log",
        "transient": False,
        "exit_code": 5,
    }
    with pytest.raises(GateError) as short:
        worker.call("refuse_shortly")
    assert short.value.log == log
    assert worker.call("echo", value="still there") == "still there"


def test_worker_bug_is_internal_error(worker: Worker, log: Path) -> None:
    """A bug in the worker is an internal error with its traceback in the log."""
    with pytest.raises(InternalError, match="ZeroDivisionError: a bug of ours") as raised:
        worker.call("fail")
    assert raised.value.log == log
    assert "Traceback" in log.read_text()
    assert "in fail" in log.read_text()
    assert worker.call("echo", value="still there") == "still there"


@pytest.mark.parametrize("function", ["be_killed", "be_killed_in_the_middle_of_an_answer"])
def test_killed_worker_names_reduction(function: str, worker: Worker, log: Path) -> None:
    """A killed worker is told with what to reduce."""
    with pytest.raises(
        EnvironmentFault, match=f"the worker was killed during {function}, .* held up to .* [MG]iB"
    ) as raised:
        worker.call(function)
    assert raised.value.log == log
    assert "--shapes" in raised.value.remedy


def test_outside_kill_not_blamed_on_kernel(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker killed from outside is not put down to the kernel where the kernel counts."""
    monkeypatch.chdir(ROOT)
    children: list[int] = []
    counted = kills(kills_counter(os.getpid())) is not None

    def kill(text: str) -> None:
        assert text == "waiting"
        os.kill(children[0], signal.SIGKILL)

    cause = "not by the kernel but by another program" if counted else "most likely because the machine ran out"
    with Worker(TINY, log, kill) as worker:
        children.append(worker.call("pid"))
        with pytest.raises(EnvironmentFault, match=rf"killed during wait \(waiting\), {cause}"):
            worker.call("wait")


def test_worker_out_of_memory_says_so(
    worker: Worker,
) -> None:
    """A worker that the kernel ends for lack of memory says so and what it was doing."""
    with small_group(64 << 20) as group:
        if group is None:  # no right to make one here: a limit of the process itself has to do
            worker.call("limit_memory", more=64 << 20)
        else:
            worker.call("join", group=str(group))
        cause = "the worker ran out of memory: MemoryError" if group is None else r"\(32x256\)\), by the kernel"
        with pytest.raises(EnvironmentFault, match=cause) as raised:
            worker.call("fill_memory", up_to=1 << 30)
        assert "make the largest shape smaller (--shapes)" in raised.value.remedy
        worker.close()


def test_worker_survives_own_limit(worker: Worker) -> None:
    """A worker that hits its own limit lives on and says what to reduce."""
    worker.call("limit_memory", more=64 << 20)
    with pytest.raises(EnvironmentFault, match="the worker ran out of memory: MemoryError") as raised:
        worker.call("fill_memory", up_to=1 << 30)
    assert "--shapes" in raised.value.remedy
    assert worker.call("echo", value=1) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "sign"),
    [("allocate_in_torch", "DefaultCPUAllocator: can't allocate memory"), ("allocate_in_cpp", "std::bad_alloc")],
)
def test_library_memory_lack_is_no_bug(function: str, sign: str, worker: Worker) -> None:
    """A library that gets no memory is no bug of ours."""
    with pytest.raises(EnvironmentFault, match=sign) as raised:
        worker.call(function)
    assert "the worker ran out of memory" in raised.value.message
    assert "--shapes" in raised.value.remedy


COUNTED = {
    "version 2": ("0::/user/me\n", "user/me/memory.events", "low 0\nhigh 1\noom 3\noom_kill 2\noom_group_kill 0\n"),
    "version 2 beside 1": ("4:cpu:/\n0::/me\n", "unified/me/memory.events", "oom 3\noom_kill 2\n"),
    "version 1": ("9:cpu:/\n4:memory:/me\n0::/\n", "memory/me/memory.oom_control", "under_oom 0\noom_kill 2\n"),
}


@pytest.mark.parametrize("version", COUNTED)
def test_kernel_kills_counted_either_version(version: str, tmp_path: Path) -> None:
    """The kernel counts its kills in either version of control groups."""
    groups, file, content = COUNTED[version]
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "cgroup").write_text(groups)
    assert kills_counter(7, tmp_path / "proc", tmp_path) is None
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(content)
    counter = kills_counter(7, tmp_path / "proc", tmp_path)
    assert counter == tmp_path / file
    assert kills(counter) == 2


class Process(Record):
    """A process by its number."""

    number: int


def test_dead_worker_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a dead worker the next step has a fresh one."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(stages, "WORKER_MODULE", TINY)
    runner = stages.StageRunner("tiny", tmp_path, listener=stages.Listener(), force=False, dry=False)
    tell, end = (Task(name, Nothing, Process) for name in ("tell_process", "be_killed_by_task"))
    first = runner.run_in_worker(tell, Nothing()).number
    with pytest.raises(EnvironmentFault):
        runner.run_in_worker(end, Nothing())
    second = runner.run_in_worker(tell, Nothing()).number
    assert second != first
    assert runner.run_in_worker(tell, Nothing()).number == second
    runner.close()
    assert not psutil.pid_exists(second)


@pytest.mark.parametrize("status", [0, 3])
def test_leaving_worker_is_internal_error(status: int, worker: Worker) -> None:
    """A worker that leaves is an internal error with its last words."""
    with pytest.raises(InternalError, match=f"exit code {status}:\nthese are\nits last words"):
        worker.call("leave", status=status)


def test_crash_names_signal(worker: Worker) -> None:
    """A crash is an internal error that names the signal."""
    with pytest.raises(InternalError, match="during crash with signal SIGSEGV"):
        worker.call("crash")


def test_unsendable_answer_is_internal_error(worker: Worker) -> None:
    """An answer that cannot be sent is an internal error."""
    with pytest.raises(InternalError, match="not JSON serializable"):
        worker.call("answer_with_what_is_no_json")


def test_dead_worker_can_be_closed(worker: Worker) -> None:
    """A dead worker says so again and can be closed."""
    for value in ("short", "x" * 1_000_000):
        with pytest.raises(EnvironmentFault):
            worker.call("be_killed")
        with pytest.raises(EnvironmentFault):
            worker.call("echo", value=value)
    worker.close()


def test_unstartable_worker_is_internal_error(log: Path) -> None:
    """A worker that cannot start is an internal error with the reason."""
    with Worker("durability_nope", log) as worker, pytest.raises(InternalError, match="No module named"):
        worker.call("echo", value=1)


def test_a_closed_worker_is_gone(worker: Worker) -> None:
    child = psutil.Process(worker.call("pid"))
    worker.close()
    assert not child.is_running()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_group_end_left_to_parent(worker: Worker, number: signal.Signals) -> None:
    """A worker leaves what ends its group to its parent."""
    os.kill(worker.call("pid"), number)
    assert worker.call("echo", value=1) == 1


@pytest.mark.parametrize("start", [[], ["fork"]])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_worker_dies_with_parent(
    number: signal.Signals, start: list[str], log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker dies with its parent."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = [sys.executable, "-m", "tests.support.faults.worker_parent", str(log), *start]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
        assert parent.stdout is not None
        children = [psutil.Process(int(parent.stdout.readline()))]
        children += psutil.Process(parent.pid).children(recursive=True)
        os.kill(parent.pid, number)
        assert parent.wait() != 0
    assert still_running(children) == []


_STARTS_A_GROUP = """
import subprocess, sys, time
from plansmith.system.process import ProcessGroup
group = ProcessGroup()
subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 1000 & sleep 1000"], process_group=group.number)
print(group.number, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_group_ends_with_starter(number: signal.Signals) -> None:
    """A group ends with its starter and so does what it started."""
    with subprocess.Popen([sys.executable, "-c", _STARTS_A_GROUP], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        group = int(starter.stdout.readline())
        assert soon(lambda: len(members_of(group)) > 2, expected=True), "the leader, a shell and its children"
        starter.send_signal(number)
        assert soon(lambda: not members_of(group), expected=True)


def test_log_tail_has_last_text_lines(tmp_path: Path) -> None:
    """The tail of a log is its last lines with text."""
    log = tmp_path / "log"
    assert log_tail(log) == ""
    log.write_bytes(b"1\n2\n\n3\n\xff4\n\n")
    assert log_tail(log, 2) == "3\n�4"
