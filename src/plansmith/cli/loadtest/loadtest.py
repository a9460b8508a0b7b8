"""`plansmith loadtest`."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.loadtest.options import loadtest_options
from plansmith.cli.store.completion import complete_served
from plansmith.cli.streams import open_console
from plansmith.cli.text import echo_lines, printable, short
from plansmith.errors import EXIT_INTERRUPTED, PlansmithError

if TYPE_CHECKING:
    from plansmith.cli.loadtest.plan import RequestedTest
    from plansmith.cli.loadtest.target import RequestedTarget
    from plansmith.loadtest.results import LoadReport
    from plansmith.loadtest.runner.workers import RemoteWorkers
    from plansmith.loadtest.server.connect import PreparedTarget

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


_EPILOG = """\
\b
Examples:
  plansmith loadtest minilm
  plansmith loadtest minilm --users 10 --seconds 30
  plansmith loadtest minilm --ramp staged --stop-p95 200ms --stop-error-rate 1%
  plansmith loadtest minilm resnet@3=0.2 --rate 50,100,200 --poisson
  plansmith loadtest bert --url grpc://gpu-box:8001 --trace monday.txt --processes 4
  plansmith loadtest http://gpu-box:8000/v2/models/bert --users 1,8,32 --batch 1
  plansmith loadtest minilm --endpoint minilm-prod --region eu-west-1 --ramp staged --stop-p95 200ms
  plansmith loadtest bert=3 t5 --endpoint many --target-model bert=bert-1.tar.gz --target-model t5=t5-2.tar.gz
  plansmith loadtest minilm --url http://127.0.0.1:8080/invocations
  plansmith loadtest bert --url http://gpu-box:8000 --users 2000 --expect-workers 3
  plansmith loadtest --worker driver:5557 --processes 4
  plansmith loadtest --plan plan.yaml --output results --json

\b
A plan:
  models: [{model: minilm, weight: 3, batches: [1, 4]}, {model: resnet@3}]
  stages:
    - {users: 10, seconds: 30}
    - {rate: 100, arrivals: poisson, seconds: 60}
  stop_when: {latency: {percentile: 95, milliseconds: 200}, error_rate: 0.01}

