"""Intervals of 95 %: how sure a number is that was measured on so many samples.

- A share: Wilson's score interval (Wilson, J. Am. Stat. Assoc. 22, 1927).
- The difference of two shares on the same samples: Tango's score interval (Tango, Stat. Med. 17, 1998), made for
  showing that something new is not inferior. It stays honest where nothing at all changed: 0 of n samples gives
  ±z²/(n + z²), and not a width of zero as the normal approximation does.
- What is no mean of rights and wrongs (F1, Spearman's correlation): the paired bootstrap over samples, percentiles
  (Efron and Tibshirani, An Introduction to the Bootstrap, chapter 13), with a seed of its own, so that the same
  answers get the same interval.

A bootstrap can only shuffle what it has seen: of samples that all stayed the same it makes an interval of no width.
`at_least` widens it to what Tango's says of the counts of better and worse samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from plansmith.records.validation import Interval

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Z = 1.959963984540054
"""97.5 % of a standard normal distribution lie below."""

RESAMPLES = 2000
_SEED = 0
_CELLS_AT_ONCE = 4_000_000
_BISECTIONS = 60


def share(count: int, samples: int) -> Interval:
    """Of samples that have a property, by Wilson."""
    value, spread = count / samples, Z * Z / samples
    middle = (value + spread / 2) / (1 + spread)
    half = math.sqrt(value * (1 - value) * spread + spread * spread / 4) / (1 + spread)
    return Interval(value=value, low=max(0.0, min(middle - half, value)), high=min(1.0, max(middle + half, value)))


def paired_difference(gained: int, lost: int, samples: int) -> Interval:
    """Of two shares on the same samples, by Tango: the second minus the first.

    Args:
        gained: samples that only the second has right.
        lost: samples that only the first has right.
        samples: how many there are, with those that both or neither has right.
    """
    value = (gained - lost) / samples

    def end(outside: float, sign: float) -> float:
        inside = value
        for _ in range(_BISECTIONS):
            middle = (inside + outside) / 2
            if sign * _tango_score(gained, lost, samples, middle) > Z:
                outside = middle
            else:
                inside = middle
        return inside

    return Interval(value=value, low=end(-1.0, 1.0), high=end(1.0, -1.0))


def bootstrapped(statistic: Callable[[Floats], Floats], samples: int) -> Interval:
    """Of a statistic of samples that are drawn again, with replacement.

    Args:
        statistic: takes how often each sample counts, [draws, samples], and gives one number a draw; NaN where
            the draw has none, which is then left out.
        samples: how many there are.
    """
    value = float(statistic(np.ones((1, samples)))[0])
    rng = np.random.default_rng(_SEED)
    at_once = max(1, _CELLS_AT_ONCE // samples)
    drawn = [statistic(_draw(rng, min(at_once, RESAMPLES - done), samples)) for done in range(0, RESAMPLES, at_once)]
    found = np.concatenate(drawn)
    found = found[np.isfinite(found)]
    low, high = np.quantile(found, (0.025, 0.975)) if found.size else (value, value)
    return Interval(value=value, low=min(float(low), value), high=max(float(high), value))


def at_least(interval: Interval, floor: Interval) -> Interval:
    """An interval that is nowhere narrower than another one around the same value."""
    below, above = floor.value - floor.low, floor.high - floor.value
    return Interval(
        value=interval.value,
        low=min(interval.low, interval.value - below),
        high=max(interval.high, interval.value + above),
    )


def _draw(rng: np.random.Generator, draws: int, samples: int) -> Floats:
    """How often each sample was drawn, [draws, samples]."""
    picked = rng.integers(samples, size=(draws, samples)) + samples * np.arange(draws)[:, None]
    return np.bincount(picked.ravel(), minlength=draws * samples).reshape(draws, samples).astype(np.float64)


def _tango_score(gained: int, lost: int, samples: int, difference: float) -> float:
    """How many standard errors the counts are away from a true difference.

    The nuisance, the share that only the first has right, is estimated under that difference: the larger root of
    the likelihood equation 2n q² + (-g - l + (2n - g + l) d) q - l d (1 - d) = 0.
    """
    linear = -gained - lost + (2 * samples - gained + lost) * difference
    constant = -lost * difference * (1 - difference)
    root = (math.sqrt(max(0.0, linear * linear - 8 * samples * constant)) - linear) / (4 * samples)
    variance = samples * (2 * root + difference * (1 - difference))
    distance = gained - lost - samples * difference
    if variance <= 0:
        return math.copysign(math.inf, distance) if distance else 0.0
    return distance / math.sqrt(variance)
