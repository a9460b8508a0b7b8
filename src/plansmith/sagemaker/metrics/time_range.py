"""Ranges of time, and the periods in which CloudWatch still has them.

CloudWatch keeps a value a minute for 15 days, one per 5 minutes for 63 days and one an hour for 455 days:
docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_GetMetricStatistics.html.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from plansmith.errors import UsageError
from plansmith.formatting import format_seconds, seconds_from_age

_DAY = 86400
_RETENTION = ((15 * _DAY, 60), (63 * _DAY, 300), (455 * _DAY, 3600))
_PERIODS = (60, 300, 900, 3600, 6 * 3600, _DAY)
_USUAL_POINTS = 300
_MAX_POINTS = 2000
MAX_PERIOD_SECONDS = 30 * _DAY
"""The longest period that CloudWatch's console offers."""


@dataclass(frozen=True)
class TimeRange:
    """A range of time, and the period of a point.

    Attributes:
        start: in UTC, at a multiple of the period.
        end: in UTC.
        period_seconds: of a point.
        finest_seconds: the shortest period that CloudWatch still has of the start.
    """

    start: datetime
    end: datetime
    period_seconds: int
    finest_seconds: int

    @property
    def total_seconds(self) -> int:
        """A period of which the range is one point; the longest that there is, for a longer range."""
        seconds = (self.end - self.start).total_seconds()
        return min(max(math.ceil(seconds / self.finest_seconds), 1) * self.finest_seconds, MAX_PERIOD_SECONDS)


def parse_time(text: str, now: datetime) -> datetime:
    """A time: an age (3h, 45m, 2d), or a day or time of ISO 8601, in UTC where it has no zone.

    Raises:
        UsageError: it is neither.
    """
    try:
        try:
            time = datetime.fromisoformat(text.strip())
        except ValueError:
            return now - timedelta(seconds=seconds_from_age(text))
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (UsageError, OverflowError) as error:
        raise UsageError(
            f"{text!r} is no time", remedy="write how long ago (45m, 3h, 2d), or a time such as 2026-11-23T10:00"
        ) from error


def time_range(start: datetime, end: datetime, now: datetime, period_seconds: int | None = None) -> TimeRange:
    """A range whose points CloudWatch has.

    Args:
        start: its beginning.
        end: its end.
        now: the age of the start decides which periods CloudWatch still has.
        period_seconds: of a point; None for one that fits the length and age of the range.

    Raises:
        UsageError: it ends before it starts, or CloudWatch has no such points of it.
    """
    if start >= end:
        raise UsageError("the range ends before it starts", remedy="name a --since that is before --until")
    finest = _finest_period((now - start).total_seconds())
    seconds = (end - start).total_seconds()
    if period_seconds is None:
        fitting = (one for one in _PERIODS if one >= finest and seconds / one <= _USUAL_POINTS)
        period = next(fitting, _PERIODS[-1])
    else:
        _require_period(period_seconds, finest, seconds)
        period = period_seconds
    rounded = math.floor(start.timestamp() / period) * period
    return TimeRange(datetime.fromtimestamp(rounded, UTC), end.astimezone(UTC), period, finest)


def _finest_period(age_seconds: float) -> int:
    """The shortest period that CloudWatch has of an age, with a margin, as time passes until it is asked."""
    for retention_seconds, period in _RETENTION:
        if age_seconds <= retention_seconds - period:
            return period
    raise UsageError("CloudWatch keeps metrics for 455 days", remedy="name a --since that is less long ago")


def _require_period(period: int, finest: int, seconds: float) -> None:
    if period < finest or period % finest or period > MAX_PERIOD_SECONDS:
        raise UsageError(
            f"CloudWatch has no points of {format_seconds(period)} of a time so long ago",
            remedy=f"pass a --period that is a multiple of {finest // 60}m, up to 30d; or leave it out",
        )
    if seconds / period > _MAX_POINTS:
        raise UsageError(
            f"that would be {seconds / period:,.0f} points of each metric", remedy="pass a longer --period, or none"
        )
