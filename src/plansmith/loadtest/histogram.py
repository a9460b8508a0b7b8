"""A latency histogram with buckets of 1 % width: merged histograms have percentiles as exact as each alone."""

from __future__ import annotations

import math
from typing import Any, Self

from plansmith.loadtest.results import Latency

_WIDTH = math.log(1.01)
_MIN_MS = 1e-3


class Histogram:
    """Counts milliseconds by bucket: bucket i holds those from 1.01^i up to 1.01^(i + 1).

    A percentile is the geometric middle of its bucket, within 0.5 % of all values in it. Mean, minimum and maximum are
    exact.

    Attributes:
        buckets: count by bucket.
        count: of all values.
        sum_ms: of all values.
        min_ms: infinite where there is none.
        max_ms: 0 where there is none.
    """

    def __init__(self) -> None:
        self.buckets: dict[int, int] = {}
        self.count = 0
        self.sum_ms = 0.0
        self.min_ms = math.inf
        self.max_ms = 0.0

    def add(self, milliseconds: float) -> None:
        """Count one value; one shorter than a microsecond counts as that."""
        value = max(milliseconds, _MIN_MS)
        bucket = math.floor(math.log(value) / _WIDTH)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1
        self.count += 1
        self.sum_ms += value
        self.min_ms = min(self.min_ms, value)
        self.max_ms = max(self.max_ms, value)

    def merge(self, other: Histogram) -> None:
        """Add all values of another histogram."""
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count
        self.count += other.count
        self.sum_ms += other.sum_ms
        self.min_ms = min(self.min_ms, other.min_ms)
        self.max_ms = max(self.max_ms, other.max_ms)

    def percentile(self, percent: float) -> float:
        """The least value that so many percent of all do not exceed, right to 1 %; 0 where there is none.

        Args:
            percent: from 0 to 100.
        """
        rank = max(1, math.ceil(self.count * percent / 100))
        seen = 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= rank:
                return min(max(math.exp(_WIDTH * (bucket + 0.5)), self.min_ms), self.max_ms)
        return 0.0

    def latency(self) -> Latency | None:
        """The figures of a report; None where nothing was counted."""
        if not self.count:
            return None
        return Latency(
            mean_ms=self.sum_ms / self.count,
            min_ms=self.min_ms,
            p50_ms=self.percentile(50),
            p90_ms=self.percentile(90),
            p95_ms=self.percentile(95),
            p99_ms=self.percentile(99),
            max_ms=self.max_ms,
        )

    def to_list(self) -> list[Any]:
        """All of it as JSON, for another process."""
        return [list(self.buckets.items()), self.sum_ms, self.min_ms if self.count else 0.0, self.max_ms]

    @classmethod
    def from_list(cls, fields: list[Any]) -> Self:
        """The inverse of `to_list`."""
        histogram = cls()
        buckets, histogram.sum_ms, minimum, histogram.max_ms = fields
        histogram.buckets = {int(bucket): int(count) for bucket, count in buckets}
        histogram.count = sum(histogram.buckets.values())
        histogram.min_ms = float(minimum) if histogram.count else math.inf
        return histogram


def lower_bound_ms(bucket: int) -> float:
    """The least milliseconds that a bucket counts."""
    return math.exp(_WIDTH * bucket)
