"""`plansmith sagemaker alarms`."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from plansmith.cli.text import count, echo_lines
from plansmith.errors import UsageError

if TYPE_CHECKING:
    from plansmith.sagemaker.metrics.alarms import AlarmPlan

_OFF = "off"

_EPILOG = """\
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


def _complete_limit(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What the shell offers for a limit."""
    del ctx, param
    from plansmith.sagemaker.metrics.alarms import ALARM_KINDS

    return [CompletionItem(f"{kind.name}=") for kind in ALARM_KINDS if kind.name.startswith(incomplete)]


@click.command("alarms", epilog=_EPILOG, short_help="Create alarms of CloudWatch on the metrics of an endpoint.")
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
    """Create alarms of CloudWatch on the metrics of ENDPOINT, or update those that have other limits.

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
        echo_lines(_lines(plan, dry_run=dry_run))


def read_limits(texts: Sequence[str]) -> dict[str, float]:
    """The limits that every endpoint gets, and those of the command line, NAME=NUMBER or NAME=off each.

    Raises:
        UsageError: no such limit, or no such number.
    """
    from plansmith.sagemaker.metrics.alarms import ALARM_KINDS, DEFAULT_LIMITS

    limits = dict(DEFAULT_LIMITS)
    for text in texts:
        name, _, value = text.partition("=")
        if name not in {kind.name for kind in ALARM_KINDS}:
            known = ", ".join(kind.name for kind in ALARM_KINDS)
            raise UsageError(f"--limit {text!r} names no limit", remedy=f"write NAME=NUMBER, with one of {known}")
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


def _lines(plan: AlarmPlan, *, dry_run: bool) -> list[str]:
    if dry_run:
        calls = [
            f"aws cloudwatch put-metric-alarm --region {plan.region}"
            f" --cli-input-json {shlex.quote(json.dumps(alarm.parameters))}"
            for alarm in plan.pending
        ]
        return [*calls, f"{count(len(plan.pending), 'alarm')} would be created or updated; nothing was changed"]
    done = {"create": "created", "update": "updated", "unchanged": "unchanged"}
    lines = [f"  {done[one.change]}  {one.name}: {one.parameters['AlarmDescription']}" for one in plan.alarms]
    if not any(alarm.parameters["AlarmActions"] for alarm in plan.alarms):
        lines.append("They notify nobody: name a topic with --notify ARN")
    return [f"{plan.endpoint} in {plan.region}: {count(len(plan.alarms), 'alarm')}", *lines]
