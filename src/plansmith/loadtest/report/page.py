"""One self-contained HTML page of a load test: needs no network and runs no script."""

from __future__ import annotations

from collections.abc import Iterator

from plansmith import __version__
from plansmith.formatting import format_bytes, format_seconds, minute
from plansmith.loadtest.report import findings
from plansmith.loadtest.report.findings import format_list, format_number, format_percent, statistics_of
from plansmith.loadtest.report.plots import axis_label, distribution_plot, failure_plot, stage_plots, timeline_plots
from plansmith.loadtest.report.table import HEADS, legend, shown_columns, table_rows
from plansmith.loadtest.results import LoadReport
from plansmith.report.line_plot import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH
from plansmith.report.templating import template_environment
from plansmith.report.verdict import Tile

_PACKAGE = "plansmith.loadtest.report"
_TEMPLATE = "loadtest.html"


def render_page(report: LoadReport) -> str:
    """The whole page."""
    rows = table_rows(report)
    is_fault = report.ending not in {"done", "threshold"}
    ending = findings.ending_sentence(report)
    lede = [*findings.throughput_sentences(report), *([ending] if report.ending == "threshold" else [])]
    faults = [*([ending] if is_fault else []), *findings.failure_sentences(report)]
    template = template_environment(_PACKAGE).get_template(_TEMPLATE)
    return template.render(
        plansmith=__version__,
        report=report,
        name=format_list(report.target.names),
        began=minute(report.began_at),
        duration=format_seconds(report.seconds),
        lede=lede,
        faults=faults,
        cautions=[*findings.saturation_sentences(report), *map(_sentence, report.notes)],
        tiles=list(_tiles(report)),
        plots=stage_plots(report),
        axis=axis_label(report.stages),
        failure_plot=failure_plot(report),
        distribution=distribution_plot(report),
        timeline=timeline_plots(report),
        heads=HEADS,
        places=shown_columns(rows),
        rows=rows,
        legend=legend(report),
        failures=[failure for result in report.stages for failure in result.failures],
        facts=list(_facts(report)),
        frame=(WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM),
    )


def _sentence(note: str) -> str:
    return f"{note[:1].upper()}{note[1:]}."


def _tiles(report: LoadReport) -> Iterator[Tile]:
    best = findings.best_stage(report)
    if best is not None and best.stats.throughput is not None and best.stats.latency is not None:
        latency = best.stats.latency
        yield Tile("Best throughput", f"{format_number(best.stats.throughput)}/s", f"requests, {best.stage.label}")
        note = f"p50 {format_number(latency.p50_ms)} ms, p99 {format_number(latency.p99_ms)} ms, {best.loop} loop"
        yield Tile("p95 latency there", f"{format_number(latency.p95_ms)} ms", note)
    requests = sum(result.stats.requests for result in report.stages)
    failed = sum(result.stats.failed for result in report.stages)
    yield Tile("Failed", format_percent(failed / requests) if failed else "0", f"{failed:,} of {requests:,} requests")
    served = statistics_of(best, next(iter(best.models), "")) if best is not None and len(best.models) == 1 else None
    if served is not None and served.executions:
        yield Tile(
            "Achieved batch", format_number(served.batch_size), f"{format_number(served.queue_ms)} ms in the queue"
        )
    if best is not None and best.server.cores is not None:
        memory = best.server.memory_bytes
        yield Tile("Server", f"{best.server.cores:.1f} cores", f"{format_bytes(memory)} of memory" if memory else "")


def _facts(report: LoadReport) -> Iterator[tuple[str, str]]:
    """What was tested, how and from where."""
    target, plan = report.target, report.plan
    yield "Server", f"{report.server} at {target.address}"
    for name in target.names:
        yield name, ", ".join(filter(None, [report.releases.get(name, ""), report.inputs.get(name, "")]))
    yield "Requests", f"{'gRPC' if target.protocol == 'grpc' else 'HTTP'}, {target.encoding}"
    if plan.warm_up is not None:
        yield "Warm-up", f"{plan.warm_up.label}, {format_seconds(plan.warm_up.seconds or 0)}"
    yield "Stops at", "; ".join(plan.stop_when.describe()) or "the end of the last stage"
    yield "Client", f"{report.machine}; {plan.processes} process{'' if plan.processes == 1 else 'es'}, seed {plan.seed}"
