"""What a delivery of a registry costs `plansmith triggers serve`, how many it takes, and how soon it answers.

    python -m benchmarks.deliveries [ROUNDS] [SECONDS]

Receivers with an inbox in SQLite and in a PostgreSQL that flushes to the disk take signed deliveries of MLflow, each
new, in turn and round by round: at 100 a second for so many seconds, and then the same number as fast as 32 at once are
answered. Beside each stands one that commits every delivery by itself, in place of all that wait together. CPU time is
that of all processes of the receiver and of PostgreSQL; clients share the cores. Every answer must be 202, and in the
end all of it must be in the inbox.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from unittest.mock import patch

import psutil
from benchmarks.delivery_client import Record, Task
from tests.support.deliveries.served import Served, served
from tests.support.prefect import postgres

PER_SECOND, ALONE = 100, "--alone"
MOST_CPU_MILLISECONDS, LEAST_PER_SECOND, MOST_P99_MILLISECONDS = 1.0, 500.0, 100.0
_FLUSHES = 200
_WARM = 50
_ACCEPTED = 202
_AT_ONCE = Task("", 0).at_once


@dataclass
class Row:
    """A receiver, its client, and what each round showed."""

    name: str
    receiver: Served
    client: subprocess.Popen[str]
    database: postgres.Postgres | None
    steady_cpu: list[float] = field(default_factory=list)
    fast_cpu: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    latencies: list[list[float]] = field(default_factory=list)
    fast_latencies: list[list[float]] = field(default_factory=list)
    sent: int = 0

    def measure(self, seconds: float) -> None:
        """One round."""
        number = int(PER_SECOND * seconds)
        cpu, record = self._send(number, per_second=PER_SECOND)
        self.steady_cpu.append(cpu)
        self.latencies.append(record.latencies)
        cpu, record = self._send(number)
        self.fast_cpu.append(cpu)
        self.rates.append(number / record.seconds)
        self.fast_latencies.append(record.latencies)

    def warm(self) -> None:
        """Have it open its connections and files."""
        self._send(_WARM)

    def _send(self, number: int, **how: Any) -> tuple[float, Record]:
        """CPU milliseconds of each of so many deliveries, and what came of them."""
        assert self.client.stdin is not None
        assert self.client.stdout is not None
        before = self._cpu_seconds()
        self.client.stdin.write(json.dumps(asdict(Task(f"d{self.sent}", number, **how))) + "\n")
        self.client.stdin.flush()
        record = Record(**json.loads(self.client.stdout.readline()))
        self.sent += number
        if set(record.statuses) != {_ACCEPTED}:
            sys.exit(f"{self.name}: answers {sorted(set(record.statuses))}")
        return (self._cpu_seconds() - before) / number * 1000, record

    def _cpu_seconds(self) -> float:
        roots = [self.receiver.program.number, *([self.database.program.number] if self.database else [])]
        return sum(map(_used, roots))


def main(rounds: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        print(f"this disk flushes what is appended to a file {_flushes(Path(place)):.0f} times a second")
        rows = [
            stack.enter_context(_running(Path(place, f"{number}"), name, program=program, in_postgres=in_postgres))
            for number, (name, program, in_postgres) in enumerate(_KINDS)
        ]
        for row in rows:
            row.warm()
        for _ in range(rounds):
            for row in rows:
                row.measure(seconds)
        for row in rows:
            _show(row)
            if (count := len(row.receiver.entries())) != row.sent:
                sys.exit(f"{row.name}: {count} of {row.sent} deliveries are in the inbox")
    _compare(*rows)


_PLAIN, _BY_ITSELF = ("-m", "plansmith"), ("-m", "benchmarks.deliveries", ALONE)
_KINDS = (
    ("SQLite", _PLAIN, False),
    ("SQLite, one a commit", _BY_ITSELF, False),
    ("PostgreSQL", _PLAIN, True),
    ("PostgreSQL, one a commit", _BY_ITSELF, True),
)


@contextmanager
def _running(folder: Path, name: str, *, program: Sequence[str], in_postgres: bool) -> Iterator[Row]:
    with ExitStack() as stack:
        database = stack.enter_context(postgres.running(durable=True)) if in_postgres else None
        url = database.url.replace("+asyncpg", "") if database else ""
        receiver = stack.enter_context(served(folder, database=url, program=program))
        command = [sys.executable, "-m", "benchmarks.delivery_client", str(receiver.port)]
        client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        stack.callback(client.wait)
        stack.callback(client.kill)
        yield Row(name, receiver, client, database)


def _used(root: int) -> float:
    """CPU seconds of a process and all that it started, those that have ended included."""
    total = 0.0
    first = psutil.Process(root)
    for process in (first, *first.children(recursive=True)):
        used = process.cpu_times()
        total += used.user + used.system + used.children_user + used.children_system
    return total


def _flushes(place: Path) -> float:
    begun = time.monotonic()
    with (place / "flushed").open("ab", buffering=0) as file:
        for _ in range(_FLUSHES):
            file.write(b"x" * 4096)
            os.fdatasync(file.fileno())
    return _FLUSHES / (time.monotonic() - begun)


def _show(row: Row) -> None:
    p50, p99 = ([quantiles(series, n=100)[percent - 1] * 1000 for series in row.latencies] for percent in (50, 99))
    print(
        f"{row.name:<26} {PER_SECOND}/s: {_summary(row.steady_cpu)} CPU ms, p50 {_summary(p50)} ms, p99 {_summary(p99)}"
        f" ms; at most {_summary(row.rates)}/s: {_summary(row.fast_cpu)} CPU ms"
    )


def _summary(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _compare(sqlite: Row, sqlite_alone: Row, postgresql: Row, postgresql_alone: Row) -> None:
    """Ratios of the same rounds."""
    of: tuple[tuple[str, Callable[[Row], list[float]]], ...] = (
        ("times as many a second", lambda row: row.rates),
        (f"times the CPU at {PER_SECOND}/s", lambda row: row.steady_cpu),
        ("times the CPU at most", lambda row: row.fast_cpu),
    )
    pairs = (
        ("SQLite, all that wait : one a commit", sqlite, sqlite_alone),
        ("PostgreSQL, all that wait : one a commit", postgresql, postgresql_alone),
        ("SQLite : PostgreSQL", sqlite, postgresql),
    )
    for label, ours, theirs in pairs:
        ratios = [
            f"{_summary([a / b for a, b in zip(read(ours), read(theirs), strict=True)])} {unit}" for unit, read in of
        ]
        print(f"{label:<42} {', '.join(ratios)}")
    for row in (sqlite, postgresql):
        cpu, rate = median(row.fast_cpu), median(row.rates)
        p99 = median(quantiles(series, n=100)[98] * 1000 for series in row.fast_latencies)
        met = cpu <= MOST_CPU_MILLISECONDS and rate >= LEAST_PER_SECOND and p99 < MOST_P99_MILLISECONDS
        print(
            f"{row.name} at most: {cpu:.2f} CPU ms a delivery, {rate:.0f} a second, p99 {p99:.1f} ms; the aim, at most"
            f" {MOST_CPU_MILLISECONDS:.0f}, at least {LEAST_PER_SECOND:.0f}, below {MOST_P99_MILLISECONDS:.0f}, is"
            f" {'met' if met else 'MISSED'}"
        )


def serve_alone(arguments: list[str]) -> None:
    """The command line of plansmith, whose inbox commits each delivery by itself."""
    from plansmith.cli import main as plansmith

    class Alone:
        def __init__(self, do: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
            self._do, self._threads = do, ThreadPoolExecutor(_AT_ONCE)

        async def __call__(self, request: Any) -> Any:
            return (await asyncio.get_running_loop().run_in_executor(self._threads, self._do, [request]))[0]

    with patch("plansmith.triggers.receiver.application.GroupCommit", Alone):
        sys.argv = ["plansmith", *arguments]
        plansmith()


if __name__ == "__main__":
    if sys.argv[1:2] == [ALONE]:
        serve_alone(sys.argv[2:])
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5, float(sys.argv[2]) if len(sys.argv) > 2 else 10)
