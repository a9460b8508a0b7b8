"""Sampler: proposes the next configuration to try, by Bayesian optimization with Optuna.

Optuna's sampler is a Gaussian process with the logarithm of the expected improvement
(https://optuna.readthedocs.io/en/stable/reference/samplers/generated/optuna.samplers.GPSampler.html). It is warm: what
was tried before the first proposal, the current configuration and one of each other build, counts from the start.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from plansmith.errors import EnvironmentFault
from plansmith.tuning.configuration import AXES, ORDERED_AXES, Configuration, Point, SearchSpace

if TYPE_CHECKING:
    from optuna import Study
    from optuna.samplers import BaseSampler

SamplerFactory = Callable[[int], "BaseSampler"]
"""Makes a sampler of Optuna for a seed."""

_WARM_UP_TRIALS = 3
_ATTEMPTS = 10
_VIOLATION_WEIGHT, _MAX_VIOLATION = 3.0, 3.0
_FAILURE_PENALTY = 3.0
"""What cannot be served scores so much below the worst configuration that can; scores are natural logarithms."""


def gaussian_process(seed: int) -> BaseSampler:
    """Return the Gaussian process sampler of searches.

    Raises:
        EnvironmentFault: Optuna is not installed.
    """
    require_optuna()
    from optuna.samplers import GPSampler, RandomSampler

    return GPSampler(seed=seed, independent_sampler=RandomSampler(seed), n_startup_trials=_WARM_UP_TRIALS)


def require_optuna() -> None:
    """Require that Optuna is installed, before anything is compiled for a search.

    Raises:
        EnvironmentFault: it is not installed.
    """
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise EnvironmentFault("Optuna is not installed", remedy="pip install 'plansmith[tune]'") from error


class ConfigurationSampler:
    """Sampler: proposes configurations, given the results of earlier ones.

    Args:
        space: to propose from.
        seed: the same seed and results give the same proposals.
        make_sampler: of Optuna.
    """

    def __init__(self, space: SearchSpace, *, seed: int, make_sampler: SamplerFactory = gaussian_process) -> None:
        self._space = space
        self._seed = seed
        self._make_sampler = make_sampler
        self._results: list[tuple[Point, float]] = []

    def tell(self, configuration: Configuration, score: float, violations: Sequence[float] = ()) -> None:
        """Add a result.

        Args:
            configuration: that was tried; one outside the space counts as the most similar one in it.
            score: higher is better; minus infinity where it could not be served.
            violations: of each constraint; 0 or less where it was met.
        """
        violation = min(sum(max(0.0, amount) for amount in violations), _MAX_VIOLATION)
        self._results.append((self._space.nearest_point(configuration), score - _VIOLATION_WEIGHT * violation))

    def propose(self, tried: Collection[Configuration]) -> Configuration | None:
        """Return an untried configuration; None if all were tried."""
        left = [configuration for configuration in self._space.points if configuration not in tried]
        if not left:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna calls its newer samplers experimental
            proposal = self._ask(tried)
        return proposal or random.Random(self._seed + len(self._results)).choice(left)  # noqa: S311 - no secret

    def _ask(self, tried: Collection[Configuration]) -> Configuration | None:
        """Ask Optuna for a configuration; None where it keeps proposing ones already tried."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = optuna.create_study(direction="maximize", sampler=self._make_sampler(self._seed + len(self._results)))
        distributions = self._distributions()
        scores = self._finite_scores()
        for point, score in zip((point for point, _ in self._results), scores, strict=True):
            self._add(study, distributions, point, score)
        point_scores = {
            self._space.configuration_at(point): score for (point, _), score in zip(self._results, scores, strict=True)
        }
        for _ in range(_ATTEMPTS):
            trial = study.ask(distributions)
            point = tuple(int(trial.params[axis]) for axis in AXES)
            proposal = self._space.configuration_at(point)
            if proposal not in tried:
                return proposal
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            if proposal in point_scores:  # a repetition tells Optuna that nothing new is to be learned there
                self._add(study, distributions, point, point_scores[proposal])
        return None

    def _distributions(self) -> dict[str, Any]:
        from optuna.distributions import CategoricalDistribution, IntDistribution

        return {
            axis: IntDistribution(0, count - 1) if axis in ORDERED_AXES else CategoricalDistribution(range(count))
            for axis, count in zip(AXES, self._space.choices, strict=True)
        }

    def _add(self, study: Study, distributions: dict[str, Any], point: Point, score: float) -> None:
        import optuna

        params = dict(zip(AXES, point, strict=True))
        study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=score))

    def _finite_scores(self) -> list[float]:
        finite = [score for _, score in self._results if math.isfinite(score)]
        worst = min(finite, default=0.0) - _FAILURE_PENALTY
        return [score if math.isfinite(score) else worst for _, score in self._results]
