"""Confirmation: is the best configuration better than the current one? Both in turn, and an interval of the ratio."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev

from plansmith.records.model import Record
from plansmith.records.validation import Interval
from plansmith.tuning.budget import Schedule
from plansmith.tuning.configuration import Configuration
from plansmith.tuning.objective import Goal
from plansmith.tuning.trials.history import Trial
from plansmith.tuning.trials.runner import TrialRunner

_MIN_ROUNDS = 2
_MAX_REPEATED_ROUNDS = 2
"""Rounds without an answer of the current configuration that are run again, over all confirmations."""


class Round(Record):
    """One trial of each configuration, one right after the other."""

    current: Trial
    candidate: Trial


class Confirmation(Record):
    """Rounds of a candidate beside the current configuration.

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
        """Whether the candidate may replace the current configuration: significantly better, or alone acceptable.

        A trial of the current configuration without an answer is no reason by itself: the machine may be at fault.
        """
        if not self.meets_constraints or len(self.rounds) < _MIN_ROUNDS:
            return False
        return not self.current_meets_constraints or (self.gain is not None and self.gain.low > 1)


def confirm(
    current: Configuration, candidates: Sequence[Configuration], goal: Goal, schedule: Schedule, runner: TrialRunner
) -> tuple[Confirmation, ...]:
    """Run the best candidate beside the current configuration, and the next one if it violates a constraint twice.

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
    """The median violation of each constraint over the trials with an answer; infinite where nothing was measured."""
    measurements = goal.scored([trial.measurement for trial in trials])
    return tuple(
        median(constraint.violation(one) for one in measurements) if measurements else math.inf
        for constraint in goal.constraints
    )


def paired_ratio(ratios: Sequence[float]) -> Interval:
    """The geometric mean of ratios of paired measurements, with Student's 95 % interval of the mean logarithm.

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
    """Both once; which is first changes from round to round."""
    order = (current, candidate) if number % 2 else (candidate, current)
    trials = {one: runner.run("confirmation", one, schedule.seconds, number, candidate) for one in order}
    return Round(current=trials[current], candidate=trials[candidate])


def _confirmation(
    candidate: Configuration, rounds: Sequence[Round], goal: Goal, earlier: Sequence[Trial]
) -> Confirmation:
    """What the rounds showed; `earlier` are trials of the current configuration beside other candidates."""
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
