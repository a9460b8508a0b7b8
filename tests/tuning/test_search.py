"""A search finds what a full grid would find, with a small share of its runs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from plansmith.tuning.budget import default_schedule, schedule_runs
from plansmith.tuning.configuration import Configuration
from plansmith.tuning.objective import Goal, Objective, parse_constraints
from plansmith.tuning.sampler import ConfigurationSampler, gaussian_process

from ..support.tuning.recorded import recorded_grid
from ..support.tuning.searches import make_runner, random_sampler, run_search
from ..support.tuning.surface import CURRENT, INT8, PYTHON, SPACE, Surface


@pytest.mark.slow
@pytest.mark.parametrize(("model", "number"), [("cnn", 0), ("cnn", 1), ("minilm", 0), ("mobilenet", 0)])
@pytest.mark.parametrize("objective", ["throughput", "latency"])
def test_search_of_recorded_grid(objective: Objective, model: str, number: int, tmp_path: Path) -> None:
    """With 10 % of the runs of a grid that a real server answered, 95 % of the best objective is found."""
    grid, goal = recorded_grid(model).only(number), Goal(objective=objective)
    schedule = default_schedule(grid.space.size, seconds=12)
    assert schedule.search_runs <= 0.1 * grid.space.size
    runner = make_runner(grid.measure, tmp_path, space=grid.space)
    result = run_search(
        runner, goal, schedule=schedule, space=grid.space, current=grid.current, make_sampler=gaussian_process
    )
    assert sum(not trial.round_number for trial in result.trials) <= schedule.search_runs
    assert grid.share_of_best(goal, result.best.configuration) >= 0.95


CONSTRAINED = {
    "little memory": Goal(constraints=parse_constraints(["memory<250M"])),
    "short latency": Goal(constraints=parse_constraints(["p95<22ms"])),
    "cost": Goal(objective="cost", usd_per_hour=0.5),
}


@pytest.mark.slow
@pytest.mark.parametrize("goal", CONSTRAINED.values(), ids=CONSTRAINED.keys())
def test_search_of_noisy_surface(goal: Goal, tmp_path: Path) -> None:
    """Of noisy answers, less than 5 % of a grid's runs find 95 % of the best that meets the constraints."""
    schedule = schedule_runs(40, seconds=8)
    assert schedule.search_runs < 0.05 * SPACE.size
    best = min((Surface().true(configuration) for configuration in SPACE.points), key=goal.rank)
    surface = Surface()
    result = run_search(make_runner(surface, tmp_path), goal, schedule=schedule, make_sampler=gaussian_process)
    measurement = surface.true(result.best.configuration)
    assert goal.is_met(measurement)
    assert goal.gain(measurement, best) >= 0.95, result.best.configuration.label


def test_current_and_builds_come_first(tmp_path: Path) -> None:
    """The current configuration is tried first, then one of each other build."""
    surface = Surface()
    run_search(make_runner(surface, tmp_path), Goal(), schedule=schedule_runs(14, seconds=8))
    first = [configuration for configuration, _ in surface.requests[: len(SPACE.builds)]]
    assert first[0] == CURRENT
    assert {configuration.build for configuration in first} == set(SPACE.builds)


def test_halving_runs_the_best_longer(tmp_path: Path) -> None:
    """No configuration is screened twice, and each rung runs the best of the one below for twice as long."""
    schedule = schedule_runs(67, seconds=8)
    result = run_search(make_runner(Surface(noise=0), tmp_path), Goal(), schedule=schedule)
    assert len(result.trials) == 67
    screened = result.trials[: schedule.screening]
    assert len({trial.configuration for trial in screened}) == schedule.screening
    assert [schedule.rung_seconds(rung) for rung in range(3)] == [2, 4, 8]
    rates = sorted((entry.measurement.throughput for entry in screened if entry.measurement), reverse=True)
    rung = result.trials[schedule.screening : schedule.screening + schedule.rungs[0]]
    assert {trial.seconds for trial in rung} == {4}
    assert [entry.measurement.throughput for entry in rung if entry.measurement] == rates[: schedule.rungs[0]]


