"""Load test plots: metrics against the load of the stages, failures as bars, and a timeline."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from plansmith.loadtest.report.findings import is_rising, load_of, statistics_of
from plansmith.loadtest.results import Histogram, Latency, LoadReport, RequestStats, Second, StageResult
from plansmith.report.numbers import amount
from plansmith.report.plots import STYLES, Axis, BarPlot, Bars, LinePlot, Series, axis_from_zero, bar_plot, line_plot

Figure = Callable[[StageResult], float | None]

_MAX_KINDS = 6
_MAX_LABELS = 8
_MAX_POINTS = 120
"""Of a line in the timeline: about one for each three units of the plot."""
_TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400)
_MAX_TIMES = 6
_NINES, _NINES_MARGIN = 3.0, 0.15
_STEPS_PER_NINE = 20
"""Points of a distribution between 90 and 99 %."""


def stage_plots(report: LoadReport) -> list[LinePlot]:
    """Plot throughput, latency and the server's figures against the load of the stages; omits plots without values."""
    results = report.stages
    latencies = [
        (name, _latency(lambda latency, field=f"{name}_ms": float(getattr(latency, field))))  # type: ignore[misc]
        for name in ("p50", "p90", "p95", "p99")
    ]
    plots: list[tuple[str, str, list[tuple[str, Figure]]]] = [
        (
            "Requests per second",
            "count",
            [("answered", lambda result: result.stats.throughput), ("due", lambda result: result.offered)],
        ),
        (f"Latency, {_loops(results)} loop", "ms", latencies),
    ]
    for model in report.target.names:
        suffix = f" of {model}" if len(report.target.names) > 1 else ""
        batch, queue, compute = _server_figures(model)
        plots.append((f"Achieved batch size{suffix}", "count", [("samples per execution", batch)]))
        plots.append((f"Time on the server{suffix}", "ms", [("queue", queue), ("inference", compute)]))
    plots += [
        ("CPU cores", "count", [("server", lambda result: result.server.cores), ("client", _client_cores)]),
        ("GPU", "percent", [("utilization", _gpu_utilization)]),
    ]
    drawn = (_over_load(results, title, unit, figures) for title, unit, figures in plots)
    return [plot for plot in drawn if plot is not None]


def distribution_plot(report: LoadReport) -> LinePlot | None:
    """Plot the latency distribution by stage, as latency over share of requests; None if no stage has latencies.

    The lower axis gives each further nine of the share as much room as the one before (90 %, 99 %, 99.9 %): the tail is
    what differs. Of a stage with fewer than 1000 answers, the line ends where one request is left.
    """
    answered = [
        (number, result.stage.label, result.stats)
        for number, result in enumerate(report.stages, 1)
        if result.stats.latency and result.stats.buckets
    ]
    drawn = [answered[place] for place in _spread(len(answered), STYLES)]
    series = [Series(f"stage {number}: {label}", list(_percentile_curve(stats))) for number, label, stats in drawn]
    marks = ((0.0, "min"), *((_nines(percent), f"p{percent:g}") for percent in (50, 90, 99, 99.9)))
    across = Axis(0.0, _NINES + _NINES_MARGIN, marks)
    return _plot(f"Latency by percentile, {_loops(report.stages)} loop", "ms", series, across, "percentiles")


def axis_label(results: Sequence[StageResult]) -> str:
    """Return the x-axis label of the plots over the stages."""
    return _load_axis(results)[2]


def failure_plot(report: LoadReport) -> BarPlot | None:
    """Plot failed requests by stage and kind; None if none failed."""
    counts: dict[str, int] = {}
    for failure in (failure for result in report.stages for failure in result.failures):
        counts[failure.kind] = counts.get(failure.kind, 0) + failure.count
    kinds = sorted(counts, key=lambda kind: -counts[kind])
    if not kinds:
        return None
    named = kinds if len(kinds) <= _MAX_KINDS else kinds[: _MAX_KINDS - 1]
    bars = [Bars(kind, _failures(report.stages, {kind})) for kind in named]
    if len(kinds) > len(named):
        bars.append(Bars("other kinds", _failures(report.stages, set(kinds[len(named) :]))))
    return bar_plot("Failed requests", _labels(report.stages), bars, lambda value: amount(value, "count"))


def timeline_plots(report: LoadReport) -> list[LinePlot]:
    """Plot requests, latency and users by second; long tests merge several seconds into a point."""
    if not report.timeline:
        return []
    end = float(report.timeline[-1].at + 1)
    across = Axis(0.0, end, tuple(_times(end)))
    size = math.ceil(len(report.timeline) / _MAX_POINTS)
    bins = [report.timeline[start : start + size] for start in range(0, len(report.timeline), size)]

    def series(name: str, value: Callable[[Sequence[Second]], float | None]) -> Series:
        return Series(name, [(seconds[0].at + len(seconds) / 2, value(seconds)) for seconds in bins])

    failed = [series("failed", lambda seconds: sum(second.failed for second in seconds) / len(seconds))]
    has_failures = any(second.failed for second in report.timeline)
    plots = [
        (
            "Requests per second",
            "count",
            [
                series("answered", lambda seconds: sum(second.answered for second in seconds) / len(seconds)),
                *(failed if has_failures else []),
            ],
        ),
        (
            "Latency",
            "ms",
            [
                series("p50", lambda seconds: _largest([second.p50_ms for second in seconds])),
                series("p95", lambda seconds: _largest([second.p95_ms for second in seconds])),
            ],
        ),
    ]
    if any(second.users for second in report.timeline):
        plots.append(("Users", "count", [series("users", lambda seconds: max(second.users for second in seconds))]))
    drawn = (_plot(title, unit, lines, across, "time") for title, unit, lines in plots)
    return [plot for plot in drawn if plot is not None]


