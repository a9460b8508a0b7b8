"""From the runs of cells to figures, differences and costs."""

from __future__ import annotations

import pytest

from plansmith.loadtest.stages import LoadPlan, Stage
from plansmith.records.model import EngineKind
from plansmith.sagemaker.prices import make_price
from plansmith.tuning.comparison.cells import Cell, CellRun, CellRunner, Level
from plansmith.tuning.comparison.figures import Pricing, Row, cell_figures, make_rows, published_figures, source_of

BASE = Cell(model="net", engine=EngineKind.PYTHON, batching=False, instances=1)
OTHER = Cell(model="net", engine=EngineKind.ONNXRUNTIME, batching=True, instances=2)


def level(users: int, rate: float | None, p95_ms: float = 10.0, *, failed: int = 0) -> Level:
    return Level(
        users=users,
        requests=100,
        failed=failed,
        samples_per_second=rate,
        p50_ms=p95_ms / 2,
        p95_ms=p95_ms,
        p99_ms=p95_ms * 2,
    )


def cell_run(number: int, *levels: Level, session: str = "a", ended_by: str = "") -> CellRun:
    return CellRun(
        key=f"{session}{number}",
        round_number=number,
        session=session,
        levels=levels,
        memory_bytes=2**20 * number,
        ended_by=ended_by,
    )


def rows_of(base: list[CellRun], variant: list[CellRun], pricing: Pricing | None = None) -> tuple[Row, ...]:
    """Both cells' rows."""
    runner = CellRunner(LoadPlan(stages=(Stage(users=1, seconds=1),)), "host", "session")
    runner.runs = {BASE: base, OTHER: variant}
    return make_rows([BASE, OTHER], runner, {}, pricing or Pricing())


def test_figures_are_medians_over_rounds() -> None:
    """Latencies are those with the fewest users, the rate is the highest without failures."""
    runs = [
        cell_run(1, level(1, 50, 8), level(10, 200, 40), level(20, 180, 90)),
        cell_run(2, level(1, 52, 10), level(10, 220, 44), level(20, 190, 95)),
        cell_run(3, level(1, 48, 12), level(10, 230, 48), level(20, 170, 99)),
    ]
    figures = cell_figures(runs, None)
    assert figures is not None
    assert (figures.p50_ms, figures.p95_ms) == (5, 10)
    assert (figures.samples_per_second, figures.at_users, figures.loaded_p95_ms) == (220, 10, 44)
    assert (figures.max_users, figures.ended_by, figures.memory_bytes) == (20, "", 3 * 2**20)


@pytest.mark.parametrize(
    ("last", "limit", "reason"),
    [
        (level(20, 500, failed=3), None, "3 of 200 requests failed with 20 users"),
        (level(20, 500, 80), 50, "p95 was 80 ms with 20 users"),
    ],
)
def test_first_failure_limits_the_users(last: Level, limit: float | None, reason: str) -> None:
    """What a cell answers beyond the first failure or the latency limit of any round does not count."""
    runs = [cell_run(1, level(1, 50), level(10, 200), level(20, 500)), cell_run(2, level(1, 50), level(10, 200), last)]
    figures = cell_figures(runs, limit)
    assert figures is not None
    assert (figures.max_users, figures.samples_per_second, figures.ended_by) == (10, 200, reason)


def test_early_round_end_limits_users() -> None:
    """Users that a round did not come to do not count; a saturated client has no figures."""
    runs = [
        cell_run(1, level(1, 50), level(10, 200), level(20, None)),
        cell_run(2, level(1, 50), level(10, 220), ended_by="the server was lost"),
    ]
    figures = cell_figures(runs, None)
    assert figures is not None
    assert (figures.max_users, figures.ended_by, figures.saturated) == (10, "the server was lost", 1)
    assert cell_figures([cell_run(1)], None) is None


def test_differences_have_paired_intervals() -> None:
    """A difference is significant where the interval over rounds of one session excludes it being chance."""
    base = [cell_run(number, level(1, 100 + number, 10)) for number in (1, 2, 3)]
    variant = [cell_run(number, level(1, 200 + 3 * number, 10 + number % 2)) for number in (1, 2, 3)]
    first, second = rows_of(base, variant)
    assert first.differences == {}
    rate = second.differences["samples_per_second"]
    assert rate.percent == pytest.approx(101, abs=1)
    assert rate.is_significant
    assert not second.differences["p95_ms"].is_significant
    assert second.differences["max_users"].percent == 0
    elsewhere = [cell_run(number, level(1, 200 + 3 * number), session="b") for number in (1, 2, 3)]
    assert rows_of(base, elsewhere)[1].differences["samples_per_second"].interval is None


def test_costs_follow_rate_and_price() -> None:
    """Three instances of $1 answer 250 samples/s at 100 each; a million samples at 100/s cost $2.78."""
    pricing = Pricing(price=make_price(1.0), target_rate=250)
    (row, cheaper) = rows_of([cell_run(1, level(1, 100))], [cell_run(1, level(1, 200))], pricing)
    assert row.cost is not None
    assert (row.cost.instances, row.cost.usd_per_hour) == (3, 3.0)
    assert row.cost.usd_per_million == pytest.approx(2.778, abs=1e-3)
    assert cheaper.differences["usd_per_million"].percent == pytest.approx(-50)


def test_cost_difference_uncertain_like_rates() -> None:
    """A rate that is 100 to 300 % higher makes costs that are 50 to 75 % lower; one that may be chance, neither."""
    base = [cell_run(number, level(1, 100)) for number in (1, 2, 3)]
    faster = [cell_run(number, level(1, rate)) for number, rate in enumerate((210, 200, 190), 1)]
    noisy = [cell_run(number, level(1, rate)) for number, rate in enumerate((210, 90, 60), 1)]
    for runs, is_significant in ((faster, True), (noisy, False)):
        differences = rows_of(base, runs, Pricing(price=make_price(1.0)))[1].differences
        rate, cost = differences["samples_per_second"].interval, differences["usd_per_million"].interval
        assert rate is not None
        assert cost is not None
        assert (1 + rate.low / 100) * (1 + cost.high / 100) == pytest.approx(1)
        assert (1 + rate.high / 100) * (1 + cost.low / 100) == pytest.approx(1)
        assert differences["usd_per_million"].is_significant is is_significant


def test_published_figures_have_sources() -> None:
    """Models with random weights have the figures of their architecture, with hardware and source."""
    figures = published_figures(["bert-base-random", "net"])
    assert {figure.model for figure in figures} == {"bert-base-random"}
    assert all(figure.hardware and source_of(figure).where and source_of(figure).date for figure in figures)
