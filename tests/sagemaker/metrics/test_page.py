"""The page with plots of the metrics of an endpoint: what it says, and how it looks in Chromium."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from plansmith.report.plots import BOTTOM, LEFT, RIGHT, TOP
from plansmith.sagemaker.metrics.cloudwatch import METRICS, TOTAL_LATENCY, Unit
from plansmith.sagemaker.metrics.page import render_page
from plansmith.sagemaker.metrics.values import EndpointMetrics, MetricStatistic, VariantMetrics

from ...support.browser import Browser
from ...support.report.page import Page

SCREENS = {"desktop": (1440, 900), "tablet": (820, 1180), "phone": (375, 812)}
START = datetime(2026, 11, 23, 10, tzinfo=UTC)
END = START + timedelta(hours=3)
GAPS = {*range(61, 80), 100, 102}
"""Minutes without values: twenty, and two of which one lies between."""


def statistic(name: str, kind: str, unit: Unit, *, empty: bool) -> MetricStatistic:
    minutes = [] if empty else [minute for minute in range(180) if minute not in GAPS]
    points = tuple((START + timedelta(minutes=number), 30 * (1 + math.sin(number / 20) / 2)) for number in minutes)
    return MetricStatistic(metric=name, statistic=kind, unit=unit, total=30.0 if points else None, points=points)


def variant(name: str, *, empty: bool = False) -> VariantMetrics:
    listed: list[tuple[str, str, Unit]] = [
        (entry.name, kind, entry.unit) for entry in METRICS for kind in entry.statistics
    ]
    return VariantMetrics(
        name=name,
        shadow=False,
        weight=1.0,
        instances=2,
        instance_type="ml.g5.xlarge",
        statistics=tuple(statistic(*entry, empty=empty) for entry in [*listed, (TOTAL_LATENCY, "Average", "ms")]),
    )


def page_of(*variants: VariantMetrics, name: str = "ranker") -> str:
    return render_page(
        EndpointMetrics(
            endpoint=name,
            region="eu-west-1",
            status="InService",
            created=START - timedelta(days=9),
            start=START,
            end=END,
            period_seconds=60,
            read=END,
            variants=variants,
        )
    )


def test_page() -> None:
    """The page is well-formed, needs no network, and has nine plots of a variant with values and none without."""
    page = Page(page_of(variant("blue"), variant("green", empty=True)))
    assert page.unbalanced == []
    assert "<script" not in page.source
    assert "://" not in page.source
    assert "CloudWatch has no metrics of it in eu-west-1 in that time" in page.text("variant-2")
    assert "Container latency" not in page.text("variant-2")
    labels = [attributes["aria-label"] for attributes in page.all("svg") if attributes.get("role") == "img"]
    assert len(labels) == 9
    assert "Container latency over time: p50 up to 45 ms, p90 up to 45 ms, p99 up to 45 ms" in labels


def test_names_are_escaped() -> None:
    """No name of AWS's becomes markup."""
    source = page_of(variant("<b>blue</b>"))
    assert "<b>blue" not in source
    assert "&lt;b&gt;blue" in source


def test_plots() -> None:
    """A line is broken where there are no values, a lone value is a dot, and all lie in the frame."""
    page = Page(page_of(variant("blue")))
    path = next(attributes["d"] for attributes in page.all("path") if "line1" in attributes["class"])
    (dot,) = [(float(attributes["cx"]), float(attributes["cy"])) for attributes in page.all("circle")][:1]
    assert path.count("M") == 3
    places = [dot, *(tuple(map(float, place)) for place in re.findall(r"[ML]([\d.]+) ([\d.]+)", path))]
    assert len(places) == 180 - len(GAPS)
    assert all(LEFT <= x <= RIGHT and TOP <= y <= BOTTOM for x, y in places)
    text = page.text("variant-1")
    assert [label in text for label in ("0 ms", "20 ms", "40 ms", "10:00", "13:00")] == [True] * 5


@pytest.mark.services
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
def test_width(screen: str, dark: bool, chromium: Browser, tmp_path: Path) -> None:
    """No page is wider than its screen, and none asks the network."""
    width, height = SCREENS[screen]
    path = tmp_path / "ranker.html"
    path.write_text(page_of(variant("blue"), variant("x" * 63, empty=True), name="ranker" * 10), encoding="utf-8")
    chromium.open(path, width=width, height=height, dark=dark)
    assert chromium.evaluate("document.documentElement.scrollWidth") == width
    requests = [event["request"]["url"] for event in chromium.happened("Network.requestWillBeSent")]
    assert {url.partition(":")[0] for url in requests} <= {"file", "data"}


@pytest.mark.services
def test_labels_on_phone(chromium: Browser, tmp_path: Path) -> None:
    """The labels of plots can be read on a phone."""
    path = tmp_path / "ranker.html"
    path.write_text(page_of(variant("blue")), encoding="utf-8")
    chromium.open(path, width=375, height=812)
    heights = "[...document.querySelectorAll('svg.plot text')].map(one => one.getBoundingClientRect().height)"
    assert min(chromium.evaluate(heights)) >= 10
