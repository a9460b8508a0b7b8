"""Runs trials, each once: a trial of the history is used again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from plansmith.tuning.configuration import Configuration
from plansmith.tuning.trials.history import Phase, Trial, TrialContext, TrialHistory, trial_key
from plansmith.tuning.trials.measurement import Benchmark, TrialFailed


@dataclass(frozen=True)
class TrialProgress:
    """How a search goes.

    Attributes:
        phase: of the search.
        number: of the trial, from 1.
        total: trials of the search.
        configuration: that is run.
        seconds: of load.
        round_number: as in `Trial`.
        trial: the finished trial; None when it begins.
        reused: whether it was in the history.
    """

    phase: Phase
    number: int
    total: int
    configuration: Configuration
    seconds: float
    round_number: int = 0
    trial: Trial | None = None
    reused: bool = False


@dataclass
class TrialRunner:
    """Runs trials, or finds them in the history.

    Args:
        benchmark: measures a configuration.
        history: of finished trials; takes new ones.
        context: of the trials.
        session: of this process.
        total: trials that the search has.
        progress: called before and after each.
        limit_seconds: for all trials together; None for no limit.
        retry_failed: run again what failed in another session.

    Attributes:
        trials: of this search, in order, with those that were reused.
        measured: how many of them were not reused.
        used_seconds: that all of them took.
    """

    benchmark: Benchmark
    history: TrialHistory
    context: TrialContext
    session: str
    total: int
    progress: Callable[[TrialProgress], None] = lambda _: None
    limit_seconds: float | None = None
    retry_failed: bool = False
    trials: list[Trial] = field(default_factory=list)
    measured: int = 0
    used_seconds: float = 0.0

    def run(
        self,
        phase: Phase,
        configuration: Configuration,
        seconds: float,
        round_number: int = 0,
        candidate: Configuration | None = None,
    ) -> Trial:
        """Run a configuration, or take the same trial from the history; afterwards it is in the history.

        Args:
            phase: of the search.
            configuration: to serve.
            seconds: of load.
            round_number: of a confirmation.
            candidate: of that confirmation.
        """
        key = trial_key(self.context, configuration, seconds, round_number, candidate)
        trial = self.history.find(key)
        if trial is not None and trial.measurement is None and self.retry_failed and trial.session != self.session:
            trial = None
        progress = TrialProgress(phase, len(self.trials) + 1, self.total, configuration, seconds, round_number)
        is_reused = trial is not None
        if trial is None:
            self.progress(progress)
            trial = self._measure(key, configuration, seconds, round_number)
            self.history.add(trial)
            self.measured += 1
        self.trials.append(trial)
        self.used_seconds += trial.duration_seconds
        self.progress(replace(progress, trial=trial, reused=is_reused))
        return trial

    def has_time(self, share: float) -> bool:
        """Whether less than a share of the time limit is used."""
        return self.limit_seconds is None or self.used_seconds < share * self.limit_seconds

    def _measure(self, key: str, configuration: Configuration, seconds: float, round_number: int) -> Trial:
        began_at, began = datetime.now(UTC), time.monotonic()
        measurement, problem = None, ""
        try:
            measurement = self.benchmark(configuration, seconds)
        except TrialFailed as failure:
            problem = str(failure)
        return Trial(
            key=key,
            configuration=configuration,
            seconds=seconds,
            round_number=round_number,
            measurement=measurement,
            problem=problem,
            duration_seconds=round(time.monotonic() - began, 3),
            began_at=began_at.isoformat(timespec="milliseconds"),
            session=self.session,
        )
