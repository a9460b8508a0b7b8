"""Comparison figures: from the runs of a cell to its figures, and from a model's cells to differences and costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from statistics import median

from pydantic import Field

from plansmith.loadtest.stages import LoadPlan
from plansmith.records.model import Record
from plansmith.records.validation import Interval
from plansmith.sagemaker.prices import Cost, Price, cost_of
from plansmith.tuning.comparison.cells import Cell, CellRun, CellRunner, Grid, levels_of
from plansmith.tuning.search import paired_ratio

_RANDOM = "-random"

_MIN_ROUNDS = 2
_FEW_ROUNDS = 3


class Source(Record):
    """Source of published figures.

    Attributes:
        where: the document.
        date: of it.
        how: they were measured.
    """

    where: str
    date: str
    how: str


class PublishedFigures(Record):
    """Published figures of a model; None for what the source does not state.

    Attributes:
        model: its name.
        source: the key of its source.
        engine: that ran it.
        hardware: that it ran on.
        instance_type: of SageMaker; empty for none.
        load: that it was under.
        latency_ms: the mean.
        users: the most that sent requests.
        max_users: before the first failure.
        models_loaded: copies of the model that were loaded together.
    """

    model: str
    source: str
    engine: str
    hardware: str
    instance_type: str = ""
    load: str = ""
    latency_ms: float | None = Field(default=None, gt=0)
    p50_ms: float | None = Field(default=None, gt=0)
    p95_ms: float | None = Field(default=None, gt=0)
    requests_per_second: float | None = Field(default=None, gt=0)
    users: int | None = Field(default=None, ge=1)
    max_users: int | None = Field(default=None, ge=0)
    models_loaded: int | None = Field(default=None, ge=1)


class _Table(Record):
    sources: dict[str, Source]
    figures: tuple[PublishedFigures, ...]


def published_figures(models: Iterable[str]) -> tuple[PublishedFigures, ...]:
    """Return the published figures of models, in order.

    Args:
        models: names; NAME-random is the architecture of NAME with random weights, which takes the same time.
    """
    return tuple(
        figures.model_copy(update={"model": model})
        for model in dict.fromkeys(models)
        for figures in _table().figures
        if figures.model == model.removesuffix(_RANDOM)
    )


def source_of(figures: PublishedFigures) -> Source:
    """Return the source of published figures."""
    return _table().sources[figures.source]


@cache
def _table() -> _Table:
    import yaml

    text = (files("plansmith") / "configs" / "compare" / "published.yaml").read_text(encoding="utf-8")
    return _Table.model_validate(yaml.safe_load(text))


class CellFigures(Record):
    """Figures of a cell, as medians over its rounds.

    Attributes:
        rounds: in which it was measured.
        p50_ms: latency with the fewest users; None where none of their requests was answered. Likewise `p95_ms`.
        samples_per_second: the highest of the levels without failures and within the latency limit; None without one.
        at_users: the users of that level; None without one.
        loaded_p95_ms: latency at that level.
        batch_size: mean achieved batch at that level; None where unknown.
        max_users: the most users before the first failure, or before the latency limit; 0 where there are none.
        ended_by: what came then; empty where all levels held.
        saturated: levels of all rounds in which the client, and not the server, limited the load.
        memory_bytes: largest memory of the server's processes.
        gpu_memory_bytes: largest memory in use of all GPUs.
    """

    rounds: int
    p50_ms: float | None = None
    p95_ms: float | None = None
    samples_per_second: float | None = None
    at_users: int | None = None
    loaded_p95_ms: float | None = None
    batch_size: float | None = None
    max_users: int = 0
    ended_by: str = ""
    saturated: int = 0
    memory_bytes: int | None = None
    gpu_memory_bytes: int | None = None


class Difference(Record):
    """Difference of a figure from that of its model's baseline cell.

    Attributes:
        percent: by how much it is higher.
        interval: of the percentage, 95 %, over the rounds that one process measured of both; None for fewer than two.
    """

    percent: float
    interval: Interval | None = None

    @property
    def is_significant(self) -> bool:
        """Whether the interval excludes 0."""
        return self.interval is not None and not self.interval.low <= 0 <= self.interval.high


class Row(Record):
    """A cell with its figures.

    Attributes:
        cell: the cell.
        precision: of its engine; empty where it was not compiled.
        figures: None where it was not measured.
        problem: why it was not, or not in all rounds; empty where it was.
        cost: of its samples per second; None without a price, or without them.
        differences: by name of the figure, beside the first cell of the model.
    """

    cell: Cell
    precision: str = ""
    figures: CellFigures | None = None
    problem: str = ""
    cost: Cost | None = None
    differences: dict[str, Difference] = Field(default_factory=dict)


class Comparison(Record):
    """Comparison of cells that were measured in turn on one machine.

    Attributes:
        plansmith: its version.
        host: machine and server in words.
        grid: the cells of a model.
        plan: the load of each.
        rounds: how often each was measured.
        rows: of all cells, those of a model together.
        price: of an instance; None where none was asked for.
        published: figures that others published of the same models.
        notes: what a reader has to know.
    """

    plansmith: str
    host: str
    grid: Grid
    plan: LoadPlan
    rounds: int
    rows: tuple[Row, ...]
    price: Price | None = None
    published: tuple[PublishedFigures, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def models(self) -> tuple[str, ...]:
        """The models, in order."""
        return tuple(dict.fromkeys(row.cell.model for row in self.rows))

    def rows_of(self, model: str) -> list[Row]:
        """Return the rows of a model."""
        return [row for row in self.rows if row.cell.model == model]


class Pricing(Record):
    """Pricing of serving.

    Attributes:
        price: of an instance; None for no costs.
        target_rate: samples per second to serve; None for none.
        headroom: share of an instance's rate that stays free.
    """

    price: Price | None = None
    target_rate: float | None = None
    headroom: float = 0.0


def make_rows(
    cells: Sequence[Cell], runner: CellRunner, precisions: Mapping[Cell, str], pricing: Pricing
) -> tuple[Row, ...]:
    """Return the rows of a comparison.

    Args:
        cells: in their order.
        runner: has measured them.
        precisions: of the engines, by cell.
        pricing: of their samples.
    """
    rows: list[Row] = []
    limit = runner.plan.stop_when.latency
    first: dict[str, tuple[Row, Sequence[CellRun]]] = {}
    for cell in cells:
        runs = runner.runs.get(cell, [])
        figures = cell_figures(runs, limit.milliseconds if limit else None)
        rate = figures.samples_per_second if figures else None
        row = Row(
            cell=cell,
            precision=precisions.get(cell, ""),
            figures=figures,
            problem=runner.problems.get(cell, ""),
            cost=cost_of(pricing.price, rate, target_rate=pricing.target_rate, headroom=pricing.headroom)
            if pricing.price and rate
            else None,
        )
        base, base_runs = first.setdefault(cell.model, (row, runs))
        if base is not row:
            row = row.model_copy(update={"differences": dict(_differences(row, runs, base, base_runs))})
        rows.append(row)
    return tuple(rows)


def cell_figures(runs: Sequence[CellRun], p95_limit_ms: float | None) -> CellFigures | None:
    """Return the figures of a cell; None if nothing was measured.

    Args:
        runs: of its rounds.
        p95_limit_ms: a level whose p95 latency exceeds it in a round does not hold; None for no limit.
    """
    users = sorted({level.users for run in runs for level in run.levels})
    if not users:
        return None
    counts, ended_by = _sustained_users(runs, users, p95_limit_ms)
    rates = {count: _median(level.samples_per_second for level in levels_of(runs, count)) for count in counts}
    best = max(
        (count for count in counts if rates[count] is not None), key=lambda count: rates[count] or 0, default=None
    )
    fewest = list(levels_of(runs, users[0]))
    loaded = list(levels_of(runs, best)) if best is not None else []
    return CellFigures(
        rounds=len(runs),
        p50_ms=_median(level.p50_ms for level in fewest),
        p95_ms=_median(level.p95_ms for level in fewest),
        samples_per_second=rates[best] if best is not None else None,
        at_users=best,
        loaded_p95_ms=_median(level.p95_ms for level in loaded),
        batch_size=_median(level.batch_size for level in loaded),
        max_users=counts[-1] if counts else 0,
        ended_by=ended_by,
        saturated=sum(level.samples_per_second is None for run in runs for level in run.levels),
        memory_bytes=max((run.memory_bytes for run in runs if run.memory_bytes is not None), default=None),
        gpu_memory_bytes=max((run.gpu_memory_bytes for run in runs if run.gpu_memory_bytes is not None), default=None),
    )


def _sustained_users(
    runs: Sequence[CellRun], users: Sequence[int], p95_limit_ms: float | None
) -> tuple[list[int], str]:
    """The user counts up to the first that a round fails or does not reach, and the reason there."""
    counts: list[int] = []
    for count in users:
        levels = list(levels_of(runs, count))
        failed = sum(level.failed for level in levels)
        if failed:
            return counts, f"{failed} of {sum(level.requests for level in levels)} requests failed with {count} users"
        slow = max((level.p95_ms or 0.0 for level in levels), default=0.0)
        if p95_limit_ms is not None and slow > p95_limit_ms:
            return counts, f"p95 was {slow:.0f} ms with {count} users"
        if len(levels) < len(runs):
            return counts, next((run.ended_by for run in runs if run.ended_by), f"not all rounds came to {count} users")
        counts.append(count)
    return counts, next((run.ended_by for run in runs if run.ended_by), "")


def _differences(
    row: Row, runs: Sequence[CellRun], base: Row, base_runs: Sequence[CellRun]
) -> Iterator[tuple[str, Difference]]:
    own, baseline = row.figures, base.figures
    if own is None or baseline is None:
        return
    fewest = min((level.users for run in runs for level in run.levels), default=0)

    def best(figures: CellFigures) -> Callable[[CellRun], float | None]:
        return lambda run: next(
            (entry.samples_per_second for entry in run.levels if entry.users == figures.at_users), None
        )

    def latency(name: str) -> Callable[[CellRun], float | None]:
        return lambda run: next((getattr(entry, name) for entry in run.levels if entry.users == fewest), None)

    intervals = {
        "p50_ms": _interval(runs, latency("p50_ms"), base_runs, latency("p50_ms")),
        "p95_ms": _interval(runs, latency("p95_ms"), base_runs, latency("p95_ms")),
        "samples_per_second": _interval(runs, best(own), base_runs, best(baseline)),
    }
    for name in ("p50_ms", "p95_ms", "samples_per_second", "max_users", "memory_bytes", "gpu_memory_bytes"):
        value, reference = getattr(own, name), getattr(baseline, name)
        if value is not None and reference:
            interval = intervals.get(name)
            percent = interval.value if interval else (value / reference - 1) * 100
            yield name, Difference(percent=percent, interval=interval)
    if row.cost and base.cost:
        percent = (row.cost.usd_per_million / base.cost.usd_per_million - 1) * 100
        yield "usd_per_million", Difference(percent=percent, interval=_inverse(intervals["samples_per_second"]))


def _interval(
    runs: Sequence[CellRun],
    value: Callable[[CellRun], float | None],
    base_runs: Sequence[CellRun],
    base_value: Callable[[CellRun], float | None],
) -> Interval | None:
    """Confidence interval of the difference in percent, over rounds that measured both in one process."""
    base = {(run.round_number, run.session): base_value(run) for run in base_runs}
    pairs = [(value(run), base.get((run.round_number, run.session))) for run in runs]
    ratios = [own / baseline for own, baseline in pairs if own and baseline]
    if len(ratios) < _MIN_ROUNDS:
        return None
    ratio = paired_ratio(ratios)
    return Interval(value=(ratio.value - 1) * 100, low=(ratio.low - 1) * 100, high=(ratio.high - 1) * 100)


def _inverse(interval: Interval | None) -> Interval | None:
    """Convert the interval of a difference in percent to that of the inverse quantity, as cost is inverse to rate."""
    if interval is None:
        return None
    value, high, low = ((100 / (100 + percent) - 1) * 100 for percent in (interval.value, interval.low, interval.high))
    return Interval(value=value, low=low, high=high)


def _median(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return median(numbers) if numbers else None


def comparison_notes(rows: Sequence[Row], runner: CellRunner, rounds: int, pricing: Pricing) -> Iterator[str]:
    """Yield notes that qualify a comparison's results."""
    if pricing.price is not None:
        instance = pricing.price.instance_type or "an instance of the given price"
        yield f"costs are those of {instance} if it answered as this machine does ({runner.host}): measure there"
    if rounds < _FEW_ROUNDS:
        counted = "one round says" if rounds == 1 else f"{rounds} rounds say"
        yield f"{counted} little about chance: measure more (--rounds 5)"
    saturated = sum(row.figures.saturated for row in rows if row.figures)
    if saturated:
        yield f"in {saturated} levels the client, and not the server, limited the load: they have no figures"
    yield from sorted({note for runs in runner.runs.values() for run in runs for note in run.notes})
    failed = sum(bool(row.problem) for row in rows)
    if failed:
        yield f"{failed} of {len(rows)} cells failed; the same command tries them again"
