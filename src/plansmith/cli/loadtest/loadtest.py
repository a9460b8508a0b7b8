"""`plansmith loadtest`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.loadtest.options import loadtest_options
from plansmith.cli.store.completion import complete_served
from plansmith.cli.streams import open_console
from plansmith.cli.text import count, echo_lines, printable, short
from plansmith.errors import EXIT_INTERRUPTED, PlansmithError, RepositoryError, UsageError

if TYPE_CHECKING:
    from plansmith.cli.loadtest.plan import RequestedTest
    from plansmith.loadtest.results import LoadReport
    from plansmith.loadtest.server.connect import PreparedTarget, ServerPlace

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_SCHEMES = ("http://", "https://", "grpc://", "grpcs://")


@click.command("loadtest", short_help="Measure throughput and latency of served models under load.")
@click.argument("models", nargs=-1, metavar="[MODEL[@VERSION][=WEIGHT]]...", shell_complete=complete_served)
@loadtest_options
def loadtest_command(models: tuple[str, ...], **options: Any) -> None:
    """Send requests to models from many clients, stage by stage, and measure throughput and latency.

    MODEL of the repository is served by a Triton that is started for the test; with --url, or a URL that ends in
    /v2/models/MODEL, a running one is tested. Several models with weights are a mix.

    Closed loop (--users, --ramp): each user waits for its answer. Open loop (--rate, --trace): requests are due at
    times of their own, and latencies count from these. Without any of them, 1, 2, 4, 8, 16 and 32 users run for 10 s
    each. Requests have the real inputs that the release keeps, at mixed sizes; those of an unknown model are random.

    Figures of a stage in which the client, and not the server, was the limit are withheld.

    \b
    plansmith loadtest minilm
    plansmith loadtest minilm --users 10 --seconds 30
    plansmith loadtest minilm --ramp staged --stop-p95 200ms --stop-error-rate 1%
    plansmith loadtest minilm resnet@3=0.2 --rate 50,100,200 --poisson
    plansmith loadtest bert --url grpc://gpu-box:8001 --trace monday.txt --processes 4
    plansmith loadtest http://gpu-box:8000/v2/models/bert --users 1,8,32 --batch 1
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
    from plansmith.cli.loadtest.plan import read_test
    from plansmith.cli.text import require_text
    from plansmith.loadtest.runner.run import require_locust

    require_text(*models)
    url, names = _url_and_models(options["url"], models)
    options["url"] = url
    test = read_test(names, options)
    if not options["dry_run"]:
        require_locust()
    label = url or test.models[0].model
    folder = options["output"] or _default_folder(label)
    if options["dry_run"]:
        _show_plan(test, options)
        return
    try:
        report, prepared = _run(test, folder, options)
    except KeyboardInterrupt:
        click.echo("plansmith: interrupted before the load began; nothing was measured", err=True)
        sys.exit(EXIT_INTERRUPTED)
    _finish(report, prepared, folder, as_json=options["as_json"])


def _url_and_models(url: str | None, models: Sequence[str]) -> tuple[str, list[str]]:
    """The address of the server, empty where one is started, and the models; one URL may name both."""
    urls = [model for model in models if model.startswith(_SCHEMES)]
    if not urls:
        return url or "", list(models)
    if url or len(urls) > 1:
        raise UsageError(f"{urls[-1]} and {url or urls[0]} are two servers", remedy="name one")
    address, separator, rest = urls[0].partition("/v2/models/")
    named = [rest.strip("/").replace("/versions/", "@")] if separator else []
    return address, [*named, *(model for model in models if model not in urls)]


def _run(test: RequestedTest, folder: Path, options: dict[str, Any]) -> tuple[LoadReport, PreparedTarget]:
    """Start what has to be started, run the test, and store its report.

    Raises:
        KeyboardInterrupt: before the load began; a later one ends the test, which has a report.
    """
    from plansmith.cli.loadtest.progress import LoadProgress
    from plansmith.loadtest.report.files import store_report
    from plansmith.loadtest.runner.run import run_load
    from plansmith.loadtest.server.connect import prepare_target
    from plansmith.system.files import storage_errors

    quiet = options["quiet"] or options["as_json"]
    with storage_errors(folder, other="--output folder"):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with _server(test, options, quiet=quiet) as place, ExitStack() as stack:
            prepared = stack.enter_context(prepare_target(test.models, place, test.options, folder))
            progress = stack.enter_context(LoadProgress(len(test.plan.stages), quiet=quiet))
            report = run_load(
                prepared.target, test.plan, folder=folder, monitor=prepared.monitor, progress=progress.show
            )
            report = _completed(report, prepared)
            store_report(report, folder)
    finally:
        with suppress(OSError):
            folder.rmdir()  # of a test that never began nothing stays
    return report, prepared


