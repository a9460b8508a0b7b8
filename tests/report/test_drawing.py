"""Charts: scales that hold all points, labels that do not hide each other, odd sets of trials and layers."""

from __future__ import annotations

import itertools

import pytest

from plansmith.records.model import LayerError, Precision, SpeedRatio, Trial
from plansmith.report import plots, tradeoff
from plansmith.report.layers import layer_chart
from plansmith.report.tradeoff import frontier_of


def trial(score: float, ratio: float | None = None, lowered: int = 5, size: int = 1000) -> Trial:
    speed = None
    if ratio is not None:
        low, high = 0.9 * ratio, 1.1 * ratio
        speed = SpeedRatio(ratio=ratio, low=low, high=high, repeats=9, setting="batch 8", verdict="faster")
    return Trial(
        name="t",
        precision=Precision.INT8,
        lowered=lowered,
        kept=10 - lowered,
        file_bytes=size,
        score=score,
        worst=score,
        problem=None,
        speed=speed,
        chosen=False,
    )


ODD = {
    "one that is exact": [trial(1.0)],
    "one alone": [trial(0.99)],
    "answers turned round": [trial(-1.0, 2.0), trial(1.0, 1.0)],
    "nothing to lower": [trial(1.0, lowered=0).model_copy(update={"kept": 0})],
    "empty files": [trial(0.9, 1.0, size=0)],
    "nine digits": [trial(1 - 10.0**-n, 1.0 + n) for n in range(1, 10)],
    "one a hundred times as fast": [trial(0.99, 100.0), trial(1.0, 1.0)],
}


@pytest.mark.parametrize("trials", ODD.values(), ids=ODD.keys())
def test_marks_stay_inside_plot(trials: list[Trial]) -> None:
    """Every dot and line is inside of the plot."""
    drawn = frontier_of(trials)
    assert drawn is not None
    for panel in drawn.panels:
        across = [p for dot in panel.dots for p in (dot.x, dot.low, dot.high)] + [tick.at for tick in panel.notches]
        down = [dot.y for dot in panel.dots] + [tick.at for tick in panel.rules]
        assert all(tradeoff.LEFT <= place <= tradeoff.RIGHT for place in across)
        assert all(tradeoff.TOP - 0.01 <= place <= tradeoff.BOTTOM + 0.01 for place in down)
        assert 2 <= len(panel.rules) <= 8
        assert len({tick.label for tick in panel.rules}) == len(panel.rules)


def test_unmeasured_speed_has_no_plot() -> None:
    """A speed that nobody measured has no plot."""
    drawn = frontier_of([trial(0.9), trial(0.99)])
    assert drawn is not None
    assert [panel.title for panel in drawn.panels] == ["Accuracy and nodes lowered"]
    assert [row.speed for row in drawn.rows] == ["", ""]
    assert frontier_of([]) is None


def test_scores_placed_by_distance_from_1() -> None:
    """Scores stand by their distance from 1."""
    drawn = frontier_of([trial(0.9), trial(0.99), trial(0.999)])
    assert drawn is not None
    low, middle, high = sorted((dot.number, dot.y) for dot in drawn.panels[0].dots)
    assert low[1] - middle[1] == pytest.approx(middle[1] - high[1])
    assert [tick.label for tick in drawn.panels[0].rules] == ["0.999", "0.99", "0.9"]


def test_crowded_labels_do_not_overlap() -> None:
    """Labels of dots that lie together do not hide each other."""
    dots = [(str(n), 200.0 + 3 * n, 100.0 + 2 * (n % 3), 6.0) for n in range(8)]
    placed = plots.place_labels(dots, (0, 0, 400, 300))
    assert [label.text for label in placed] == [text for text, *_ in dots]
    for first, second in itertools.combinations(placed, 2):
        assert abs(first.x - second.x) >= plots.CHARACTER or abs(first.y - second.y) >= plots.LINE


def test_layer_scale_holds_every_level() -> None:
    """The scale of a layer chart holds every level."""
    levels = (-80.0, 12.0, 1e300, -1e300, 61.0)
    chart = layer_chart([LayerError(node=f"n{x}", op_type="Gemm", lowered=True, sqnr_db=x) for x in levels])
    assert chart is not None
    tops = [float(mark.top.removesuffix("%")) for mark in chart.marks]
    assert all(0 <= top <= 100 for top in tops)
    assert [row.node for row in chart.worst][:2] == ["n-80.0", "n-1e+300"]
    assert chart.worst[0].rank == 1
    assert layer_chart([]) is None
