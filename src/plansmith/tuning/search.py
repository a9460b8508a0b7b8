"""Search: short trials of many configurations, longer ones of the best, and a confirmation beside the current."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev

from plansmith.records.model import Record
from plansmith.records.validation import Interval
from plansmith.tuning.budget import Schedule, count_by_seconds, describe_runs
from plansmith.tuning.configuration import Configuration, SearchSpace, similar_of_other_builds
from plansmith.tuning.objective import Goal
from plansmith.tuning.sampler import ConfigurationSampler
from plansmith.tuning.trials.history import Trial
from plansmith.tuning.trials.runner import TrialRunner

_MIN_ROUNDS = 2
_MAX_REPEATED_ROUNDS = 2
"""Rounds without an answer of the current configuration that are run again, over all confirmations."""


class Round(Record):
    """Round: one trial of each configuration, back to back."""

    current: Trial
    candidate: Trial


class Confirmation(Record):
    """Confirmation: rounds of a candidate against the current configuration.

    Attributes:
        candidate: the configuration.
        rounds: in their order.
        gain: how many times better than the current configuration; None with fewer than two comparable rounds.
        meets_constraints: whether the candidate answered in all rounds, within the constraints by their median.
        current_meets_constraints: whether the current configuration did, by the median of all rounds that it answered.
    """

    candidate: Configuration
    rounds: tuple[Round, ...]
    gain: Interval | None
    meets_constraints: bool
    current_meets_constraints: bool

    @property
    def is_better(self) -> bool:
        """Whether the candidate may replace the current one: it is significantly better, or the only acceptable one.

        A trial of the current configuration without an answer is no reason by itself: the machine may be at fault.
        """
        if not self.meets_constraints or len(self.rounds) < _MIN_ROUNDS:
            return False
        return not self.current_meets_constraints or (self.gain is not None and self.gain.low > 1)


def confirm(
    current: Configuration, candidates: Sequence[Configuration], goal: Goal, schedule: Schedule, runner: TrialRunner
) -> tuple[Confirmation, ...]:
    """Run the best candidate against the current configuration; the next one if it violates a constraint twice.

    A round that two processes ran, as one was interrupted, does not count: the machine may have changed in between. It
    is run again, and so is, a few times, a round in which the current configuration did not answer.

    Args:
        current: how the model is served now.
        candidates: best first.
        goal: objective and constraints.
        schedule: rounds, and the length of their trials.
        runner: of the trials.
    """
    confirmations: list[Confirmation] = []
    left, number, repeated = schedule.rounds, 0, 0
    for candidate in candidates:
        if candidate == current or not left:
            break
        rounds: list[Round] = []
        violated = 0
        while left > 0 and violated < _MIN_ROUNDS and (len(rounds) < _MIN_ROUNDS or runner.has_time(1.0)):
            number += 1
            pair = _run_round(number, current, candidate, schedule, runner)
            if pair.current.session != pair.candidate.session:
                continue
            rounds.append(pair)
            violated += not _meets_constraints(goal, [pair.candidate])
            if not has_answer(goal, pair.current) and repeated < _MAX_REPEATED_ROUNDS:
                repeated += 1
            else:
                left -= 1
        earlier = [pair.current for confirmation in confirmations for pair in confirmation.rounds]
        confirmations.append(_confirmation(candidate, rounds, goal, earlier))
        if confirmations[-1].meets_constraints:
            break
    return tuple(confirmations)


def has_answer(goal: Goal, trial: Trial) -> bool:
    """Whether a trial can be compared with others."""
    return goal.has_score(trial.measurement)


def median_violations(goal: Goal, trials: Sequence[Trial]) -> tuple[float, ...]:
    """Return the median violation of each constraint over the comparable trials; infinite if nothing was measured."""
    measurements = goal.scored([trial.measurement for trial in trials])
    return tuple(
        median(constraint.violation(item) for item in measurements) if measurements else math.inf
        for constraint in goal.constraints
    )


def paired_ratio(ratios: Sequence[float]) -> Interval:
    """Return the geometric mean of paired ratios, with Student's 95 % interval of the mean logarithm.

    Args:
        ratios: two or more, above 0.
    """
    from scipy.stats import t

    logarithms = [math.log(ratio) for ratio in ratios]
    count, mean = len(logarithms), fmean(logarithms)
    half = float(t.ppf(0.975, count - 1)) * stdev(logarithms) / math.sqrt(count)
    return Interval(value=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half))


def _run_round(
    number: int, current: Configuration, candidate: Configuration, schedule: Schedule, runner: TrialRunner
) -> Round:
    """Run both configurations once; their order alternates from round to round."""
    order = (current, candidate) if number % 2 else (candidate, current)
    trials = {
        configuration: runner.run("confirmation", configuration, schedule.seconds, number, candidate)
        for configuration in order
    }
    return Round(current=trials[current], candidate=trials[candidate])


def _confirmation(
    candidate: Configuration, rounds: Sequence[Round], goal: Goal, earlier: Sequence[Trial]
) -> Confirmation:
    """The result of the confirmation rounds.

    `earlier` are trials of the current configuration against other candidates.
    """
    ratios = [
        goal.gain(pair.candidate.measurement, pair.current.measurement)
        for pair in rounds
        if pair.candidate.measurement and pair.current.measurement
        if has_answer(goal, pair.current) and has_answer(goal, pair.candidate)
    ]
    trials = [pair.candidate for pair in rounds]
    return Confirmation(
        candidate=candidate,
        rounds=tuple(rounds),
        gain=paired_ratio(ratios) if len(ratios) >= _MIN_ROUNDS else None,
        meets_constraints=all(has_answer(goal, trial) for trial in trials) and _meets_constraints(goal, trials),
        current_meets_constraints=_meets_constraints(goal, [*earlier, *(pair.current for pair in rounds)]),
    )


def _meets_constraints(goal: Goal, trials: Sequence[Trial]) -> bool:
    is_answered = any(has_answer(goal, trial) for trial in trials)
    return is_answered and all(violation <= 0 for violation in median_violations(goal, trials))


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
        """A summary of the trials by length."""
        rounds = {trial.round_number: trial.seconds for trial in self.trials if trial.round_number}
        search = [trial.seconds for trial in self.trials if not trial.round_number]
        return describe_runs(count_by_seconds(search), count_by_seconds(list(rounds.values())))

    @property
    def confirmation(self) -> Confirmation | None:
        """The decisive confirmation."""
        return self.confirmations[-1] if self.confirmations else None

    @property
    def is_better(self) -> bool:
        """Whether the best configuration may replace the current one."""
        return self.confirmation is not None and self.confirmation.is_better

    @property
    def best(self) -> Trial:
        """The best trial of the search: that of the confirmed configuration, if there is one."""
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
    """Search for the best configuration of a space, starting with the current one.

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
    """Screening: run short trials of the current configuration, its equivalents of other builds, and proposals."""
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
    """Rank trials, best first; those that could not be served are last."""

    def key(trial: Trial) -> tuple[float, float]:
        return (math.inf, 0.0) if trial.measurement is None else goal.rank(trial.measurement)

    return sorted(trials, key=key)


def _rank_by_length(goal: Goal, trials: Sequence[Trial]) -> list[Trial]:
    """Rank trials: those that meet the constraints first, longest then best; the rest by how close they come."""
    places = {id(trial): place for place, trial in enumerate(rank(goal, trials))}

    def key(trial: Trial) -> tuple[bool, float, int]:
        is_met = trial.measurement is not None and goal.is_met(trial.measurement)
        return not is_met, -trial.seconds if is_met else 0.0, places[id(trial)]

    return sorted(trials, key=key)