@contextmanager
def _server(test: RequestedTest, options: dict[str, Any], *, quiet: bool) -> Iterator[ServerPlace]:
    """The running server, or one that is started for the test."""
    from plansmith.cli.infer.server import served
    from plansmith.loadtest.server.connect import ServerPlace
    from plansmith.system.urls import Address, read_address
    from plansmith.triton.repository.repository import ModelRepository

    if options["url"]:
        address = read_address(options["url"], test.options.protocol)
        has_repository = _is_typed("repository")
        repository = ModelRepository(options["repository"]) if has_repository else None
        yield ServerPlace(address, metrics=options["metrics"], repository=repository)
        return
    opened = _opened(test, options)
    protocol = test.options.protocol or "http"
    with served(opened, [share.name for share in test.models], purpose="the load test", quiet=quiet) as server:
        place = server.http_url if protocol == "http" else server.grpc_url
        address = Address(place, secure=False, protocol=protocol)
        yield ServerPlace(address, metrics=server.metrics_url, group=server.group, repository=opened)


def _opened(test: RequestedTest, options: dict[str, Any]) -> Any:
    """The repository, which shows all models of the test in their versions."""
    from plansmith.cli.infer.server import opened_model

    if options["metrics"]:
        raise UsageError("--metrics goes with --url", remedy="leave it out")
    manifests = []
    for share in test.models:
        opened, manifest = opened_model(options["repository"], share.name, share.version)
        manifests.append(manifest)
    if None in manifests:
        name = test.models[manifests.index(None)].name
        raise RepositoryError(f"{name} is no release of plansmith", remedy="serve it, and pass --url")
    return opened


def _is_typed(name: str) -> bool:
    """Whether an option was given, and not left at its default."""
    source = click.get_current_context().get_parameter_source(name)
    return source is not click.core.ParameterSource.DEFAULT


def _show_plan(test: RequestedTest, options: dict[str, Any]) -> None:
    """Print the stages, and the requests as far as a repository tells of them."""
    from plansmith.formatting import seconds_in_words
    from plansmith.loadtest.payloads.source import KnownModel, choose_inputs
    from plansmith.loadtest.plan.schedule import schedule_stage, schedule_stages
    from plansmith.triton.client.signature import signature_from_package

    inputs = {}
    if not options["url"]:
        opened = _opened(test, options)
        for share in test.models:
            name, version = opened.find(share.model)
            manifest = opened.manifest(name, version)
            model = KnownModel(signature_from_package(manifest.package), manifest, opened.release(name, version))
            inputs[share.model] = choose_inputs(share, model, test.options)
    plan = test.plan.with_warm_up()
    if options["as_json"]:
        models = {
            name: {"requests": len(chosen.arrays), "sizes": chosen.size_range, "inputs": chosen.description}
            for name, chosen in inputs.items()
        }
        document = {"dry_run": True, "url": options["url"], "plan": plan.model_dump(mode="json"), "models": models}
        click.echo(json.dumps(document))
        return
    assert plan.warm_up is not None
    stages = schedule_stages(plan)
    warm_up = schedule_stage(plan.warm_up, 0.0)
    names = ", ".join(share.model for share in test.models)
    server = options["url"] or "a Triton that is started for the test"
    lines = [f"server   {server}, with {names}"]
    for name, chosen in inputs.items():
        lines += [f"{name}: {count(len(chosen.arrays), 'request')} of {chosen.size_range}", f"  {chosen.description}"]
    lines.append(f"warm-up  {printable(plan.warm_up.label)}, {seconds_in_words(warm_up.seconds)}")
    for stage in stages:
        label, duration = printable(stage.stage.label), seconds_in_words(stage.seconds)
        lines.append(f"{stage.at:7.0f} s  {label} ({stage.stage.loop} loop), {duration}")
    lines += [f"stops at {condition}" for condition in plan.stop_when.describe()]
    total = seconds_in_words(warm_up.seconds + stages[-1].end)
    echo_lines([*lines, f"Nothing was sent; it would take {total} with the warm-up."])


def _completed(report: LoadReport, prepared: PreparedTarget) -> LoadReport:
    """The report with what is known of the server and the requests."""
    notes = [*prepared.notes, *report.notes]
    monitor = prepared.monitor
    if monitor.others:
        notes.append(f"other models of the server answered requests meanwhile: {', '.join(sorted(monitor.others))}")
    if monitor.error and report.ending != "server-lost":
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


def _default_folder(label: str) -> Path:
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return Path("artifacts") / "loadtests" / f"{_UNSAFE.sub('-', label).strip('-')}-{moment}"
