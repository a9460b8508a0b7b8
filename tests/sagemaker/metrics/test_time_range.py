"""Which points CloudWatch has of a range of time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from plansmith.errors import UsageError
from plansmith.sagemaker.metrics.cloudwatch import parse_time, time_range

NOW = datetime(2026, 11, 23, 12, 34, 56, tzinfo=UTC)


@pytest.mark.parametrize(
    ("hours", "period"),
    [(1, 60), (12, 300), (72, 900), (7 * 24, 3600), (60 * 24, 21600), (400 * 24, 86400)],
)
def test_period_fits_range(hours: int, period: int) -> None:
    """A range has up to 300 points, and starts at a multiple of the period."""
    times = time_range(NOW - timedelta(hours=hours), NOW, NOW)
    assert times.period_seconds == period
    assert times.start.timestamp() % period == 0
    assert times.start <= NOW - timedelta(hours=hours)


@pytest.mark.parametrize(("days", "finest"), [(14, 60), (16, 300), (62, 300), (64, 3600), (454, 3600)])
def test_period_fits_retention(days: int, finest: int) -> None:
    """No period is shorter than what CloudWatch still has of that time."""
    start = NOW - timedelta(days=days)
    assert time_range(start, start + timedelta(hours=1), NOW).period_seconds == finest
    if finest > 60:
        with pytest.raises(UsageError, match="no points of") as error:
            time_range(start, start + timedelta(hours=1), NOW, 60)
        assert f"multiple of {finest // 60}m" in error.value.remedy


def test_total_is_one_point() -> None:
    """A range of up to 30 days is one point."""
    assert time_range(NOW - timedelta(hours=3), NOW, NOW).total_seconds == 3 * 3600 + 60
    assert time_range(NOW - timedelta(days=40), NOW, NOW).total_seconds == 30 * 86400


def test_impossible_ranges() -> None:
    """A range that ends before it starts, is forgotten, or has too many points, is refused."""
    with pytest.raises(UsageError, match="ends before it starts"):
        time_range(NOW, NOW - timedelta(hours=1), NOW)
    with pytest.raises(UsageError, match="455 days"):
        time_range(NOW - timedelta(days=456), NOW, NOW)
    with pytest.raises(UsageError, match="10,080 points"):
        time_range(NOW - timedelta(days=7), NOW, NOW, 60)


def test_times() -> None:
    """A time is an age, or a moment of ISO 8601 in UTC where it has no zone."""
    assert parse_time("3h", NOW) == NOW - timedelta(hours=3)
    assert parse_time("0", NOW) == NOW
    assert parse_time("2026-11-20T08:00+02:00", NOW) == datetime(2026, 11, 20, 6, tzinfo=UTC)
    assert parse_time("2026-11-20", NOW) == datetime(2026, 11, 20, tzinfo=UTC)
    for text in ("yesterday", "999999w", "0001-01-01T00:00+14:00", "9999-12-31T23:59-14:00"):
        with pytest.raises(UsageError, match="is no time"):
            parse_time(text, NOW)