def test_winner_confirmed_beside_current(tmp_path: Path) -> None:
    """What wins has run beside the current configuration in rounds whose order alternates, with an interval above 1."""
    surface = Surface()
    result = run_search(make_runner(surface, tmp_path), Goal())
    assert result.confirmation is not None
    assert result.confirmation.gain is not None
    assert result.is_better
    assert 1 < result.confirmation.gain.low <= result.confirmation.gain.value <= result.confirmation.gain.high
    rounds = [configuration == CURRENT for configuration, _ in surface.requests[-2 * len(result.confirmation.rounds) :]]
    assert rounds == [True, False, False, True] * 2 + [True, False]


def test_failed_trials_continue_search(tmp_path: Path) -> None:
    """Configurations that cannot be served are results with their reason, and are ranked last."""
    surface = Surface(fails=lambda point: "the server died" if point.build == INT8 else "")
    result = run_search(make_runner(surface, tmp_path), Goal())
    failed = [trial for trial in result.ranking if trial.measurement is None]
    assert failed
    assert {trial.problem for trial in failed} == {"the server died"}
    assert list(result.ranking[-len(failed) :]) == failed
    assert result.best.configuration.build != INT8


def test_nearest_first_when_unmet(tmp_path: Path) -> None:
    """Without an acceptable configuration nothing is confirmed, and the nearest one is the best."""
    goal = Goal(constraints=parse_constraints(["p95<1ms"]))
    surface = Surface(noise=0)
    result = run_search(make_runner(surface, tmp_path), goal)
    assert result.confirmations == ()
    latencies = [surface.true(trial.configuration).p95_ms for trial in result.trials]
    assert surface.true(result.best.configuration).p95_ms == min(latencies)


def test_time_limit_ends_each_phase(tmp_path: Path) -> None:
    """A budget of time leaves its last part to the confirmation."""
    runner = make_runner(Surface(), tmp_path)
    runner.limit_seconds = 100

    def count(_: object) -> None:
        runner.used_seconds = sum(trial.seconds for trial in runner.trials)

    runner.progress = count
    result = run_search(runner, Goal(), schedule=schedule_runs(200, seconds=8))
    assert len(result.trials) < 60
    assert result.confirmations
    assert runner.used_seconds < 100 + 3 * 16


def test_proposals_avoid_what_failed() -> None:
    """The scale of the scores does not matter, and a configuration that failed is proposed no second time."""

    def proposals(offset: float) -> list[Configuration]:
        sampler = ConfigurationSampler(SPACE, seed=0, make_sampler=random_sampler)
        tried: list[Configuration] = []
        while len(tried) < 20 and (proposal := sampler.propose(tried)) is not None:
            tried.append(proposal)
            is_failed = proposal.build == PYTHON
            sampler.tell(proposal, -math.inf if is_failed else Goal().score(Surface().true(proposal)) + offset)
        return tried

    assert len(set(proposals(0))) == 20
    assert proposals(0) == proposals(20)


def test_small_space_is_screened_whole(tmp_path: Path) -> None:
    """A schedule is limited to the configurations that there are."""
    space = SPACE.model_copy(
        update={"builds": (CURRENT.build,), "preferences": ("none",), "instances_and_threads": ((1, 0),)}
    )
    schedule = schedule_runs(60, seconds=8).limited_to(space.size)
    current = next(point for point in space.points if point.max_batch_size > 1)
    runner = make_runner(Surface(noise=0), tmp_path, space=space)
    result = run_search(runner, Goal(), schedule=schedule, space=space, current=current)
    assert len({trial.configuration for trial in result.trials}) == space.size
    assert len(result.trials) <= schedule.runs
