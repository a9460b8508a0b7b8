"""`plansmith sagemaker metrics`."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from plansmith.cli.options import complete_file
from plansmith.cli.output import echo_lines, short, table, write_output
from plansmith.errors import UsageError
from plansmith.formatting import count

if TYPE_CHECKING:
    from plansmith.sagemaker.metrics.alarms import AlarmPlan
    from plansmith.sagemaker.metrics.values import EndpointMetrics


_EPILOG = """\
\b
Examples:
  plansmith sagemaker metrics minilm-prod
  plansmith sagemaker metrics minilm-prod --since 2d --plot minilm.html
  plansmith sagemaker metrics minilm-prod --since 2026-11-20T08:00 --until 2026-11-20T12:00 --json
  plansmith sagemaker metrics minilm-prod --variant green --region eu-west-1

Exit codes: 2 no such endpoint, variant, region or time; 9 AWS cannot be asked, or a permission is missing.
"""

_OFF = "off"
_ALARMS_EPILOG = """\
\b
Limits, in percent or milliseconds:
  5xx-percent [1], memory-percent [90], disk-percent [85]
  p99-ms, overhead-p99-ms           latency of the container, and of SageMaker around it
  gpu-percent, gpu-memory-percent   100 for each GPU
  cpu-percent                       100 for each core
  model-wait-ms, cache-hit-percent  of a multi-model endpoint; the latter goes off below its limit

\b
Examples:
  plansmith sagemaker alarms minilm-prod --limit p99-ms=200 --dry-run
  plansmith sagemaker alarms minilm-prod --limit p99-ms=200 --notify arn:aws:sns:eu-west-1:123456789012:on-call
  plansmith sagemaker alarms minilm-prod --limit 5xx-percent=0.1 --limit disk-percent=off --variant green
  plansmith sagemaker alarms minilm-prod --delete

Exit codes: 2 no such endpoint, variant, region or limit; 9 AWS cannot be asked, or a permission is missing.
"""


@click.command(
    "metrics", epilog=_EPILOG, short_help="What CloudWatch has of an endpoint: latency, errors, utilization."
)
@click.argument("endpoint", metavar="ENDPOINT")
@click.option("--variant", "variants", multiple=True, metavar="NAME", help="Only this variant; may be repeated.")
@click.option("--since", metavar="TIME", default="3h", show_default=True, help="How long ago, or a time in UTC.")
@click.option("--until", metavar="TIME", default="0", help="Until when, likewise [now].")
@click.option("--period", metavar="TIME", help="How long a point is, such as 1m or 1h [as fits the range].")
@click.option("--region", metavar="NAME", default="", help="Where the endpoint is [AWS_REGION, or the AWS profile's].")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, with all points.")
@click.option(
    "--plot",
    metavar="FILE.html",
    type=click.Path(path_type=Path, dir_okay=False),
    shell_complete=complete_file,
    help="Write a page with plots, which replaces one that is there.",
)
def metrics_command(
    endpoint: str,
    *,
    variants: tuple[str, ...],
    since: str,
    until: str,
    period: str | None,
    region: str,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Show CloudWatch metrics of ENDPOINT: latencies, invocations, errors, utilization, and model loading.

    Latencies are those of the container, of SageMaker around it, and the mean of both together; the way to and from the
    client is in none of them. CPU goes to 100 % for each core, GPU for each GPU. What CloudWatch has nothing of is
    none, which is not zero. The last minutes may be missing: metrics come with a delay.
    """
    from plansmith.formatting import seconds_from_age
    from plansmith.sagemaker.description import describe_endpoint
    from plansmith.sagemaker.metrics.cloudwatch import parse_time, time_range
    from plansmith.sagemaker.metrics.values import read_metrics
    from plansmith.system.aws.client import resolve_region

    now = datetime.now(UTC)
    period_seconds = None if period is None else seconds_from_age(period)
    if period_seconds == 0:
        raise UsageError("a point cannot be of no time", remedy="pass a --period such as 1m, or leave it out")
    times = time_range(parse_time(since, now), parse_time(until, now), now, period_seconds)
    metrics = read_metrics(describe_endpoint(endpoint, resolve_region(region)), times, variants=variants, now=now)
    if plot is not None:
        from plansmith.sagemaker.metrics.page import render_page

        write_output(plot, render_page(metrics), replace=True, option="--plot")
    if as_json:
        click.echo(metrics.model_dump_json())
        return
    echo_lines(_lines(metrics))
    if plot is not None:
        click.echo(f"plots: {short(plot.absolute())}")


def _lines(metrics: EndpointMetrics) -> list[str]:
    from plansmith.sagemaker.metrics.page import describe_variant, format_period, format_range, metric_table

    summary = metric_table(metrics)
    period = format_period(metrics.period_seconds)
    status = f"{metrics.status}, {count(len(metrics.variants), 'variant')}"
    lines = [f"{metrics.endpoint} in {metrics.region}: {status}; {format_range(metrics)}, {period} a point"]
    for variant in metrics.variants:
        description = describe_variant(variant)
        reason = metrics.reason_for_no_requests(variant)
        lines.append(f"  {variant.name}{f': {description}' * bool(description)}{f'; {reason}' * bool(reason)}")
    if summary.rows:
        head = ("METRIC", *(variant.name for variant in metrics.variants))
        lines += [f"  {line}" for line in table([head, *((row.label, *row.cells) for row in summary.rows)])]
        if summary.absent:
            lines.append(f"  CloudWatch has no values of: {', '.join(summary.absent)}")
    return lines


