"""The result of a search as records: stored as JSON, shown in the terminal and on the page."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from plansmith.records.model import Record
from plansmith.tuning.budget import Schedule
from plansmith.tuning.configuration import Configuration
from plansmith.tuning.confirmation import Confirmation, has_answer, median_violations
from plansmith.tuning.objective import Goal
from plansmith.tuning.search import SearchResult
from plansmith.tuning.search_space import SearchSpace
from plansmith.tuning.trials.history import Trial
from plansmith.tuning.trials.measurement import Measurement, mean_measurement


class TuningPlan(Record):
    """What a search looks for, where, and how.

    Attributes:
        model: its name.
        goal: objective and constraints.
        space: the configurations.
        schedule: the trials.
        current: how the model is served now.
        load: of the trials, in words.
        host: machine and server, in words.
        seed: of the proposals.
        left_out: by label of a build, why it is not in the space.
        obstacle: why the current configuration refuses the requests; empty where it does not.
    """

    model: str
    goal: Goal
    space: SearchSpace
    schedule: Schedule
    current: Configuration
    load: str
    host: str
    seed: int = 0
    left_out: dict[str, str] = Field(default_factory=dict)
    obstacle: str = ""


class Outcome(Record):
    """What is known of one configuration in the end.

    Attributes:
        configuration: that was served.
        measurement: of its longest trial; of a confirmed one, and of the current one beside it, the mean of the rounds.
        is_met: whether it meets the constraints.
        seconds: of load of each trial.
        answered: requests in the trial that has the fewest.
        rounds: in the mean; 0 for one trial.
    """

    configuration: Configuration
    measurement: Measurement
    is_met: bool
    seconds: float
    answered: int
    rounds: int = 0

    @property
    def length(self) -> str:
        """The measured seconds: "0.5" or "5 x 12"."""
        return f"{self.rounds} x {self.seconds:g}" if self.rounds else f"{self.seconds:g}"

    @property
    def reason(self) -> str:
        """Why it is not acceptable; empty where it is."""
        if self.is_met:
            return ""
        return "violates a constraint" if self.measurement.is_answered else "no answer"


class TuningResult(Record):
    """A finished search.

    Attributes:
        plan: what was looked for.
        plansmith: its version.
        ended_at: UTC.
        search: what was found.
        changes: keys of the spec that make the best configuration; empty where the current one stays.
        applied: "MODEL@VERSION" of the release with the best configuration; empty where none was published.
    """

    plan: TuningPlan
    plansmith: str
    ended_at: str
    search: SearchResult
    changes: dict[str, Any] = Field(default_factory=dict)
    applied: str = ""

    @property
    def current(self) -> Configuration:
        """How the model is served now."""
        return self.search.current

    @property
    def confirmation(self) -> Confirmation | None:
        """The one that counts."""
        return self.search.confirmation

    @property
    def is_better(self) -> bool:
        """Whether the best configuration may replace the current one."""
        return self.search.is_better

    @property
    def is_met(self) -> bool:
        """Whether anything meets the constraints: by the rounds of a confirmation, or else by the search."""
        if self.confirmation is not None:
            return self.confirmation.meets_constraints or self.confirmation.current_meets_constraints
        measurement = self.search.best.measurement
        return measurement is not None and self.plan.goal.is_met(measurement)

    @property
    def best(self) -> Trial:
        """The best trial; where nothing meets the constraints, that of the nearest configuration."""
        if self.confirmation is None or self.is_met:
            return self.search.best
        confirmed = {one.candidate for one in self.search.confirmations} | {self.current}
        return min((trial for trial in self.search.ranking if trial.configuration in confirmed), key=self._distance)

    @property
    def failed(self) -> list[Trial]:
        """Trials without a measurement, one of each configuration."""
        return list({trial.configuration: trial for trial in self.search.trials if trial.measurement is None}.values())

    def trials_of(self, configuration: Configuration) -> tuple[Trial, ...]:
        """The trials of the confirmation's rounds, or else the longest one."""
        confirmations = self.search.confirmations
        if configuration == self.current and confirmations:
            return tuple(pair.current for one in confirmations for pair in one.rounds)
        for one in confirmations:
            if configuration == one.candidate:
                return tuple(pair.candidate for pair in one.rounds)
        return tuple(trial for trial in self.search.ranking if trial.configuration == configuration)

    @property
    def outcomes(self) -> list[Outcome]:
        """Each configuration once: acceptable ones first, of these the longest measured, and the best."""
        goal = self.plan.goal
        outcomes: dict[Configuration, Outcome | None] = {
            trial.configuration: outcome_of(goal, trial) for trial in self.search.ranking
        }
        for one in self.search.confirmations:
            for configuration in (self.current, one.candidate):
                outcomes[configuration] = _mean_outcome(goal, one, configuration) or outcomes.get(configuration)
        known = [outcome for outcome in outcomes.values() if outcome is not None]
        return sorted(known, key=lambda outcome: _place(goal, outcome))

    def _distance(self, trial: Trial) -> tuple[bool, float]:
        goal, trials = self.plan.goal, self.trials_of(trial.configuration)
        is_silent = not any(has_answer(goal, one) for one in trials)
        return is_silent, sum(max(0.0, violation) for violation in median_violations(goal, trials))


def outcome_of(goal: Goal, trial: Trial) -> Outcome | None:
    """The outcome of one trial; None where nothing was measured."""
    if trial.measurement is None:
        return None
    return Outcome(
        configuration=trial.configuration,
        measurement=trial.measurement,
        is_met=goal.is_met(trial.measurement),
        seconds=trial.seconds,
        answered=trial.measurement.answered,
    )


def _mean_outcome(goal: Goal, confirmation: Confirmation, configuration: Configuration) -> Outcome | None:
    """The mean of the rounds in which both answered, or else of all rounds; None where nothing was measured."""
    is_candidate = configuration == confirmation.candidate
    both = [pair for pair in confirmation.rounds if has_answer(goal, pair.current) and has_answer(goal, pair.candidate)]
    trials = [pair.candidate if is_candidate else pair.current for pair in both or confirmation.rounds]
    measurements = goal.scored([trial.measurement for trial in trials])
    if not measurements:
        return None
    return Outcome(
        configuration=configuration,
        measurement=mean_measurement(measurements),
        is_met=confirmation.meets_constraints if is_candidate else confirmation.current_meets_constraints,
        seconds=trials[0].seconds,
        answered=min(one.answered for one in measurements),
        rounds=len(measurements),
    )


def _place(goal: Goal, outcome: Outcome) -> tuple[bool, float, tuple[float, float]]:
    length = -outcome.seconds * max(outcome.rounds, 1) if outcome.is_met else 0.0
    return not outcome.is_met, length, goal.rank(outcome.measurement)
