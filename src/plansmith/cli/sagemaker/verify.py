"""`plansmith sagemaker verify`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from plansmith.cli.text import count, echo_lines, printable
from plansmith.errors import UsageError

if TYPE_CHECKING:
    from plansmith.sagemaker.verification import EndpointVerification

_EPILOG = """\
\b
Examples:
  plansmith sagemaker verify minilm-prod
  plansmith sagemaker verify minilm-prod --since 1d --max-error-rate 0.1% --max-p99-ms 200
  plansmith sagemaker verify minilm-prod --region eu-west-1 --json

Exit codes: 0 when all is as it should be; 2 no such endpoint, region or limit; 8 something is not as it should be;
9 AWS cannot be asked, or a permission is missing.
"""


@click.command("verify", epilog=_EPILOG, short_help="Whether an endpoint serves what was deployed, without failures.")
@click.argument("endpoint", metavar="ENDPOINT")
@click.option("--since", metavar="TIME", help="From when on its metrics count [since it was changed last].")
@click.option("--max-error-rate", metavar="RATE", help="The part of the requests that may fail: 0.01, or 1%.")
@click.option(
    "--max-p99-ms",
    metavar="MS",
    type=click.FloatRange(0, min_open=True),
    help="The largest p99 of the container's latency.",
)
@click.option("--region", metavar="NAME", default="", help="Where the endpoint is [AWS_REGION, or the AWS profile's].")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def verify_command(
    endpoint: str,
    *,
    since: str | None,
    max_error_rate: str | None,
    max_p99_ms: float | None,
    region: str,
    as_json: bool,
) -> None:
    """Check that ENDPOINT is in service, and serves what was deployed without failures.

    Weights, instances and images are compared with the configuration; the archives must still be in S3, or no new
    instance could start. Requests that ended with 5XX are a finding, and so are limits that CloudWatch's metrics do
    not keep.
    """
    from plansmith.sagemaker.metrics.time_range import parse_time
    from plansmith.sagemaker.verification import EndpointLimits, verify_endpoint
    from plansmith.system.aws.client import resolve_region

    limits = EndpointLimits(error_rate=_read_rate(max_error_rate), p99_ms=max_p99_ms)
    start = parse_time(since, datetime.now(UTC)) if since is not None else None
    verification = verify_endpoint(endpoint, resolve_region(region), limits, start)
    if as_json:
        click.echo(verification.model_dump_json())
    else:
        echo_lines(_lines(verification))
    if (error := verification.error()) is not None:
        click.echo(f"plansmith: {error}", err=True)  # the findings are the document already
        sys.exit(error.exit_code)


def _read_rate(text: str | None) -> float | None:
    """A rate: 0.01 or 1%.

    Raises:
        UsageError: it is none.
    """
    if text is None:
        return None
    try:
        rate = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        rate = -1.0
    if not 0 <= rate <= 1:
        raise UsageError(f"--max-error-rate: {text!r} is no rate", remedy="write it as 0.01, or as 1%")
    return rate


def _lines(verification: EndpointVerification) -> list[str]:
    from plansmith.report.numbers import amount
    from plansmith.sagemaker.metrics.text import describe_variant, format_range, format_total

    endpoint, metrics = verification.endpoint, verification.metrics
    lines = [f"{endpoint.name} in {endpoint.region}: {endpoint.status}, {count(len(endpoint.variants), 'variant')}"]
    for variant, measured in zip(endpoint.variants, metrics.variants, strict=True):
        description = describe_variant(measured)
        lines.append(f"  {variant.name}{f': {description}' if description else ''}")
        if variant.model is not None:
            multiple = ", many models" if variant.model.multi_model else ""
            lines.append(f"    {variant.model.data or 'no archive'}{multiple}, by {variant.model.image or 'no image'}")
        if reason := metrics.reason_for_no_requests(measured):
            lines.append(f"    {format_range(metrics)}: {reason}")
            continue
        requests = format_total(measured.statistic("Invocations"))
        rate = amount(100 * (measured.error_rate or 0.0), "percent")
        failed = f"{amount(measured.errors or 0.0, 'count')} failed ({rate})"
        p99 = format_total(measured.statistic("ModelLatency", "p99"))
        lines.append(f"    {format_range(metrics)}: {requests} requests, {failed}, p99 of the container {p99}")
    lines += [
        f"  !! {f'{one.variant}: ' if one.variant else ''}{printable(one.problem)}" for one in verification.findings
    ]
    lines += [f"  {printable(note)}" for note in verification.notes]
    return lines if verification.findings else [*lines, "  all as it should be"]
