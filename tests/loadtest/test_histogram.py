"""Percentiles of latencies."""

from __future__ import annotations

import json
import random

import pytest

from plansmith.loadtest.results import Histogram


def test_percentiles_exact_to_one_percent() -> None:
    """A percentile is within 1 % of the value of its rank, and minimum, maximum and mean are exact."""
    generator = random.Random(1)
    values = sorted(generator.lognormvariate(2, 1.5) for _ in range(2000))
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    for percent in (1, 50, 90, 95, 99, 100):
        assert histogram.percentile(percent) == pytest.approx(values[percent * 20 - 1], rel=0.01)
    latency = histogram.latency()
    assert latency is not None
    assert (latency.min_ms, latency.max_ms) == (values[0], values[-1])
    assert latency.mean_ms == pytest.approx(sum(values) / 2000)


def test_parts_make_the_whole() -> None:
    """Histograms of several processes, sent as JSON and merged, are the histogram of all values."""
    whole, merged, parts = Histogram(), Histogram(), [Histogram(), Histogram(), Histogram()]
    for number in range(300):
        whole.add(1.07**number / 1000)
        parts[number % 2].add(1.07**number / 1000)
    for part in parts:
        merged.merge(Histogram.from_list(json.loads(json.dumps(part.to_list()))))
    assert merged.buckets == whole.buckets
    assert (merged.count, merged.min_ms, merged.max_ms) == (300, whole.min_ms, whole.max_ms)
    assert merged.latency() is not None
    assert Histogram().latency() is None
