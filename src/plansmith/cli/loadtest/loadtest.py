"""`plansmith loadtest`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.options import complete_file, complete_folder, repository_option
from plansmith.cli.output import echo_lines, open_console, printable, short
from plansmith.cli.store.options import complete_served
from plansmith.errors import EXIT_INTERRUPTED, PlansmithError

if TYPE_CHECKING:
    from plansmith.cli.loadtest.plan import RequestedTest
    from plansmith.cli.loadtest.target import RequestedTarget
    from plansmith.loadtest.connect import PreparedTarget
    from plansmith.loadtest.results import LoadReport
    from plansmith.loadtest.runner.processes import RemoteWorkers


_FILE = click.Path(path_type=Path)

_LOAD = (
    click.option("--users", metavar="N[,N...]", help="Closed loop: concurrent users; a stage for each number."),
    click.option("--seconds", metavar="TIME", help="Duration of each stage [10s with --users, 30s with --rate]."),
    click.option("--spawn-rate", metavar="N", type=float, help="Users started per second [all at once]."),
    click.option(
        "--ramp",
        metavar="FIRST:LAST:STEPxTIME",
        help="FIRST users warm up, then STEP more every TIME; staged stands for 10:200:20x30s.",
    ),
    click.option("--rate", metavar="N[,N...]", help="Open loop: requests per second, independent of the answers."),
    click.option("--poisson", is_flag=True, help="Arrivals of --rate are a Poisson process."),
    click.option(
        "--trace",
        metavar="FILE",
        type=_FILE,
        shell_complete=complete_file,
        help="Open loop: recorded arrival times in seconds, one per line.",
    ),
    click.option(
        "--plan",
        metavar="FILE",
        type=_FILE,
        shell_complete=complete_file,
        help="Stages or phases, models and settings as YAML.",
    ),
    click.option("--warm-up", metavar="TIME", help="Load before anything is measured [5s]."),
    click.option("--pacing", metavar="TIME", help="Closed loop: least time between two requests of a user."),
    click.option("--timeout", metavar="TIME", help="How long an answer may take [60s]."),
    click.option("--stop-p95", metavar="TIME", help="End the test when the p95 latency of a stage exceeds this."),
    click.option("--stop-p99", metavar="TIME", help="The same for p99."),
    click.option("--stop-error-rate", metavar="SHARE", help="End it when a larger share of the requests fails: 1%."),
    click.option("--stop-flat", metavar="SHARE", help="End it when more load adds less throughput than this: 5%."),
    click.option(
        "--stop-invocations",
        metavar="N",
        type=click.IntRange(1),
        help="End it when a stage answers this many requests per minute, the most that are expected.",
    ),
    click.option(
        "--confidence",
        metavar="SHARE",
        help="End a stage when the 95 % confidence interval of its mean latency is within ± this: 2%.",
    ),
)

_REQUESTS = (
    click.option(
        "--data",
        metavar="FILE|DIR",
        type=_FILE,
        shell_complete=complete_file,
        help="Make requests of these data: texts, a table, arrays, images.",
    ),
    click.option(
        "--request",
        "requests",
        metavar="FILE.json",
        multiple=True,
        shell_complete=complete_file,
        help="Send this request: values by input, or a request of KServe's protocol.",
    ),
    click.option("--batch", "batches", metavar="N[,N...]", help="Samples per request [1 to the largest batch]."),
    click.option(
        "--count",
        metavar="N",
        type=click.IntRange(1, 100_000),
        help="Different requests per model, of at most 256 MiB together [64].",
    ),
    click.option(
        "--shape", "shapes", metavar="NAME=SIZES", multiple=True, help="Of a random input, batch first: 4x64."
    ),
    click.option("--parameter", "parameters", metavar="NAME=VALUE", multiple=True, help="Sent with each request."),
    click.option("--seed", metavar="N", type=click.IntRange(0), help="Determines random choices [0]."),
    click.option("--protocol", type=click.Choice(["http", "grpc"]), help="[grpc where the URL says so, else http]"),
    click.option("--encoding", type=click.Choice(["binary", "json"]), help="[binary]"),
    click.option("--header", "headers", metavar="'NAME: VALUE'", multiple=True, help="Sent with each request."),
)

_SERVER = (
    click.option("--url", metavar="URL", help="A running Triton: http://host:8000 or grpc://host:8001."),
    click.option("--metrics", metavar="HOST:PORT", default="", help="With --url: its Prometheus metrics."),
    repository_option("Where the releases are; with --url, only if it is given."),
    click.option(
        "--endpoint",
        metavar="NAME|FILE.yaml",
        shell_complete=complete_file,
        help="An endpoint of SageMaker, by its name or its file; with --url, a front end of one without AWS.",
    ),
    click.option(
        "--target-model",
        "target_models",
        metavar="[MODEL=]ARCHIVE",
        multiple=True,
        help="Of a multi-model endpoint: the archive that answers, or that of a model.",
    ),
    click.option("--target-variant", metavar="NAME", default="", help="The variant to ask [each, by its weight]."),
    click.option("--region", metavar="NAME", default="", help="Of the endpoint [AWS_REGION, or the AWS profile's]."),
    click.option("--profile", metavar="NAME", default="", help="A profile of the AWS configuration files."),
    click.option(
        "--interface",
        metavar="FILE",
        type=_FILE,
        shell_complete=complete_file,
        help="With --endpoint: know the inputs by a manifest.json, a config.pbtxt, JSON or a .tar.gz, not a release.",
    ),
    click.option("--processes", metavar="N", type=click.IntRange(1, 1000), help="Client processes [1]."),
)

_WORKERS = (
    click.option(
        "--expect-workers",
        metavar="N",
        type=click.IntRange(1, 1000),
        help="Have the load come from so many client processes on other machines.",
    ),
    click.option("--listen", metavar="HOST:PORT", help="Where they are awaited [0.0.0.0:5557]; for trusted networks."),
    click.option("--worker", metavar="HOST:PORT", help="Be such a worker, of the test that listens there; no MODEL."),
)

_RESULTS = (
    click.option(
        "--output",
        metavar="FOLDER",
        type=_FILE,
        shell_complete=complete_folder,
        help="Takes report.json, report.html, stages.csv, timeline.csv and logs [artifacts/loadtests/NAME-TIME].",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print the whole report as one JSON document."),
    click.option("--quiet", is_flag=True, help="Print no progress."),
    click.option("--dry-run", is_flag=True, help="Show the stages and requests; start and send nothing."),
)

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


def loadtest_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add all load test options, in the order of the help."""
    options = (*_LOAD, *_REQUESTS, *_SERVER, *_WORKERS, *_RESULTS)
    return reduce(lambda decorated, option: option(decorated), reversed(options), command)


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
    from plansmith.cli.loadtest.plan import read_test
    from plansmith.cli.loadtest.progress import show_plan
    from plansmith.cli.loadtest.target import read_target, read_workers, run_worker, terminable
    from plansmith.cli.output import require_text
    from plansmith.loadtest.runner.load_runner import require_locust

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
    """Start the required processes, run the load test and store its report.

    Raises:
        KeyboardInterrupt: before the load began; a later one ends the test, which has a report.
    """
    from plansmith.cli.loadtest.progress import LoadProgress
    from plansmith.cli.loadtest.target import prepared, show_workers
    from plansmith.loadtest.report.files import store_report
    from plansmith.loadtest.runner.load_runner import run_load
    from plansmith.system.files import storage_errors

    quiet = options["quiet"] or options["as_json"]
    with storage_errors(folder, alternative="--output folder"):
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
    """Return the report, completed with what is known about the server and the requests."""
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
    """Print the report and exit with its exit code."""
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
    from plansmith.loadtest.report.findings import legend, summary, terminal_table

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