def _over_load(
    results: Sequence[StageResult], title: str, unit: str, figures: Sequence[tuple[str, Figure]]
) -> LinePlot | None:
    places, across, over = _load_axis(results)
    series = [
        Series(name, [(place, figure(result)) for place, result in zip(places, results, strict=True)])
        for name, figure in figures
    ]
    return _plot(title, unit, series, across, over)


def _plot(title: str, unit: str, series: Sequence[Series], across: Axis, over: str) -> LinePlot | None:
    """Return the plot; None if no series has a value."""
    values = [value for line in series for _, value in line.points if value is not None]

    def format_value(value: float) -> str:
        return amount(value, unit)  # type: ignore[arg-type] # one of three words

    if not values:
        return None
    return line_plot(title, series, across, axis_from_zero(values, format_value), format_value, over=over)


def _percentile_curve(stats: RequestStats) -> Iterator[tuple[float, float]]:
    """Return the points of a percentile curve: positions on the percentile axis and latencies."""
    assert stats.latency is not None
    latencies = Histogram.from_list([list(stats.buckets.items()), 0.0, stats.latency.min_ms, stats.latency.max_ms])
    yield 0.0, latencies.min_ms
    for step in range(1, round(_NINES * _STEPS_PER_NINE) + 1):
        nines = step / _STEPS_PER_NINE
        if latencies.count * 10**-nines < 1 - 1e-9:
            break
        yield nines, latencies.percentile(100 - 100 * 10**-nines)


def _nines(percent: float) -> float:
    """Return the position of a share on an axis of nines: 90 % at 1, 99 % at 2."""
    return -math.log10(1 - percent / 100)


def _spread(count: int, most: int) -> list[int]:
    """Return a limited number of positions from 0 to count, evenly spaced, with the first and the last."""
    return [round(number * (count - 1) / (most - 1)) for number in range(most)] if count > most else list(range(count))


def _largest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _load_axis(results: Sequence[StageResult]) -> tuple[list[float], Axis, str]:
    """Return the x positions of stages and the axis label: their loads if these increase, or else their order."""
    loads = [load_of(result) for result in results]
    numbers = [float(load) for load in loads if load is not None]
    if len(numbers) == len(results) > 1 and is_rising(results):
        unit = "users" if results[0].loop == "closed" else "requests due per second"
        return numbers, axis_from_zero(numbers, lambda value: f"{value:,g}"), unit
    places = [float(number) for number in range(len(results))]
    labels = _labels(results)
    every = -(-len(labels) // _MAX_LABELS)
    marks = tuple((places[number], labels[number]) for number in range(0, len(labels), max(every, 1)))
    return places, Axis(-0.5, len(results) - 0.5, marks), "the stages"


def _labels(results: Sequence[StageResult]) -> list[str]:
    """Return short stage labels: loads if all are of one kind, or else numbers."""
    loads = [load_of(result) for result in results]
    if len({result.loop for result in results}) == 1 and None not in loads:
        return [f"{load:,.4g}" for load in loads]
    return [str(number) for number in range(1, len(results) + 1)]


def _loops(results: Sequence[StageResult]) -> str:
    return " and ".join(sorted({result.loop for result in results}))


def _latency(figure: Callable[[Latency], float]) -> Figure:
    return lambda result: figure(result.stats.latency) if result.stats.latency else None


def _server_figures(model: str) -> tuple[Figure, Figure, Figure]:
    """Return batch size, queue time and inference time of a model."""

    def batch(result: StageResult) -> float | None:
        served = statistics_of(result, model)
        return served.batch_size if served and served.executions else None

    def queue(result: StageResult) -> float | None:
        served = statistics_of(result, model)
        return served.queue_ms if served and served.executions else None

    def compute(result: StageResult) -> float | None:
        served = statistics_of(result, model)
        return served.compute_ms if served and served.executions else None

    return batch, queue, compute


def _client_cores(result: StageResult) -> float | None:
    return result.client.cores or None


def _gpu_utilization(result: StageResult) -> float | None:
    values = [gpu.utilization for gpu in result.server.gpus if gpu.utilization is not None]
    return 100 * max(values) if values else None


def _failures(results: Sequence[StageResult], kinds: set[str]) -> list[float]:
    return [sum(failure.count for failure in result.failures if failure.kind in kinds) for result in results]


def _times(end: float) -> Iterator[tuple[float, str]]:
    """Format time axis labels: 40 s, 1:30, 2:15:00."""
    step = next((step for step in _TIME_STEPS if end / step <= _MAX_TIMES), _TIME_STEPS[-1])
    for at in range(0, int(end) + 1, step):
        minutes, seconds = divmod(at, 60)
        if end < 120:
            yield float(at), f"{at} s"
        elif end < 7200:
            yield float(at), f"{minutes}:{seconds:02}"
        else:
            yield float(at), f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
