"""`plansmith sagemaker metrics`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from plansmith.cli.options import complete_file
from plansmith.cli.text import count, echo_lines, short, table, write_output
from plansmith.errors import UsageError

if TYPE_CHECKING:
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
    """What CloudWatch has of ENDPOINT: latencies, invocations, errors, utilization, and how models were loaded.

    Latencies are those of the container, of SageMaker around it, and the mean of both together; the way to and from the
    client is in none of them. CPU goes to 100 % for each core, GPU for each GPU. What CloudWatch has nothing of is
    none, which is not zero. The last minutes may be missing: metrics come with a delay.
    """
    from plansmith.formatting import seconds_from_age
    from plansmith.sagemaker.description import describe_endpoint
    from plansmith.sagemaker.metrics.time_range import parse_time, time_range
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
    from plansmith.sagemaker.metrics.text import describe_variant, format_period, format_range, metric_table

    found = metric_table(metrics)
    period = format_period(metrics.period_seconds)
    status = f"{metrics.status}, {count(len(metrics.variants), 'variant')}"
    lines = [f"{metrics.endpoint} in {metrics.region}: {status}; {format_range(metrics)}, {period} a point"]
    for variant in metrics.variants:
        description = describe_variant(variant)
        reason = metrics.reason_for_no_requests(variant)
        lines.append(f"  {variant.name}{f': {description}' * bool(description)}{f'; {reason}' * bool(reason)}")
    if found.rows:
        head = ("METRIC", *(variant.name for variant in metrics.variants))
        lines += [f"  {line}" for line in table([head, *((row.label, *row.cells) for row in found.rows)])]
        if found.absent:
            lines.append(f"  CloudWatch has no values of: {', '.join(found.absent)}")
    return lines
