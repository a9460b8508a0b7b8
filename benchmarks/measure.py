"""Runs a command and reads what it cost: CPU seconds of it and its children, wall seconds, peak memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import venv
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

_SAMPLE_SECONDS = 0.05

PLANSMITH = (sys.executable, "-m", "plansmith")


@dataclass(frozen=True)
class Cost:
    """CPU and wall seconds, and the largest sum of resident memory of the process tree, in MiB."""

    cpu_seconds: float
    wall_seconds: float
    peak_mib: float


def run(command: list[str], *, environment: dict[str, str] | None = None) -> Cost:
    """Run a command to its end; its standard output is thrown away.

    Raises:
        SystemExit: the command failed.
    """
    started = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, **(environment or {})}
    )
    watched, peak = psutil.Process(process.pid), 0
    while not _ended(process.pid):
        peak = max(peak, _resident(watched))
        time.sleep(_SAMPLE_SECONDS)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        assert process.stderr is not None
        sys.exit(f"{' '.join(command)} failed:\n{process.stderr.read().decode()[-2000:]}")
    return Cost(usage.ru_utime + usage.ru_stime, time.monotonic() - started, peak / 2**20)


def environment_with(package: str) -> Path:
    """Return the Python of an environment with a package that only benchmarks need, which is made on first use."""
    folder = Path("artifacts", "benchmarks", package)
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", package], check=True)
        (folder / "complete").touch()
    return python


@dataclass(frozen=True)
class Comparison:
    """A figure of two commands that ran in turn: medians, and the ratio pair by pair with its range."""

    label: str
    unit: str
    ours: float
    theirs: float
    ratio: float
    lowest: float
    highest: float


def compare(ours: list[Cost], theirs: list[Cost], label: str, baseline: str = "plain") -> list[Comparison]:
    """Print and return how two commands that ran in turn compare."""
    comparisons = []
    for name, unit in (("cpu_seconds", "CPU s"), ("wall_seconds", "wall s"), ("peak_mib", "MiB peak")):
        a, b = [getattr(c, name) for c in ours], [getattr(c, name) for c in theirs]
        ratios = sorted(x / y for x, y in zip(a, b, strict=True))
        row = Comparison(label, unit, median(a), median(b), median(ratios), ratios[0], ratios[-1])
        comparisons.append(row)
        print(
            f"{label:<28} {unit:<9} plansmith {row.ours:8.2f}   {baseline} {row.theirs:8.2f}"
            f"   ratio {row.ratio:.2f} ({row.lowest:.2f} to {row.highest:.2f})",
            flush=True,
        )
    return comparisons


def cpu_seconds(*, without: Collection[int]) -> float:
    """CPU seconds so far of all processes that this one has started, and those started, but for these by their ids."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        if process.pid not in without:
            used = process.cpu_times()
            total += used.user + used.system
    return total


def _ended(pid: int) -> bool:
    """The process is waiting to be reaped; it is left so, for wait4 to read what it used."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _resident(process: psutil.Process) -> int:
    total = 0
    for member in [process, *process.children(recursive=True)]:
        try:
            total += member.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total
