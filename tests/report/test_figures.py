"""Numbers as a person reads them, and how near they are to their limits."""

from __future__ import annotations

import math

import pytest

from plansmith.records.validation import Interval, OutputAgreement, TaskMetric, Tolerance
from plansmith.report import numbers
from plansmith.report import numbers as figures

RELATIVE = {
    0.0: "0",
    2.4e-6: "2.4 × 10⁻⁶",
    1e-4: "10⁻⁴",
    0.0042: "0.42 %",
    0.121: "12 %",
    1.5: "1.5 ×",
    2500.0: "2,500 ×",
    math.inf: "none",
    1.79e308: "none",
}


@pytest.mark.parametrize("value", RELATIVE)
def test_error_is_share_or_power(value: float) -> None:
    """An error is a share of the magnitude, or a power of ten."""
    assert _plain(figures.relative(value)) == RELATIVE[value]


COSINES = {
    1.0: "1",
    1.0000001: "1",
    0.99412: "0.9941",
    0.99999: "0.999990",
    0.999974: "0.999974",
    0.9999999999981: "0.999999999",
    0.3712: "0.3712",
    -0.5: "−0.5000",
    math.nan: "none",
}


@pytest.mark.parametrize("value", COSINES)
def test_cosine_never_rounded_to_1(value: float) -> None:
    """A cosine has the digits that tell it from 1 and is never rounded up to it."""
    assert figures.cosine(value) == COSINES[value]


def test_limits_printed_as_written() -> None:
    """Limits are as short as they were written."""
    assert [_plain(figures.limit(value)) for value in (10, 0.8, 0.003, 0.0125, 1e-4)] == [
        "10 ×",
        "80 %",
        "0.3 %",
        "1.25 %",
        "10⁻⁴",
    ]
    assert [figures.limit_of_cosine(value) for value in (0.98, 0.99999999, 1.0, 0.0)] == [
        "0.98",
        "0.99999999",
        "1",
        "0",
    ]


def test_changes_keep_their_sign() -> None:
    """Changes of a measure keep their sign and zero has none."""
    assert [figures.signed(value) for value in (0.004, -0.0121, 0.0, -0.00001)] == [
        *("+0.0040", "−0.0121", "0.0000", "0.0000")
    ]


def test_ratios_have_few_digits() -> None:
    """Ratios, decibels and divergences have few digits."""
    assert [figures.times(value) for value in (0.914, 2.3118, 28.81, 1234.0)] == ["0.91×", "2.31×", "28.8×", "1,234×"]
    assert [_plain(figures.decibels(value)) for value in (23.44, -3.0, math.inf)] == ["23.4 dB", "−3.0 dB", "exact"]
    texts = [_plain(figures.relative_entropy(value)) for value in (0.0123, 3.1e-5, 0.0)]
    assert texts == ["0.012 nats", "3.1 × 10⁻⁵ nats", "0 nats"]


def test_zero_limit_kept_by_zero() -> None:
    """A limit of zero is kept by zero alone."""
    metric = TaskMetric(
        name="accuracy",
        samples=10,
        reference=0.9,
        candidate=0.9,
        change=Interval(value=0.0, low=-0.01, high=0.01),
        max_drop=0.0,
        proven=False,
        failures=(),
    )
    assert numbers.of_metric(metric).used == 0
    worse = metric.model_copy(update={"change": Interval(value=-1e-6, low=-0.01, high=0.01)})
    assert numbers.of_metric(worse).used == math.inf
    assert "any number of times" in numbers.of_metric(worse).in_words


def test_mean_cosine_without_limit_lacks_margin() -> None:
    """A mean cosine without a limit has no margin."""
    agreement = OutputAgreement(
        output="y",
        samples=9,
        mean_cosine=0.2,
        min_cosine=0.1,
        sqnr_db=3.0,
        kl=None,
        same_first=None,
        same_neighbour=None,
        failures=(),
    )
    loose = Tolerance(max_relative=1, quantile_relative=1, min_cosine=-1)
    assert numbers.of_agreement(agreement, loose) == ()
    (mean,) = numbers.of_agreement(agreement, loose.model_copy(update={"min_mean_cosine": 0.1}))
    assert mean.quantity == "mean cosine"
    assert mean.used == pytest.approx(0.8 / 0.9)


def _plain(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")