def _complete_limit(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Shell completion for a limit."""
    del ctx, param
    from plansmith.sagemaker.metrics.alarms import ALARM_KINDS

    return [CompletionItem(f"{kind.name}=") for kind in ALARM_KINDS if kind.name.startswith(incomplete)]


@click.command("alarms", epilog=_ALARMS_EPILOG, short_help="Create alarms of CloudWatch on the metrics of an endpoint.")
@click.argument("endpoint", metavar="ENDPOINT")
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=NUMBER|off",
    shell_complete=_complete_limit,
    help="A limit, beside those that every endpoint gets; may be repeated.",
)
@click.option("--variant", "variants", multiple=True, metavar="NAME", help="Only this variant; may be repeated.")
@click.option(
    "--notify",
    "actions",
    multiple=True,
    metavar="ARN",
    help="What is told when an alarm goes off and when it is over, such as a topic of SNS; may be repeated.",
)
@click.option("--delete", is_flag=True, help="Delete the alarms of the endpoint, which may be gone.")
@click.option("--region", metavar="NAME", default="", help="Where the endpoint is [AWS_REGION, or the AWS profile's].")
@click.option("--dry-run", is_flag=True, help="Print the calls, and make none that changes anything.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def alarms_command(
    endpoint: str,
    *,
    limits: tuple[str, ...],
    variants: tuple[str, ...],
    actions: tuple[str, ...],
    delete: bool,
    region: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Create CloudWatch alarms on the metrics of ENDPOINT, or update those with different limits.

    There is one alarm for each limit and variant, plansmith-ENDPOINT-VARIANT-LIMIT. It goes off when three of five
    minutes are beyond the limit. The same command a second time changes nothing; an alarm whose limit is left out
    stays, until --delete takes all of the endpoint's away.
    """
    from plansmith.sagemaker.description import describe_endpoint
    from plansmith.sagemaker.metrics.alarms import apply_alarms, plan_alarms
    from plansmith.sagemaker.metrics.values import select_variants
    from plansmith.system.aws.client import resolve_region

    if delete:
        if limits or variants or actions:
            raise UsageError("--delete takes all alarms of the endpoint away", remedy="leave the other options out")
        _delete(endpoint, resolve_region(region), dry_run=dry_run, as_json=as_json)
        return
    parsed = read_limits(limits)
    description = describe_endpoint(endpoint, resolve_region(region))
    plan = plan_alarms(description, select_variants(description, variants), parsed, actions)
    if not dry_run:
        apply_alarms(plan)
    if as_json:
        click.echo(json.dumps({"dry_run": dry_run, **plan.model_dump(mode="json")}))
    else:
        echo_lines(_alarm_lines(plan, dry_run=dry_run))


def read_limits(texts: Sequence[str]) -> dict[str, float]:
    """Return the default limits of every endpoint, and those of the command line, each NAME=NUMBER or NAME=off.

    Raises:
        UsageError: no such limit, or no such number.
    """
    from plansmith.sagemaker.metrics.alarms import ALARM_KINDS, DEFAULT_LIMITS

    limits = dict(DEFAULT_LIMITS)
    for text in texts:
        name, _, value = text.partition("=")
        if name not in {kind.name for kind in ALARM_KINDS}:
            choices = ", ".join(kind.name for kind in ALARM_KINDS)
            raise UsageError(f"--limit {text!r} names no limit", remedy=f"write NAME=NUMBER, with one of {choices}")
        if value == _OFF:
            limits.pop(name, None)
            continue
        try:
            limits[name] = float(value)
        except ValueError:
            limits[name] = math.nan
        if not 0 <= limits[name] < math.inf:
            raise UsageError(
                f"--limit {text!r} has no number that is a limit", remedy=f"write {name}=90, or {name}=off"
            )
    return limits


def _delete(endpoint: str, region: str, *, dry_run: bool, as_json: bool) -> None:
    from plansmith.sagemaker.metrics.alarms import delete_alarms, find_alarms

    names = find_alarms(endpoint, region)
    if not dry_run:
        delete_alarms(endpoint, region, names)
    if as_json:
        click.echo(json.dumps({"dry_run": dry_run, "endpoint": endpoint, "region": region, "deleted": list(names)}))
        return
    if dry_run and names:
        click.echo(f"aws cloudwatch delete-alarms --region {region} --alarm-names {shlex.join(names)}")
    verb = "would be deleted" if dry_run else "deleted"
    click.echo(f"{count(len(names), 'alarm')} of {endpoint} in {region} {verb}")


def _alarm_lines(plan: AlarmPlan, *, dry_run: bool) -> list[str]:
    if dry_run:
        calls = [
            f"aws cloudwatch put-metric-alarm --region {plan.region}"
            f" --cli-input-json {shlex.quote(json.dumps(alarm.parameters))}"
            for alarm in plan.pending
        ]
        return [*calls, f"{count(len(plan.pending), 'alarm')} would be created or updated; nothing was changed"]
    done = {"create": "created", "update": "updated", "unchanged": "unchanged"}
    lines = [f"  {done[entry.change]}  {entry.name}: {entry.parameters['AlarmDescription']}" for entry in plan.alarms]
    if not any(alarm.parameters["AlarmActions"] for alarm in plan.alarms):
        lines.append("They notify nobody: name a topic with --notify ARN")
    return [f"{plan.endpoint} in {plan.region}: {count(len(plan.alarms), 'alarm')}", *lines]
