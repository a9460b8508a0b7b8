"""`plansmith sagemaker recommend`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.options import complete_file
from plansmith.cli.output import echo_lines, program, short, table, without_empty_columns
from plansmith.cli.sagemaker.deploy import prepare_with_progress, transfer_progress
from plansmith.cli.sagemaker.endpoint import (
    archives_option,
    json_option,
    progress_to_stderr,
    quiet_option,
    spec_argument,
)
from plansmith.errors import EnvironmentFault, ServedCheckError, UsageError, first_line
from plansmith.formatting import count

if TYPE_CHECKING:
    from plansmith.loadtest.results import LoadReport
    from plansmith.sagemaker.deployment.account import Account
    from plansmith.sagemaker.recommender.plan import JobEstimate, PlannedJob
    from plansmith.sagemaker.recommender.results import JobResult, LoadTestFigures, Recommendation
    from plansmith.system.tasks import Progress

_EPILOG = """\
\b
Examples:
  plansmith sagemaker recommend endpoint.yaml --dry-run
  plansmith sagemaker recommend endpoint.yaml --yes
  plansmith sagemaker recommend endpoint.yaml --job minilm-prod-0a1b2c3d4e5f
  plansmith sagemaker recommend endpoint.yaml --job minilm-prod-0a1b2c3d4e5f --stop
  plansmith sagemaker recommend endpoint.yaml --compare ml.g5.xlarge=report.json --json

\b
An advanced job in the file of the endpoint:
  recommendation_job:
    instance_types: [ml.g5.xlarge, ml.g6.xlarge]
    environment: {SAGEMAKER_TRITON_THREAD_COUNT: ["8", "16"]}
    phases:
      - {InitialNumberOfUsers: 1, SpawnRate: 1, DurationInSeconds: 300}
    stop_when: {max_invocations: 3000, p95_ms: 100}

