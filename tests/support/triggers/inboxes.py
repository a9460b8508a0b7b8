"""Inboxes for tests: a clock that is set, events, and other processes that work on the same one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from plansmith.triggers.inbox.inbox import Inbox, open_inbox
from plansmith.triggers.registries.delivery import Event

REGISTRY = "mlflow"
LEASE = 60.0
ENDS_SECONDS = 120


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 20, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def go(self, **by: float) -> datetime:
        """Let time pass: seconds, minutes, hours or days."""
        self.now += timedelta(**by)
        return self.now


def event(model: str, version: int = 1) -> Event:
    """Somebody made a version the champion."""
    return Event(registry=REGISTRY, model=model, version=str(version), change="alias", value="champion")


def created_event(model: str, version: int = 1) -> Event:
    """Somebody made a version, which stays beside those that come after it."""
    return event(model, version).model_copy(update={"change": "created", "value": ""})


@contextmanager
def opened(url: str, clock: Clock | None = None) -> Iterator[Inbox]:
    """An inbox for the length of a block."""
    inbox = open_inbox(url) if clock is None else open_inbox(url, clock=clock)
    try:
        yield inbox
    finally:
        inbox.close()


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    """A process of its own that works on an inbox; it prints a line for each thing it did."""
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name(script)), *arguments], stdout=subprocess.PIPE, text=True
    )


def start_module(name: str, *arguments: str) -> subprocess.Popen[str]:
    """As `start`, of a module of these tests that needs others of them."""
    command = [sys.executable, "-m", f"tests.support.triggers.{name}", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3])


def lines_of(process: subprocess.Popen[str], number: int) -> list[str]:
    """The next lines that a process prints, as it prints them."""
    assert process.stdout is not None
    lines = [process.stdout.readline().strip() for _ in range(number)]
    assert all(lines), f"it ended: {process.poll()}"
    return lines


def killed(process: subprocess.Popen[str]) -> list[str]:
    """SIGKILL to a process; what it had printed by then and nobody had read."""
    process.kill()
    return [line.strip() for line in _remaining_lines(process) if line.endswith("\n")]


def finished(process: subprocess.Popen[str]) -> list[str]:
    """All that a process prints until it has ended well."""
    lines = _remaining_lines(process)
    assert process.returncode == 0
    return [line.strip() for line in lines]


def _remaining_lines(process: subprocess.Popen[str]) -> list[str]:
    """What it prints until its end; with what was read ahead with the lines before, which `communicate` passes over."""
    assert process.stdout is not None
    with process.stdout as output:
        lines = output.readlines()
    process.wait(ENDS_SECONDS)
    return lines
