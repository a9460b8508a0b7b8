"""The search: short trials of many configurations, longer ones of the best, confirmation beside the current one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from plansmith.records.model import Record
from plansmith.tuning.budget import Schedule, count_by_seconds, describe_runs
from plansmith.tuning.configuration import Configuration
from plansmith.tuning.confirmation import Confirmation, confirm
from plansmith.tuning.objective import Goal
from plansmith.tuning.sampler import ConfigurationSampler
from plansmith.tuning.search_space import SearchSpace, similar_of_other_builds
from plansmith.tuning.trials.history import Trial
from plansmith.tuning.trials.runner import TrialRunner

_SCREENING_SHARE, _HALVING_SHARE = 0.5, 0.7
"""Of a time limit: what may be used when the phase ends; the confirmation has the rest."""


class SearchResult(Record):
    """The result of a search.

    Attributes:
        current: how the model is served now.
        trials: all, in their order.
        measured: how many of them were not in the history.
        ranking: the longest trial of each configuration, best first: then those that violate constraints, the nearest
            first, and last those that could not be served.
        confirmations: of the best ones beside the current one, the last of which counts; empty where the current
            configuration is the best, or nothing meets the constraints.
    """

    current: Configuration
    trials: tuple[Trial, ...]
    measured: int
    ranking: tuple[Trial, ...]
    confirmations: tuple[Confirmation, ...] = ()

    @property
    def runs(self) -> str:
        """The trials by length, in words."""
        rounds = {trial.round_number: trial.seconds for trial in self.trials if trial.round_number}
        search = [trial.seconds for trial in self.trials if not trial.round_number]
        return describe_runs(count_by_seconds(search), count_by_seconds(list(rounds.values())))

    @property
    def confirmation(self) -> Confirmation | None:
        """The one that counts."""
        return self.confirmations[-1] if self.confirmations else None

    @property
    def is_better(self) -> bool:
        """Whether the best configuration may replace the current one."""
        return self.confirmation is not None and self.confirmation.is_better

    @property
    def best(self) -> Trial:
        """The best trial of the search: of the confirmed configuration, where one was confirmed."""
        if self.confirmation is None:
            return self.ranking[0]
        return next(trial for trial in self.ranking if trial.configuration == self.confirmation.candidate)


def search(
    space: SearchSpace,
    current: Configuration,
    goal: Goal,
    schedule: Schedule,
    runner: TrialRunner,
    *,
    sampler: ConfigurationSampler,
) -> SearchResult:
    """Look for the best configuration of a space, beginning with the current one.

    The same arguments and the same finished trials lead to the same search: so an interrupted one is resumed.

    Args:
        space: the configurations.
        current: how the model is served now, in the space or not.
        goal: objective and constraints.
        schedule: the trials of each phase.
        runner: of the trials.
        sampler: proposes what to try; without results yet.
    """
    trials = screen(space, current, goal, schedule, runner, sampler=sampler)
    longest = {trial.configuration: trial for trial in trials}
    chosen = trials
    for rung, count in enumerate(schedule.rungs, 1):
        chosen = [
            runner.run("halving", trial.configuration, schedule.rung_seconds(rung))
            for trial in rank(goal, chosen)[:count]
            if trial.measurement is not None and runner.has_time(_HALVING_SHARE)
        ] or chosen
        longest |= {trial.configuration: trial for trial in chosen}
    ranking = _rank_by_length(goal, list(longest.values()))
    confirmations: tuple[Confirmation, ...] = ()
    acceptable = [trial.configuration for trial in ranking if trial.measurement and goal.is_met(trial.measurement)]
    if acceptable and acceptable[0] != current:
        confirmations = confirm(current, acceptable, goal, schedule, runner)
    return SearchResult(
        current=current,
        trials=tuple(runner.trials),
        measured=runner.measured,
        ranking=tuple(ranking),
        confirmations=confirmations,
    )


def screen(
    space: SearchSpace,
    current: Configuration,
    goal: Goal,
    schedule: Schedule,
    runner: TrialRunner,
    *,
    sampler: ConfigurationSampler,
) -> list[Trial]:
    """Short trials of the current configuration, the same with each other build, and what the sampler proposes."""
    trials: dict[Configuration, Trial] = {}
    queue = [current, *similar_of_other_builds(space, current)][: schedule.screening]
    while len(trials) < schedule.screening and (not trials or runner.has_time(_SCREENING_SHARE)):
        configuration = queue.pop(0) if queue else sampler.propose(trials)
        if configuration is None:
            break
        trial = runner.run("screening", configuration, schedule.rung_seconds(0))
        trials[configuration] = trial
        if trial.measurement is None:
            sampler.tell(configuration, -math.inf)
        else:
            sampler.tell(configuration, goal.score(trial.measurement), goal.violations(trial.measurement))
    return list(trials.values())


def rank(goal: Goal, trials: Sequence[Trial]) -> list[Trial]:
    """Best first; those that could not be served last."""

    def key(trial: Trial) -> tuple[float, float]:
        return (math.inf, 0.0) if trial.measurement is None else goal.rank(trial.measurement)

    return sorted(trials, key=key)


def _rank_by_length(goal: Goal, trials: Sequence[Trial]) -> list[Trial]:
    """What meets the constraints: longest trials first, best first among them; then the rest, the nearest first."""
    places = {id(trial): place for place, trial in enumerate(rank(goal, trials))}

    def key(trial: Trial) -> tuple[bool, float, int]:
        is_met = trial.measurement is not None and goal.is_met(trial.measurement)
        return not is_met, -trial.seconds if is_met else 0.0, places[id(trial)]

    return sorted(trials, key=key)