Exit codes: 0 there are recommendations; 2 a file with problems, a request that AWS refuses, or --yes is missing; 6 an
instance type that cannot serve the model; 7 a release, archive or bucket that cannot be used; 8 a job that failed or
recommends nothing; 9 no credentials, a missing permission, an exceeded quota, or no answer from AWS; 130 interrupted.
"""

_INTERVAL_SECONDS = 30
_NONE = "-"
_MAX_FAILURES = 5
_COLUMNS = ("instances", "environment", "$/hour", "$/million", "requests/min", "latency", "CPU", "memory")
_COMPARED_COLUMNS = (
    "instances",
    "load test",
    "requests/min",
    "own",
    "",
    "latency",
    "own p95",
    "",
    "$/million",
    "own",
    "",
)
_REPORT = "name the JSON of plansmith loadtest: report.json"
# docs.aws.amazon.com/sagemaker/latest/dg/inference-recommender-troubleshooting.html
_REMEDIES = (
    (("cannot be assumed", "AccessDenied", "not authorized"), "allow the role what it needs: {policy}"),
    (("ResourceLimitExceeded", "service limit", "quota"), "ask for a larger quota of these instances, or name others"),
    (
        ("ayload",),
        "check that the model takes the sample requests: {local}; or name others: recommendation_job.payload",
    ),
    (("ModelError", "4xx", "5xx", "INVALID_INPUT"), "check that the model answers: {local}; {logs}"),
    (("health check",), "check that the container starts: {local}; {logs}"),
)


@click.command("recommend", epilog=_EPILOG, short_help="Have Inference Recommender find the best instance type.")
@spec_argument
@archives_option
@click.option("--job", metavar="NAME", default="", help="Wait for this job, or show it; none is started.")
@click.option("--again", is_flag=True, help="Run a job once more that was run already.")
@click.option("--stop", is_flag=True, help="Stop the job.")
@click.option("--yes", is_flag=True, help="Start the job: its instances are billed.")
@click.option("--no-wait", is_flag=True, help="Do not wait for the end of the job.")
@click.option(
    "--wait-minutes",
    metavar="N",
    type=click.IntRange(1),
    default=360,
    show_default=True,
    help="How long to wait for the job; it goes on by itself after that.",
)
@click.option(
    "--compare",
    "reports",
    metavar="[TYPE=]REPORT.json",
    multiple=True,
    shell_complete=complete_file,
    help="A load test to show beside the recommendations, and the instance type that it ran on; may be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Check, print the exact requests, and change nothing.")
@json_option
@quiet_option
def recommend_command(spec: Path, *, as_json: bool, quiet: bool, **options: Any) -> None:
    """Run SageMaker Inference Recommender to find the instance type that best serves the model of an endpoint file.

    A default job needs nothing else: AWS chooses instances and load, within 45 minutes. With phases or stairs in the
    file (recommendation_job), it is an advanced job: a load test on the instance types that the file names. The model
    is the one that deploy creates, and the sample requests are those that its release holds.

    A job's name holds a digest of its content: the same command waits for the same job, or shows its result; --again
    runs it once more. Nothing is started without --yes. Ctrl-C ends the waiting, and not the job.
    """
    from plansmith.sagemaker.deployment.account import Account
    from plansmith.sagemaker.deployment.deploy import read_released_endpoint

    _require_consistent(options)
    figures = [read_figures(report) for report in options["reports"]]
    endpoint = read_released_endpoint(spec)
    progress = progress_to_stderr(quiet=quiet)
    with Account(endpoint) as account:
        planned = None if options["job"] else _plan(account, options, quiet=quiet or as_json)
        if planned and options["dry_run"]:
            _print_plan(planned, as_json=as_json)
            return
        if planned:
            _start(planned, account, options, progress)
        name = planned.name if planned else options["job"]
        result = _result(account, name, options, spec, progress)
    if result.has_ended and not (options["stop"] and result.status == "STOPPED"):
        _require_recommendations(result, spec, endpoint.region)
    if as_json:
        document = _plan_document(planned) if planned else {"endpoint": endpoint.name, "region": endpoint.region}
        click.echo(json.dumps(document | {"dry_run": False} | _result_document(result, figures)))
        return
    echo_lines(_result_lines(result, figures, short(spec.absolute())))


def _require_consistent(options: dict[str, Any]) -> None:
    """Check that the options are consistent.

    Raises:
        UsageError: they do not.
    """
    if options["job"] and any(options[name] for name in ("dry_run", "again", "yes")):
        raise UsageError("--job names a job that exists", remedy="leave out --dry-run, --again and --yes")
    if options["stop"] and any(options[name] for name in ("dry_run", "again", "yes")):
        raise UsageError("--stop starts nothing", remedy="leave out --dry-run, --again and --yes")
    if options["dry_run"] and options["reports"]:
        raise UsageError("--compare needs a result, and --dry-run has none", remedy="leave one out")


def _plan(account: Account, options: dict[str, Any], *, quiet: bool) -> PlannedJob:
    from plansmith.sagemaker.recommender.plan import plan_job, tested_endpoint

    tested = tested_endpoint(account.spec)
    archives = prepare_with_progress(tested, options["output"], dry_run=options["dry_run"], quiet=quiet)
    return plan_job(
        tested,
        archives[tested.variants[0].name],
        account,
        dry_run=options["dry_run"],
        again=options["again"],
    )


def _start(planned: PlannedJob, account: Account, options: dict[str, Any], progress: Progress) -> None:
    """Start a job; an existing one is only reported.

    Raises:
        UsageError: --yes is missing, or there is nothing to stop.
    """
    from plansmith.sagemaker.recommender.results import start_job

    if planned.status:
        progress(f"the job {planned.name} exists already: {planned.status}; --again runs it once more")
        return
    if options["stop"]:
        raise UsageError(f"there is no job {planned.name} to stop", remedy="name one: --job NAME --stop")
    for warning in planned.warnings:
        progress(f"! {warning}")
    if not options["yes"]:
        raise UsageError(
            "\n  ".join([f"this would start the job {planned.name}:", *_estimate_lines(planned.estimate)]),
            remedy="pass --yes to start it, or --dry-run to see the requests",
        )
    start_job(account, planned, progress, transfer_progress(planned.uploads, progress))
    progress(f"the job {planned.name} was started")


def _result(account: Account, name: str, options: dict[str, Any], spec: Path, progress: Progress) -> JobResult:
    """Return the job once it has ended, or its current state without waiting."""
    from plansmith.sagemaker.deployment.current import Polling, StillPendingError
    from plansmith.sagemaker.recommender.results import read_job, stop_job, wait_for_job

    if options["stop"]:
        stopped = stop_job(account, name)
        progress(f"the job {name} was asked to stop" if stopped else f"the job {name} does not run any more")
    if options["no_wait"]:
        return read_job(account, name)
    again = f"{program()} sagemaker recommend {short(spec.absolute())} --job {name}"
    polling = Polling(limit_seconds=options["wait_minutes"] * 60, interval_seconds=_INTERVAL_SECONDS)
    try:
        return wait_for_job(account, name, polling, progress)
    except KeyboardInterrupt:
        click.echo(f"\nthe job {name} goes on: {again} waits for it, and {again} --stop stops it", err=True)
        raise
    except StillPendingError as pending:
        raise EnvironmentFault(
            f"the job {name} is still {pending.status} after {count(options['wait_minutes'], 'minute')}, and goes on",
            remedy=f"wait for it: {again}",
            transient=True,
        ) from pending


def read_figures(text: str) -> LoadTestFigures:
    """Read the figures of a load test from [TYPE=]FILE.

    Raises:
        UsageError: there is no such file, it is no report of a load test or one without answers, or TYPE is unknown.
    """
    from pydantic import ValidationError

    from plansmith.loadtest.results import LoadReport

    instance_type, path = _split(text)
    try:
        report = LoadReport.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", remedy=_REPORT) from error
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"])) or "the whole file"
        message = first_line(Exception(error.errors()[0]["msg"]))
        raise UsageError(f"{path} is no report of a load test: {place}: {message}", remedy=_REPORT) from None
    return _figures(report, path, instance_type)


def _figures(report: LoadReport, path: Path, instance_type: str) -> LoadTestFigures:
    from plansmith.loadtest.report.findings import best_stage, format_percent
    from plansmith.sagemaker.recommender.results import LoadTestFigures

    best = best_stage(report)
    if best is None or best.stats.latency is None or best.stats.throughput is None:
        raise UsageError(f"{path}: no request of this load test was answered", remedy="name another report")
    notes = list(report.notes)
    if best.stats.error_rate:
        notes.append(f"{format_percent(best.stats.error_rate)} of the requests failed")
    if report.ending != "done":
        notes.append(f"the test ended early: {report.reason or report.ending}")
    if len(report.target.models) > 1:
        notes.append(f"the requests went to {len(report.target.models)} models")
    return LoadTestFigures(
        source=f"{path.name}, {best.stage.label}",
        instance_type=instance_type,
        requests_per_minute=best.stats.throughput * 60,
        p95_ms=best.stats.latency.p95_ms,
        notes=tuple(notes),
    )


def _split(text: str) -> tuple[str, Path]:
    """Split an argument into the instance type, if named, and the report of a load test."""
    from plansmith.sagemaker.endpoint.instances import find_instance, nearest_instances

    instance_type, separator, name = text.partition("=")
    if not separator or Path(text).is_file():
        return "", Path(text)
    if find_instance(instance_type) is None:
        near = nearest_instances(instance_type)
        meant = f"did you mean {' or '.join(near)}?" if near else "name one such as ml.g5.xlarge"
        raise UsageError(f"{instance_type!r} is no known instance type", remedy=f"{meant} --compare TYPE=FILE")
    return instance_type, Path(name)


def _require_recommendations(result: JobResult, spec: Path, region: str) -> None:
    """Check that a completed job has recommendations.

    Raises:
        ServedCheckError: it failed, was stopped before it found anything, or found nothing.
    """
    if result.status != "FAILED" and result.recommendations:
        return
    reason = f" ({result.failure or 'AWS does not say why'})" if result.status == "FAILED" else ""
    raise ServedCheckError(
        "\n  ".join(
            [f"the job {result.job} is {result.status}{reason}, and recommends nothing", *_failure_lines(result)]
        ),
        remedy=f"{_remedy(result, short(spec.absolute()), region)}; then: {program()} sagemaker recommend"
        f" {short(spec.absolute())} --again --yes",
    )


def _remedy(result: JobResult, spec: str, region: str) -> str:
    text = " ".join([result.failure, *(benchmark.failure for benchmark in result.failed)])
    endpoints = [benchmark.configuration.endpoint for benchmark in result.failed if benchmark.configuration.endpoint]
    group = f"/aws/sagemaker/Endpoints/{endpoints[0] if endpoints else 'sm-epc-…'}"
    commands = {
        "policy": f"{program()} sagemaker policy {spec} --only recommender-role",
        "local": f"{program()} sagemaker deploy {spec} --local",
        "logs": f"aws logs tail {group} --region {region}",
    }
    matching = [remedy for signs, remedy in _REMEDIES if any(sign in text for sign in signs)]
    steps = f"aws sagemaker list-inference-recommendations-job-steps --job-name {result.job} --region {region}"
    return matching[0].format(**commands) if matching else f"see its load tests: {steps}"


def _estimate_lines(estimate: JobEstimate) -> list[str]:
    from plansmith.formatting import format_seconds

    limit = format_seconds(estimate.max_seconds)
    if estimate.tests is None:
        return [f"a default job: AWS chooses its load tests, which end within {limit}, and bills their instances"]
    each = format_seconds(estimate.test_seconds or 0)
    hours = ", ".join(f"{format_seconds(hours * 3600)} of {name}" for name, hours in estimate.instance_hours.items())
    tests = f"{count(estimate.tests, 'load test')} of {each}, {estimate.parallel_tests} at a time"
    return [
        f"an advanced job: {tests}, {limit} at most",
        f"its load takes {hours} at most; the start of instances is billed as well",
    ]


def _print_plan(planned: PlannedJob, *, as_json: bool) -> None:
    """Print the requests in order, as YAML for reading, with what they take."""
    import yaml

    if as_json:
        click.echo(json.dumps(_plan_document(planned) | {"dry_run": True}))
        return
    if planned.is_assumed:
        click.echo("# There are no credentials: AWS was not asked, and nothing is assumed to exist.")
    if planned.status:
        click.echo(f"# Nothing to do: the job {planned.name} exists already: {planned.status}")
        return
    lines = [*_estimate_lines(planned.estimate), f"sample requests: {planned.payload.description}"]
    for line in (*lines, *(f"! {warning}" for warning in planned.warnings)):
        click.echo(f"# {line}")
    calls = [json.loads(call.model_dump_json()) for call in planned.requests]
    click.echo(yaml.safe_dump(calls, sort_keys=False, width=120, allow_unicode=True), nl=False)


def _plan_document(planned: PlannedJob) -> dict[str, Any]:
    return {
        "endpoint": planned.spec.name,
        "region": planned.spec.region,
        "job": planned.name,
        "status": planned.status,
        "assumed": planned.is_assumed,
        "requests": [call.model_dump() for call in planned.requests],
        "estimate": planned.estimate.model_dump(),
        "warnings": list(planned.warnings),
        "payload": planned.payload.model_dump(exclude={"archive"}),
    }


def _result_document(result: JobResult, figures: Sequence[LoadTestFigures]) -> dict[str, Any]:
    from plansmith.sagemaker.recommender.results import compare_recommendations, comparison_notes

    document = result.model_dump(mode="json")
    for row, recommendation in zip(document["recommendations"], result.recommendations, strict=True):
        row["latency_ms"] = result.latency_ms(recommendation)
        row["cost_per_million"] = recommendation.cost_per_million
    return document | {
        "comparison": [row.model_dump(mode="json") for row in compare_recommendations(result, figures)],
        "notes": list(comparison_notes(result, figures)),
    }


def _result_lines(result: JobResult, figures: Sequence[LoadTestFigures], spec: str) -> list[str]:
    """Yield the results of a job, its failures, and the next steps."""
    from plansmith.formatting import format_seconds

    if not result.has_ended:
        again = f"{program()} sagemaker recommend {spec} --job {result.job}"
        return [f"{result.job} is {result.progress}", f"Next: {again}"]
    after = f" after {format_seconds(result.seconds)}" if result.seconds else ""
    lines = [f"{result.job} is {result.status}{after}"]
    if result.recommendations:
        rows = [_cells(result, recommendation) for recommendation in result.recommendations]
        lines += [f"  {line}" for line in table(without_empty_columns([_COLUMNS, *rows]))]
    lines += [f"  ! {line}" for line in _failure_lines(result)]
    if result.unit_reason:
        unit = "microseconds" if result.latency_unit == "us" else "milliseconds"
        lines.append(f"  AWS's latency of the model is read as {unit}: {result.unit_reason}")
    lines += _comparison_lines(result, figures)
    cheapest = next((item for item in result.recommendations if item.instance_type), None)
    if cheapest is not None:
        instances = f", instance_count: {cheapest.instances}" if (cheapest.instances or 1) > 1 else ""
        chosen = f"instance_type: {cheapest.instance_type}{instances}"
        lines.append(f"Next: {chosen} in {spec}, and {program()} sagemaker deploy {spec}")
    return lines


def _failure_lines(result: JobResult) -> list[str]:
    """Yield a line for each load test that failed."""
    failed = result.failed
    lines = [f"{item.configuration.label} failed: {item.failure or 'AWS does not say why'}" for item in failed]
    more = len(lines) - _MAX_FAILURES
    return lines[:_MAX_FAILURES] + ([f"… and {more} more"] if more > 0 else [])


def _comparison_lines(result: JobResult, figures: Sequence[LoadTestFigures]) -> list[str]:
    from plansmith.sagemaker.recommender.results import compare_recommendations, comparison_notes

    rows = [
        (
            row.recommendation.label,
            row.figures.source,
            *_pair(row.recommendation.max_invocations, row.figures.requests_per_minute, row.requests_percent, _rate),
            *_pair(result.latency_ms(row.recommendation), row.figures.p95_ms, row.latency_percent, _milliseconds),
            *_pair(row.recommendation.cost_per_million, row.own_cost_per_million, row.cost_percent, _dollars),
        )
        for row in compare_recommendations(result, figures)
    ]
    lines = []
    if rows:
        lines = ["Beside own load tests; by how much AWS's figure is higher, in percent of the own one:"]
        lines += [f"  {line}" for line in table([_COMPARED_COLUMNS, *rows])]
        lines.append("  AWS's latency is that of the model alone; the own one is what the client waited")
    return lines + [f"  ! {note}" for note in comparison_notes(result, figures)]


def _cells(result: JobResult, recommendation: Recommendation) -> tuple[str, ...]:
    variables = recommendation.environment.items()
    return (
        recommendation.label,
        ", ".join(f"{name.removeprefix('SAGEMAKER_TRITON_')}={value}" for name, value in variables),
        _text(recommendation.cost_per_hour, _dollars),
        _text(recommendation.cost_per_million, _dollars),
        _text(recommendation.max_invocations, _rate),
        _text(result.latency_ms(recommendation), _milliseconds),
        _text(recommendation.cpu_percent, _percent),
        _text(recommendation.memory_percent, _percent),
    )


def _pair(
    value: float | None, own: float | None, percent: float | None, form: Callable[[float], str]
) -> tuple[str, str, str]:
    return _text(value, form), _text(own, form), "" if percent is None else f"{percent:+.0f} %"


def _text(value: float | None, form: Callable[[float], str]) -> str:
    return _NONE if value is None else form(value)


def _rate(value: float) -> str:
    return f"{value:,.0f}"


def _dollars(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:,.2f}"


def _milliseconds(value: float) -> str:
    return f"{value:.1f} ms"


def _percent(value: float) -> str:
    return f"{value:.0f} %"
