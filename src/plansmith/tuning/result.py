"""Search results as records: stored as JSON, shown in the terminal and on the page."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from plansmith.records.model import Record
from plansmith.tuning.budget import Schedule
from plansmith.tuning.configuration import Configuration, SearchSpace
from plansmith.tuning.objective import Goal
from plansmith.tuning.search import Confirmation, SearchResult, has_answer, median_violations
from plansmith.tuning.trials.history import Measurement, Trial, mean_measurement


class TuningPlan(Record):
    """Tuning plan: the goal, search space and setup of a search.

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
    """Final outcome of one configuration.

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
        """The measured seconds, such as "0.5" or "5 x 12"."""
        return f"{self.rounds} x {self.seconds:g}" if self.rounds else f"{self.seconds:g}"

    @property
    def reason(self) -> str:
        """Why it is not acceptable; empty if it is."""
        if self.is_met:
            return ""
        return "violates a constraint" if self.measurement.is_answered else "no answer"


class TuningResult(Record):
    """Result of a finished search.

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
        """The current configuration of the model."""
        return self.search.current

    @property
    def confirmation(self) -> Confirmation | None:
        """The decisive confirmation."""
        return self.search.confirmation

    @property
    def is_better(self) -> bool:
        """Whether the best configuration may replace the current one."""
        return self.search.is_better

    @property
    def is_met(self) -> bool:
        """Whether any configuration meets the constraints: by the confirmation, or else by the search."""
        if self.confirmation is not None:
            return self.confirmation.meets_constraints or self.confirmation.current_meets_constraints
        measurement = self.search.best.measurement
        return measurement is not None and self.plan.goal.is_met(measurement)

    @property
    def best(self) -> Trial:
        """The best trial; if nothing meets the constraints, that of the configuration closest to them."""
        if self.confirmation is None or self.is_met:
            return self.search.best
        confirmed = {entry.candidate for entry in self.search.confirmations} | {self.current}
        return min((trial for trial in self.search.ranking if trial.configuration in confirmed), key=self._distance)

    @property
    def failed(self) -> list[Trial]:
        """The trials without a measurement, one per configuration."""
        return list({trial.configuration: trial for trial in self.search.trials if trial.measurement is None}.values())

    def trials_of(self, configuration: Configuration) -> tuple[Trial, ...]:
        """Return the trials of the confirmation rounds, or else the longest trial."""
        confirmations = self.search.confirmations
        if configuration == self.current and confirmations:
            return tuple(pair.current for confirmation in confirmations for pair in confirmation.rounds)
        for confirmation in confirmations:
            if configuration == confirmation.candidate:
                return tuple(pair.candidate for pair in confirmation.rounds)
        return tuple(trial for trial in self.search.ranking if trial.configuration == configuration)

    @property
    def outcomes(self) -> list[Outcome]:
        """The outcomes, one per configuration: acceptable ones first, then by longest measurement, then the best."""
        goal = self.plan.goal
        outcomes: dict[Configuration, Outcome | None] = {
            trial.configuration: outcome_of(goal, trial) for trial in self.search.ranking
        }
        for confirmation in self.search.confirmations:
            for configuration in (self.current, confirmation.candidate):
                outcomes[configuration] = _mean_outcome(goal, confirmation, configuration) or outcomes.get(
                    configuration
                )
        entries = [outcome for outcome in outcomes.values() if outcome is not None]
        return sorted(entries, key=lambda outcome: _place(goal, outcome))

    def _distance(self, trial: Trial) -> tuple[bool, float]:
        goal, trials = self.plan.goal, self.trials_of(trial.configuration)
        is_silent = not any(has_answer(goal, item) for item in trials)
        return is_silent, sum(max(0.0, violation) for violation in median_violations(goal, trials))


def outcome_of(goal: Goal, trial: Trial) -> Outcome | None:
    """Return the outcome of one trial; None if nothing was measured."""
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
    """The mean over the rounds in which both responded, else over all rounds; None where nothing was measured."""
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
        answered=min(item.answered for item in measurements),
        rounds=len(measurements),
    )


def _place(goal: Goal, outcome: Outcome) -> tuple[bool, float, tuple[float, float]]:
    length = -outcome.seconds * max(outcome.rounds, 1) if outcome.is_met else 0.0
    return not outcome.is_met, length, goal.rank(outcome.measurement)
