"""The worker: its answers, its errors, its end, and its end with the parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from plansmith.errors import EnvironmentFault, GateError, InternalError
from plansmith.records.model import Record
from plansmith.steps import runner as stages
from plansmith.steps.worker.tasks import Nothing, Task
from plansmith.system.memory import kills, kills_counter
from plansmith.system.process import Worker, log_tail, members_of

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


@pytest.fixture
def worker(log: Path, progress: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.chdir(ROOT)
    with Worker("tests.support.faults.tiny_worker", log, progress.append) as started:
        yield started


def test_a_worker_answers_one_call_after_the_other(worker: Worker) -> None:
    for value in (1, None, {"text": "ü\n", "rows": [[1.5], []]}, "x" * 1_000_000):
        assert worker.call("echo", value=value) == value


def test_a_worker_tells_what_it_is_doing_in_order(worker: Worker, progress: list[str]) -> None:
    assert worker.call("count", to=3) == 3
    assert progress == ["at 0", "at 1", "at 2"]


def test_an_error_of_ours_crosses_the_process_with_everything_it_says(worker: Worker, log: Path) -> None:
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


def test_a_bug_in_the_worker_is_an_internal_error_with_its_traceback_in_the_log(worker: Worker, log: Path) -> None:
    with pytest.raises(InternalError, match="ZeroDivisionError: a bug of ours") as raised:
        worker.call("fail")
    assert raised.value.log == log
    assert "Traceback" in log.read_text()
    assert "in fail" in log.read_text()
    assert worker.call("echo", value="still there") == "still there"


@pytest.mark.parametrize("function", ["be_killed", "be_killed_in_the_middle_of_an_answer"])
def test_a_killed_worker_is_named_with_what_to_reduce(function: str, worker: Worker, log: Path) -> None:
    with pytest.raises(
        EnvironmentFault, match=f"the worker was killed during {function}, .* held up to .* [MG]iB"
    ) as raised:
        worker.call(function)
    assert raised.value.log == log
    assert "--shapes" in raised.value.remedy


def test_a_worker_killed_from_outside_is_not_put_down_to_the_kernel_where_the_kernel_counts(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    children: list[int] = []
    counted = kills(kills_counter(os.getpid())) is not None

    def kill(text: str) -> None:
        assert text == "waiting"
        os.kill(children[0], signal.SIGKILL)

    who = "not by the kernel but by another program" if counted else "most likely because the machine ran out"
    with Worker("tests.support.faults.tiny_worker", log, kill) as worker:
        children.append(worker.call("pid"))
        with pytest.raises(EnvironmentFault, match=rf"killed during wait \(waiting\), {who}"):
            worker.call("wait")


def test_a_worker_that_the_kernel_ends_for_lack_of_memory_says_so_and_what_it_was_doing(
    worker: Worker,
) -> None:
    with small_group(64 << 20) as group:
        if group is None:  # no right to make one here: a limit of the process itself has to do
            worker.call("limit_memory", more=64 << 20)
        else:
            worker.call("join", group=str(group))
        who = "the worker ran out of memory: MemoryError" if group is None else r"\(32x256\)\), by the kernel"
        with pytest.raises(EnvironmentFault, match=who) as raised:
            worker.call("fill_memory", up_to=1 << 30)
        assert "make the largest shape smaller (--shapes)" in raised.value.remedy
        worker.close()


def test_a_worker_that_hits_its_own_limit_lives_on_and_says_what_to_reduce(worker: Worker) -> None:
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
def test_a_library_that_gets_no_memory_is_no_bug_of_ours(function: str, sign: str, worker: Worker) -> None:
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
def test_the_kernel_counts_its_kills_in_either_version_of_control_groups(version: str, tmp_path: Path) -> None:
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


def test_after_a_dead_worker_the_next_step_has_a_fresh_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(stages, "WORKER_MODULE", "tests.support.faults.tiny_worker")
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
def test_a_worker_that_leaves_is_an_internal_error_with_its_last_words(status: int, worker: Worker) -> None:
    with pytest.raises(InternalError, match=f"exit code {status}:\nthese are\nits last words"):
        worker.call("leave", status=status)


def test_a_crash_is_an_internal_error_that_names_the_signal(worker: Worker) -> None:
    with pytest.raises(InternalError, match="during crash with signal SIGSEGV"):
        worker.call("crash")


def test_an_answer_that_cannot_be_sent_is_an_internal_error(worker: Worker) -> None:
    with pytest.raises(InternalError, match="not JSON serializable"):
        worker.call("answer_with_what_is_no_json")


def test_a_dead_worker_says_so_again_and_can_be_closed(worker: Worker) -> None:
    for value in ("short", "x" * 1_000_000):
        with pytest.raises(EnvironmentFault):
            worker.call("be_killed")
        with pytest.raises(EnvironmentFault):
            worker.call("echo", value=value)
    worker.close()


def test_a_worker_that_cannot_start_is_an_internal_error_with_the_reason(log: Path) -> None:
    with Worker("durability_nope", log) as worker, pytest.raises(InternalError, match="No module named"):
        worker.call("echo", value=1)


def test_a_closed_worker_is_gone(worker: Worker) -> None:
    child = psutil.Process(worker.call("pid"))
    worker.close()
    assert not child.is_running()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_leaves_what_ends_its_group_to_its_parent(worker: Worker, number: signal.Signals) -> None:
    os.kill(worker.call("pid"), number)
    assert worker.call("echo", value=1) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_worker_dies_with_its_parent(
    number: signal.Signals, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = [sys.executable, "-m", "tests.support.faults.worker_parent", str(log)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        os.kill(parent.pid, number)
        assert parent.wait() != 0
    assert still_running([child]) == []


_STARTS_A_GROUP = """
import subprocess, sys, time
from plansmith.system.process import ProcessGroup
group = ProcessGroup()
subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 1000 & sleep 1000"], process_group=group.number)
print(group.number, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_group_ends_with_its_starter_and_so_does_what_it_started(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", _STARTS_A_GROUP], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        group = int(starter.stdout.readline())
        assert soon(lambda: len(members_of(group)) > 2, expected=True), "the leader, a shell and its children"
        starter.send_signal(number)
        assert soon(lambda: not members_of(group), expected=True)


def test_the_tail_of_a_log_is_its_last_lines_with_text(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert log_tail(log) == ""
    log.write_bytes(b"1\n2\n\n3\n\xff4\n\n")
    assert log_tail(log, 2) == "3\n�4"
