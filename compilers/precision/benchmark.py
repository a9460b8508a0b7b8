"""Benchmark of a candidate against FP32: interleaved repeats, paired ratios, distribution-free interval."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Literal

from plansmith.records.model import SpeedRatio

if TYPE_CHECKING:
    import onnxruntime

    from plansmith.records.arrays import Arrays


Run = Callable[[], object]
Clock = Callable[[], float]

# The intervals are looked at after so many rounds, and never in between: each look is one more chance to be fooled, so
# that the looks share the 5 % between them and whichever ends the race, its interval holds with 95 %.
LOOKS = (8, 16, 32, 64)
_ERROR_PER_LOOK = 0.05 / len(LOOKS)
_WARM_UP_ROUNDS = 2
# So close to 1 on both sides, nobody would choose by it.
_PARITY = 0.01
_CPU_INFO = Path("/proc/cpuinfo")
_INT8_FLAGS = ("amx_int8", "avx512_vnni", "avx_vnni", "asimddp", "i8mm")
_ERRORS_ONLY = 3
_LOWER_FLOATS = {"tensor(float16)": "float16"}
"""What a graph may take where FP32 took 32 bits; ONNX Runtime has no kernels for BF16 on a CPU."""


def compare(
    candidates: Mapping[str, Path],
    baseline: str,
    feed: Arrays,
    *,
    threads: int = 1,
    budget_seconds: float = 30.0,
) -> Race:
    """Measure the speedup of graphs over a baseline graph in ONNX Runtime on this machine's CPU.

    Args:
        candidates: the graphs by name, the baseline among them.
        baseline: which of them the others are compared with.
        feed: inputs at the shape that matters.
        threads: of a session. One thread is measured in its own CPU seconds, which what else runs on the machine does
            not count into; several in wall seconds, as their CPU seconds would not tell how long a client waits.
        budget_seconds: after so long no further repeats are begun; the first look is always taken.
    """
    clock = time.thread_time if threads == 1 else time.perf_counter
    runs = {name: session_run(path, feed, threads) for name, path in candidates.items()}
    unit = "CPU seconds" if threads == 1 else "wall seconds"
    shape = "x".join(map(str, next(iter(feed.values())).shape))
    setting = f"{shape}, {threads} thread{'s' if threads > 1 else ''}, {unit}, ONNX Runtime, {machine()}"
    return race(runs, baseline, setting=setting, clock=clock, budget_seconds=budget_seconds)


def race(
    runs: Mapping[str, Run],
    baseline: str,
    *,
    setting: str,
    clock: Clock = time.thread_time,
    budget_seconds: float = 30.0,
    wall: Clock = time.monotonic,
) -> Race:
    """Measure speedups over a baseline, with one run each per round, until the results are clear or the time is up.

    Args:
        runs: what is measured, by name, the baseline among them.
        baseline: which of them the others are compared with.
        setting: shape, threads and machine in words, for the record.
        clock: what a run costs, in seconds.
        budget_seconds: after so long no further rounds are begun; the first look is always taken.
        wall: what the budget is counted by.
    """
    contest = Race(tuple(runs), baseline, setting)
    started = wall()
    for place in range(_WARM_UP_ROUNDS):
        for name in contest.order(place):
            runs[name]()
    for look in LOOKS:
        begun = wall()
        if (
            contest.rounds
            and begun - started + (begun - started) / contest.rounds * (look - contest.rounds) > budget_seconds
        ):
            break
        while contest.rounds < look:
            costs = {}
            for name in contest.order(contest.rounds):
                before = clock()
                runs[name]()
                costs[name] = clock() - before
            contest.add(costs)
        if all(is_clear(low, high) for _, low, high in map(contest.interval, contest.others)):
            break
    return contest


@dataclass
class Race:
    """Race: the participants and the ratios so far, the baseline's cost over the candidate's, per round.

    Args:
        names: of all that run, the baseline's among them.
        baseline: which of them the others are compared with.
        setting: shape, threads and machine in words, for the record.
    """

    names: Sequence[str]
    baseline: str
    setting: str
    rounds: int = 0
    ratios: dict[str, list[float]] = field(default_factory=dict)

    @property
    def others(self) -> list[str]:
        """All participants except the baseline."""
        return [name for name in self.names if name != self.baseline]

    @property
    def result(self) -> dict[str, SpeedRatio]:
        """The speedup of each other participant over the baseline."""
        return {name: _record(*self.interval(name), self.rounds, self.setting) for name in self.others}

    def is_faster(self, name: str, than: str) -> bool:
        """Whether a participant is significantly faster than another, by the ratios of the same rounds."""
        paired = [first / second for first, second in zip(self.ratios[name], self.ratios[than], strict=True)]
        return verdict_of(*median_interval(paired, _ERROR_PER_LOOK)) == "faster"

    def order(self, place: int) -> list[str]:
        """Return the run order: rotated, and reversed every other time, so that no participant has a fixed place."""
        start = place // 2 % len(self.names)
        names = [*self.names[start:], *self.names[:start]]
        return names[::-1] if place % 2 else names

    def add(self, costs: Mapping[str, float]) -> None:
        """Add a round."""
        self.rounds += 1
        for name in self.others:
            self.ratios.setdefault(name, []).append(costs[self.baseline] / costs[name])

    def interval(self, name: str) -> tuple[float, float, float]:
        """Return the ratio to the baseline, and the ends of its confidence interval."""
        return median(self.ratios[name]), *median_interval(self.ratios[name], _ERROR_PER_LOOK)


def median_interval(values: Sequence[float], error: float) -> tuple[float, float]:
    """Return the confidence interval of the values' median, with this error probability.

    Of n values as many as a fair coin shows heads are below the median, whatever the distribution: the k-th smallest
    and the k-th largest enclose it unless fewer than k are on one side (the interval of the sign test).

    Raises:
        ValueError: there are too few values for any such interval.
    """
    count = len(values)
    tails = accumulate(math.comb(count, below) / 2**count for below in range(count))
    enclosed = sum(1 for tail in tails if 2 * tail <= error)
    if enclosed == 0:
        raise ValueError(f"{count} values give no interval with an error of {error:g}")
    ordered = sorted(values)
    return ordered[enclosed - 1], ordered[count - enclosed]


def is_clear(low: float, high: float) -> bool:
    """Whether more rounds would change nothing: the interval excludes parity, or is within parity."""
    return verdict_of(low, high) != "undecided" or (low >= 1 - _PARITY and high <= 1 + _PARITY)


def verdict_of(low: float, high: float) -> Literal["faster", "slower", "undecided"]:
    """Return the verdict of an interval; "undecided" if it contains 1."""
    if low > 1:
        return "faster"
    return "slower" if high < 1 else "undecided"


def _record(ratio: float, low: float, high: float, rounds: int, setting: str) -> SpeedRatio:
    return SpeedRatio(ratio=ratio, low=low, high=high, repeats=rounds, setting=setting, verdict=verdict_of(low, high))


def session_run(path: Path, feed: Arrays, threads: int) -> Run:
    """Return a run of a graph on its inputs, in a session with all optimizations, as in Triton's backend."""
    session = _open(path, threads)
    inputs = {
        value.name: feed[value.name].astype(_LOWER_FLOATS.get(value.type, feed[value.name].dtype), copy=False)
        for value in session.get_inputs()
    }
    return lambda: session.run(None, inputs)


def _open(path: Path, threads: int) -> onnxruntime.InferenceSession:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def machine() -> str:
    """Return the CPU's name with its INT8 features: INT8 that is fast on one CPU is slow on another."""
    parts = [platform.machine()]
    if _CPU_INFO.exists():
        lines = _CPU_INFO.read_text(encoding="utf-8").splitlines()
        facts = {key.strip().lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        flags = set(f"{facts.get('flags', '')} {facts.get('features', '')}".split())
        parts += [facts["model name"]] if "model name" in facts else []
        parts += [flag for flag in _INT8_FLAGS if flag in flags]
    return ", ".join([*parts, f"{os.cpu_count()} CPUs"])
