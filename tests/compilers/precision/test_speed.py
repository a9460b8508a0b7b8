"""How much faster a candidate is: told with an interval that holds, without looking at a real clock."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest

from plansmith.compilers.precision import benchmark
from plansmith.records.model import SpeedRatio

from ...support.precision import lint_graphs


class FakeMachine:
    """Runs that cost what a distribution says, on a clock of their own; it remembers who ran when."""

    def __init__(self, costs: dict[str, Callable[[np.random.Generator], float]], seed: int = 0) -> None:
        self.now = 0.0
        self.ran: list[str] = []
        self._noise = np.random.default_rng(seed)
        self.runs = {name: self._runner(name, cost) for name, cost in costs.items()}

    def clock(self) -> float:
        return self.now

    def _runner(self, name: str, cost: Callable[[np.random.Generator], float]) -> Callable[[], None]:
        def run() -> None:
            self.ran.append(name)
            self.now += cost(self._noise)

        return run

    def race(self, budget_seconds: float = 1e9) -> dict[str, SpeedRatio]:
        return benchmark.race(
            self.runs,
            "fp32",
            setting="fake",
            clock=self.clock,
            wall=self.clock,
            budget_seconds=budget_seconds,
        ).result


def noisy(seconds: float, spread: float = 0.1) -> Callable[[np.random.Generator], float]:
    """Skewed, with a long tail, as measured times are."""
    return lambda noise: seconds * float(np.exp(spread * noise.normal() + (noise.random() < 0.05) * 1.5))


def test_double_speed_told_after_first_look() -> None:
    """Twice as fast is told after the first look."""
    result = FakeMachine({"fp32": lambda _: 2.0, "int8": lambda _: 1.0}).race()["int8"]
    assert (result.ratio, result.low, result.high) == (2.0, 2.0, 2.0)
    assert (result.verdict, result.repeats) == ("faster", benchmark.LOOKS[0])


def test_half_speed_told_as_slower() -> None:
    """Half as fast is told as slower."""
    assert FakeMachine({"fp32": noisy(1.0), "fp16": noisy(2.0)}).race()["fp16"].verdict == "slower"


def test_same_speed_stays_undecided() -> None:
    """The same speed stays undecided to the last look."""
    result = FakeMachine({"fp32": noisy(1.0), "twin": noisy(1.0)}, seed=3).race()["twin"]
    assert (result.verdict, result.repeats) == ("undecided", benchmark.LOOKS[-1])
    assert result.low <= 1 <= result.high


def test_exact_parity_is_clear() -> None:
    """Exact parity is clear at once."""
    result = FakeMachine({"fp32": lambda _: 1.0, "twin": lambda _: 1.0}).race()["twin"]
    assert (result.verdict, result.repeats) == ("undecided", benchmark.LOOKS[0])


def test_unclear_candidate_keeps_all_running() -> None:
    """One candidate that is not clear keeps all running."""
    machine = FakeMachine({"fp32": noisy(1.0), "fast": noisy(0.2), "twin": noisy(1.0)}, seed=3)
    assert {result.repeats for result in machine.race().values()} == {benchmark.LOOKS[-1]}


def test_budget_ends_race_after_look() -> None:
    """The budget ends the race after a look, and never before the first."""
    costs = {"fp32": noisy(1.0), "twin": noisy(1.0)}
    assert FakeMachine(costs, seed=3).race(budget_seconds=0.1)["twin"].repeats == benchmark.LOOKS[0]
    assert FakeMachine(costs, seed=3).race(budget_seconds=50)["twin"].repeats == benchmark.LOOKS[1]


def test_every_candidate_runs_each_round() -> None:
    """Every candidate runs once a round, and first as often as the others."""
    machine = FakeMachine({"fp32": noisy(1.0), "a": noisy(1.0), "b": noisy(1.0), "c": noisy(1.0)}, seed=3)
    machine.race()
    rounds = [machine.ran[i : i + 4] for i in range(0, len(machine.ran), 4)][2:]
    assert len(rounds) == benchmark.LOOKS[-1]
    assert all(sorted(names) == ["a", "b", "c", "fp32"] for names in rounds)
    assert {name: sum(names[0] == name for names in rounds) for name in machine.runs} == dict.fromkeys(
        machine.runs, benchmark.LOOKS[-1] // 4
    )
    followers = {(x, y) for names in rounds for x, y in pairwise(names)}
    assert ("a", "b") in followers
    assert ("b", "a") in followers


def test_machine_slowdown_cancels_out() -> None:
    """The load changes from round to round by a factor of five; the ratio does not."""
    machine = FakeMachine({"fp32": lambda _: 1.3, "int8": lambda _: 1.0})
    load = np.random.default_rng(1).uniform(1, 5, 200)
    slowed = {
        name: (lambda name=name: setattr(machine, "now", machine.now + (1.3 if name == "fp32" else 1.0) * factor()))
        for name in machine.runs
    }
    calls = iter(np.repeat(load, 2))

    def factor() -> float:
        return float(next(calls))

    results = benchmark.race(
        slowed, "fp32", setting="fake", clock=machine.clock, wall=machine.clock, budget_seconds=1e9
    ).result
    assert results["int8"].low == pytest.approx(1.3)
    assert results["int8"].high == pytest.approx(1.3)


def test_sign_test_interval_matches_tables() -> None:
    """Two-sided 95 %: 6 values give the smallest and the largest, 10 the second, 20 the sixth, 64 the 24th."""
    for count, place in ((6, 1), (10, 2), (20, 6), (64, 24)):
        assert benchmark.median_interval(range(1, count + 1), 0.05) == (place, count + 1 - place)


def test_too_few_values_lack_interval() -> None:
    """Too few values have no interval."""
    with pytest.raises(ValueError, match="5 values"):
        benchmark.median_interval([1.0] * 5, 0.05)


@pytest.mark.parametrize("truth", [1.0, 1.05])
def test_interval_holds_truth(truth: float) -> None:
    """Among 1000 races with skewed times the median ratio is in at least 95 % of the intervals."""
    hits = 0
    for seed in range(1000):
        result = FakeMachine({"fp32": noisy(truth, 0.05), "int8": noisy(1.0, 0.05)}, seed).race()["int8"]
        hits += result.low <= truth <= result.high
    assert hits >= 950


def test_same_rounds_decide_faster_candidate() -> None:
    """One candidate is faster than another only where the same rounds leave no doubt."""
    race = benchmark.Race(("fp32", "a", "b", "c"), "fp32", "fake")
    rng = np.random.default_rng(0)
    for _ in range(benchmark.LOOKS[0]):
        load = rng.uniform(1, 5)
        race.add({"fp32": 2.0 * load, "a": 1.0 * load, "b": 0.98 * load, "c": load * rng.uniform(0.8, 1.2)})
    assert race.is_faster("b", "a")
    assert not race.is_faster("a", "b")
    assert not race.is_faster("c", "a")
    assert not race.is_faster("a", "c")


def test_fp16_graph_fed_fp16(tmp_path: Path) -> None:
    """What clients send then is FP16 too, so that the cast is not part of what is measured."""
    for name, kind in (("fp32", "float"), ("fp16", "float16")):
        text = f'<ir_version: 8, opset_import: ["": 18]> g ({kind}[n, 4] x) => ({kind}[n, 4] y) {{ y = Abs (x) }}'
        onnx.save(onnx.parser.parse_model(text), tmp_path / f"{name}.onnx")
    paths = {name: tmp_path / f"{name}.onnx" for name in ("fp32", "fp16")}
    results = benchmark.compare(paths, "fp32", {"x": np.ones((2, 4), np.float32)}, budget_seconds=1).result
    assert results["fp16"].ratio > 0


def test_real_race_says_measurements(tmp_path: Path) -> None:
    """A real race of two graphs says what it measured."""
    model = lint_graphs.cnn()
    for name in ("fp32.onnx", "twin.onnx"):
        onnx.save(model, tmp_path / name)
    feed = lint_graphs.feeds_of(model)[0]
    results = benchmark.compare(
        {"fp32": tmp_path / "fp32.onnx", "twin": tmp_path / "twin.onnx"}, "fp32", feed, budget_seconds=1
    ).result
    assert list(results) == ["twin"]
    assert results["twin"].setting.startswith("1x3x12x12, 1 thread, CPU seconds, ONNX Runtime, ")
    assert 0 < results["twin"].low <= results["twin"].ratio <= results["twin"].high