\b
Exit codes: 0 the test came to its end, or to a threshold; 8 the server refused the first request, was lost, or
answered none; 9 something is missing or not reached, or the client was saturated; 130 interrupted, with a report.
"""


@click.command("loadtest", epilog=_EPILOG, short_help="Measure throughput and latency of served models under load.")
@click.argument("models", nargs=-1, metavar="[MODEL[@VERSION][=WEIGHT]]...", shell_complete=complete_served)
@loadtest_options
def loadtest_command(models: tuple[str, ...], **options: Any) -> None:
    """Send requests to models from many clients, stage by stage, and measure throughput and latency.

    MODEL of the repository is served by a Triton that is started for the test; with --url, or a URL that ends in
    /v2/models/MODEL, a running one is tested. Several models with weights are a mix.

    Closed loop (--users, --ramp): each user waits for its answer. Open loop (--rate, --trace): requests are due at
    times of their own, and latencies count from these. Without any of them, 1, 2, 4, 8, 16 and 32 users run for 10 s
    each. Requests have the real inputs that the release keeps, at mixed sizes; those of an unknown model are random.

    With --endpoint the models answer behind an endpoint of SageMaker: each request is signed and sent once. Their
    releases tell what they take; --target-model names the archive of each in a multi-model endpoint.

    With --expect-workers the load comes from other machines, on which plansmith loadtest --worker HOST:PORT runs.

    Figures of a stage in which the client, and not the server, was the limit are withheld.
    """
    from plansmith.cli.loadtest.dry_run import show_plan
    from plansmith.cli.loadtest.plan import read_test
    from plansmith.cli.loadtest.target import read_target
    from plansmith.cli.loadtest.workers import read_workers, run_worker, terminable
    from plansmith.cli.text import require_text
    from plansmith.loadtest.runner.run import require_locust

    require_text(*models)
    if options["worker"]:
        run_worker(models, options)
        return
    target = read_target(models, options)
    test = read_test(target.names, options)
    workers = read_workers(target, test, options)
    if options["dry_run"]:
        show_plan(target, test, options)
        return
    require_locust()
    folder = options["output"] or _default_folder(target, test)
    try:
        with terminable():
            report, ready = _run(target, test, folder, options, workers)
    except KeyboardInterrupt:
        click.echo("plansmith: interrupted before the load began; nothing was measured", err=True)
        sys.exit(EXIT_INTERRUPTED)
    _finish(report, ready, folder, as_json=options["as_json"])


def _run(
    target: RequestedTarget, test: RequestedTest, folder: Path, options: dict[str, Any], workers: RemoteWorkers | None
) -> tuple[LoadReport, PreparedTarget]:
    """Start what has to be started, run the test, and store its report.

    Raises:
        KeyboardInterrupt: before the load began; a later one ends the test, which has a report.
    """
    from plansmith.cli.loadtest.progress import LoadProgress
    from plansmith.cli.loadtest.target import prepared
    from plansmith.cli.loadtest.workers import show_workers
    from plansmith.loadtest.report.files import store_report
    from plansmith.loadtest.runner.run import run_load
    from plansmith.system.files import storage_errors

    quiet = options["quiet"] or options["as_json"]
    with storage_errors(folder, other="--output folder"):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with (
            prepared(target, test, options, folder, quiet=quiet) as ready,
            LoadProgress(len(test.plan.stages), quiet=quiet) as progress,
        ):
            show_workers(workers, quiet=quiet)
            report = run_load(
                ready.target,
                test.plan,
                folder=folder,
                monitor=ready.monitor,
                workers=workers,
                progress=progress.show,
            )
            report = _completed(report, ready)
            store_report(report, folder)
    finally:
        with suppress(OSError):
            folder.rmdir()  # of a test that never began nothing stays
    return report, ready


def _completed(report: LoadReport, prepared: PreparedTarget) -> LoadReport:
    """The report with what is known of the server and the requests."""
    notes = [*prepared.notes, *report.notes]
    monitor = prepared.monitor
    if monitor is not None and monitor.others:
        notes.append(f"other models of the server answered requests meanwhile: {', '.join(sorted(monitor.others))}")
    if monitor is not None and monitor.error and report.ending != "server-lost":
        notes.append(f"the server's own figures are not complete: {monitor.error}")
    update = {
        "server": prepared.server,
        "releases": dict(prepared.releases),
        "inputs": {name: chosen.description for name, chosen in prepared.inputs.items()},
        "notes": tuple(notes),
    }
    return report.model_copy(update=update)


def _finish(report: LoadReport, prepared: PreparedTarget, folder: Path, *, as_json: bool) -> None:
    """Print the report, and end with its exit code."""
    from plansmith.loadtest.report.findings import failure_of

    if as_json:
        click.echo(report.model_dump_json())
    else:
        _print(report, prepared, folder)
    if report.ending == "interrupted":
        sys.exit(EXIT_INTERRUPTED)
    error: PlansmithError | None = failure_of(report)
    if error is not None:
        click.echo(f"plansmith: {error}", err=True)  # the report is the document already
        sys.exit(error.exit_code)


def _print(report: LoadReport, prepared: PreparedTarget, folder: Path) -> None:
    from plansmith.loadtest.report.files import PAGE_FILE
    from plansmith.loadtest.report.findings import summary
    from plansmith.loadtest.report.table import legend, terminal_table

    protocol = "gRPC" if report.target.protocol == "grpc" else "HTTP"
    lines = [f"{prepared.server}: {', '.join(report.target.names)} over {protocol}, {report.target.encoding}"]
    lines += [f"  {model}: {printable(chosen.description)}" for model, chosen in prepared.inputs.items()]
    echo_lines(lines)
    if report.stages:
        open_console().print(terminal_table(report), soft_wrap=False)
        echo_lines([legend(report)])
    echo_lines(summary(report))
    failures = [failure for result in report.stages for failure in result.failures]
    if failures:
        click.echo(f"The first failure ({failures[0].kind}): {printable(failures[0].first)}")
    echo_lines([f"Note: {printable(note)}." for note in report.notes])
    click.echo(f"results  {short(folder.absolute())}")
    click.echo(f"page     {short((folder / PAGE_FILE).absolute())}")


def _default_folder(target: RequestedTarget, test: RequestedTest) -> Path:
    label = target.label or test.models[0].model
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return Path("artifacts") / "loadtests" / f"{_UNSAFE.sub('-', label).strip('-')}-{moment}"
