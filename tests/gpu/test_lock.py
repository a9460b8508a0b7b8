"""One process at a time has a GPU to build on; the lock goes with the process that holds it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from .machine import Device

pytestmark = pytest.mark.gpu

_SECONDS = 60

_HOLD = """
import sys
from plansmith.system.gpus import lock_gpu, visible_gpus
waiting = lambda process: print(f"waits for {process}", flush=True)
with lock_gpu(visible_gpus()[0], waiting):
    print("has it", flush=True)
    sys.stdin.read()
"""


@contextmanager
def _holder() -> Iterator[subprocess.Popen[str]]:
    """A process that takes the first GPU's lock, and gives it back when its standard input ends."""
    command = [sys.executable, "-c", _HOLD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_second_process_told_lock_holder(gpu: Device) -> None:
    """A second process waits for the first and is told which it is."""
    assert gpu.uuid
    with _holder() as first, _holder() as second:
        assert first.stdin is not None
        lines = {_line(first): first, _line(second): second}
        assert "has it" in lines
        owner = lines.pop("has it")
        ((line, waiter),) = lines.items()
        assert line == f"waits for {owner.pid}"
        assert owner.stdin is not None
        owner.stdin.close()
        assert _line(waiter) == "has it"
        assert owner.wait(_SECONDS) == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_lock_of_ended_process_is_free(number: signal.Signals) -> None:
    """The lock of a process that is ended is free."""
    with _holder() as first:
        assert _line(first) == "has it"
        with _holder() as second:
            assert _line(second) == f"waits for {first.pid}"
            first.send_signal(number)
            assert _line(second) == "has it"
