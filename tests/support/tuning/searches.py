"""Searches of computed and recorded answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.tuning.budget import Schedule, schedule_runs
from plansmith.tuning.configuration import Configuration, SearchSpace
from plansmith.tuning.objective import Goal
from plansmith.tuning.sampler import ConfigurationSampler, SamplerFactory
from plansmith.tuning.search import SearchResult, search
from plansmith.tuning.trials.history import Benchmark, TrialContext, TrialHistory
from plansmith.tuning.trials.runner import TrialProgress, TrialRunner

from .surface import CURRENT, SPACE

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


def random_sampler(seed: int) -> BaseSampler:
    """The quickest sampler of Optuna, for tests that are not about what is proposed."""
    from optuna.samplers import RandomSampler

    return RandomSampler(seed)


def context_of(space: SearchSpace) -> TrialContext:
    """Of trials that are computed."""
    builds = {build.label: f"digest of {build.label}" for build in space.builds}
    return TrialContext(builds=builds, load="load", host="host")


def make_runner(
    benchmark: Benchmark,
    folder: Path,
    *,
    session: str = "session",
    total: int = 0,
    progress: Callable[[TrialProgress], None] = lambda _: None,
    space: SearchSpace = SPACE,
) -> TrialRunner:
    """Runs trials into the history of a folder."""
    return TrialRunner(benchmark, TrialHistory(folder), context_of(space), session, total, progress)


def run_search(
    runner: TrialRunner,
    goal: Goal,
    *,
    schedule: Schedule | None = None,
    space: SearchSpace = SPACE,
    current: Configuration = CURRENT,
    seed: int = 0,
    make_sampler: SamplerFactory = random_sampler,
) -> SearchResult:
    """A search with 40 runs unless a schedule is given."""
    sampler = ConfigurationSampler(space, seed=seed, make_sampler=make_sampler)
    chosen = schedule or schedule_runs(40, seconds=8)
    return search(space, current, goal, chosen, runner, sampler=sampler)
