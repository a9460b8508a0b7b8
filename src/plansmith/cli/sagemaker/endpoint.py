"""Commands on one endpoint: `status`, `delete`, `policy` and `verify` of `plansmith sagemaker`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.options import complete_file, complete_folder
from plansmith.cli.output import echo_lines, printable, program, short, table, without_empty_columns
from plansmith.errors import UsageError
from plansmith.formatting import count

if TYPE_CHECKING:
    from plansmith.sagemaker.deployment.current import Polling
    from plansmith.sagemaker.deployment.deploy import EndpointStatus, VariantStatus
    from plansmith.sagemaker.endpoint.desired import DesiredState
    from plansmith.sagemaker.verification import EndpointVerification
    from plansmith.system.tasks import Progress


ARCHIVES = Path("artifacts") / "sagemaker"

spec_argument = click.argument(
    "spec", metavar="SPEC.yaml", type=click.Path(path_type=Path), shell_complete=complete_file
)
archives_option = click.option(
    "--output",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    default=ARCHIVES,
    show_default=True,
    shell_complete=complete_folder,
    help="The folder that takes the archives.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
quiet_option = click.option("--quiet", is_flag=True, help="Print no progress.")
wait_option = click.option(
    "--wait-minutes",
    metavar="N",
    type=click.IntRange(1),
    default=60,
    show_default=True,
    help="How long to wait for the endpoint; it goes on by itself after that.",
)

_COLUMNS = ["variant", "serves", "instances", "scales", "weight", "type", "state"]
_NAMES = ("deployer", "recommender", "operator", "execution", "recommender-role", "trust")
_EPILOG = """\
\b
Examples:
  plansmith sagemaker verify minilm-prod
  plansmith sagemaker verify minilm-prod --since 1d --max-error-rate 0.1% --max-p99-ms 200
  plansmith sagemaker verify minilm-prod --region eu-west-1 --json

Exit codes: 0 when all is as it should be; 2 no such endpoint, region or limit; 8 something is not as it should be;
9 AWS cannot be asked, or a permission is missing.
"""


def polling_for(wait_minutes: int) -> Polling:
    """Return the polling settings for waiting on an endpoint."""
    from plansmith.sagemaker.deployment.current import Polling

    return Polling(limit_seconds=wait_minutes * 60)


def progress_to_stderr(*, quiet: bool) -> Progress:
    """Return a callback that prints each progress line, unless the command is quiet."""

    def show(line: str) -> None:
        if not quiet:
            click.echo(line, err=True)

    return show


@click.command("status", short_help="An endpoint now: its variants, instances, images and last events.")
@spec_argument
@json_option
def status_command(spec: Path, *, as_json: bool) -> None:
    """Show the current state of an endpoint: its status, what its variants serve, and the last event.

    \b
    plansmith sagemaker status endpoint.yaml
    plansmith sagemaker status endpoint.yaml --json
    """
    from plansmith.sagemaker.deployment.account import Account
    from plansmith.sagemaker.deployment.deploy import read_status
    from plansmith.sagemaker.endpoint.loader import read_endpoint

    endpoint = read_endpoint(spec)
    with Account(endpoint) as account:
        status = read_status(account)
    if as_json:
        click.echo(json.dumps({"endpoint": endpoint.name, "region": endpoint.region, "status": _document(status)}))
    elif status is None:
        click.echo(f"there is no endpoint {endpoint.name} in {endpoint.region}")
        click.echo(f"Next: {program()} sagemaker deploy {short(spec.absolute())}")
    else:
        echo_lines(_status_lines(status))


def _document(status: EndpointStatus | None) -> dict[str, object] | None:
    """Return an endpoint's description and status as one mapping; None if there is no endpoint."""
    if status is None:
        return None
    return status.description.model_dump(mode="json") | status.model_dump(mode="json", exclude={"description"})


def _status_lines(status: EndpointStatus) -> list[str]:
    from plansmith.formatting import minute

    endpoint = status.description
    since = minute(endpoint.changed.isoformat())
    lines = [f"{endpoint.name} is {endpoint.status} with {endpoint.config}, since {since}"]
    lines += [] if status.is_owned else ["  ! plansmith did not create it"]
    lines += [f"  it changes to {endpoint.pending_config}"] if endpoint.pending_config else []
    lines += [f"  ! {endpoint.failure}"] if endpoint.failure else []
    if status.variants:
        lines += table(without_empty_columns([_COLUMNS, *map(_cells, status.variants)]))
    for variant in status.variants:
        model = variant.model
        lines.append(f"  {variant.name}: {f'{model.image}, {model.data}' if model else 'no model'}")
    lines += [f"  {minute(event.time.isoformat())}  {event.message}" for event in status.events]
    lines += [f"  ! {reason}" for reason in status.unknown]
    return lines


def _cells(variant: VariantStatus) -> list[str]:
    instances = "" if variant.instances is None else f"{variant.instances}"
    if variant.desired_instances not in {None, variant.instances}:
        instances += f" of {variant.desired_instances}"
    return [
        f"{variant.name} (shadow)" if variant.shadow else variant.name,
        _releases(variant),
        instances,
        "" if variant.max_instances is None else f"{variant.min_instances} to {variant.max_instances}",
        "" if variant.weight is None else f"{variant.weight:g}",
        variant.instance_type,
        ", ".join(variant.states),
    ]


def _releases(variant: VariantStatus) -> str:
    more = f" and {variant.more_releases} more" if variant.more_releases else ""
    return f"{', '.join(variant.releases)}{more}"


@click.command("delete", short_help="Delete an endpoint with all that was created for it.")
@spec_argument
@click.option("--archives", is_flag=True, help="Delete its archives in the bucket, too.")
@click.option("--yes", is_flag=True, help="Do it: requests to the endpoint fail from then on.")
@wait_option
@click.option("--dry-run", is_flag=True, help="Print what would be deleted, and change nothing.")
@json_option
@quiet_option
def delete_command(
    spec: Path, wait_minutes: int, *, archives: bool, yes: bool, dry_run: bool, as_json: bool, quiet: bool
) -> None:
    """Delete an endpoint, its auto scaling, and all configurations and models created for it.

    What has no tag of plansmith's stays, and so do archives without --archives.

    \b
    plansmith sagemaker delete endpoint.yaml --dry-run
    plansmith sagemaker delete endpoint.yaml --yes
    plansmith sagemaker delete endpoint.yaml --archives --yes
    """
    from plansmith.errors import EnvironmentFault, UsageError
    from plansmith.sagemaker.deployment.account import Account
    from plansmith.sagemaker.deployment.current import StillPendingError
    from plansmith.sagemaker.deployment.deploy import delete, plan_deletion
    from plansmith.sagemaker.endpoint.loader import read_endpoint

    endpoint = read_endpoint(spec)
    with Account(endpoint) as account:
        plan = plan_deletion(account, with_archives=archives)
        if plan.count and not (yes or dry_run):
            raise UsageError(
                f"{count(plan.count, 'thing')} of {endpoint.name} would be deleted, and requests to it would fail",
                remedy="pass --yes to do it, or --dry-run to see what it is",
            )
        if not dry_run:
            try:
                delete(account, plan, polling_for(wait_minutes), progress_to_stderr(quiet=quiet))
            except StillPendingError as pending:
                raise EnvironmentFault(
                    f"{endpoint.name} is still {pending.status}", remedy="run the same command again", transient=True
                ) from pending
    keys = [f"{endpoint.archive_prefix}{key}" for key in plan.archives]
    if as_json:
        requests = [call.model_dump() for call in plan.calls]
        document = {"dry_run": dry_run, "endpoint": endpoint.name, "requests": requests, "archives": keys}
        click.echo(json.dumps(document))
        return
    if dry_run:
        echo_lines([*(f"  {call.summary}" for call in plan.calls), *(f"  delete {key}" for key in keys)])
    if not plan.count:
        click.echo(f"nothing to delete: there is no endpoint {endpoint.name} in {endpoint.region}, and nothing of it")
        return
    click.echo(f"{count(plan.count, 'thing')} {'would be ' if dry_run else ''}deleted")


@click.command("policy", short_help="Print the IAM policies that an endpoint needs, and no more.")
@spec_argument
@click.option("--only", type=click.Choice(_NAMES), help="Print one of them, as IAM takes it.")
def policy_command(spec: Path, only: str | None) -> None:
    """Print the least-privilege IAM policies for an endpoint as JSON. Makes no call to AWS.

    \b
    deployer          for `plansmith sagemaker deploy`, `status` and `delete`
    recommender       for `plansmith sagemaker recommend`, with deployer
    operator          for `plansmith sagemaker invoke`, `status`, `metrics` and `verify`, which change nothing
    execution         for the role in the file, with which SageMaker reads archives and images and writes logs
    recommender-role  for that role, with execution: a job of recommend creates, invokes and deletes endpoints
    trust             the trust policy of that role

    The releases have to be there for deployer and execution, which name their images.

    \b
    plansmith sagemaker policy endpoint.yaml
    plansmith sagemaker policy endpoint.yaml --only deployer > deployer.json
    """
    from plansmith.sagemaker.deployment.deploy import prepare_archives
    from plansmith.sagemaker.endpoint import iam_policy
    from plansmith.sagemaker.endpoint.desired import desired_state
    from plansmith.sagemaker.endpoint.loader import read_endpoint

    endpoint = read_endpoint(spec)

    @cache
    def desired() -> DesiredState:
        return desired_state(endpoint, prepare_archives(endpoint, ARCHIVES, dry_run=True))

    policies: dict[str, Callable[[], dict[str, Any]]] = {
        "recommender": lambda: iam_policy.recommender_policy(endpoint),
        "recommender-role": lambda: iam_policy.recommender_role_policy(endpoint),
        "deployer": lambda: iam_policy.deployer_policy(endpoint, desired()),
        "operator": lambda: iam_policy.operator_policy(endpoint),
        "execution": lambda: iam_policy.execution_policy(endpoint, desired()),
        "trust": iam_policy.trust_policy,
    }
    document = policies[only]() if only else {name: policies[name]() for name in _NAMES}
    click.echo(json.dumps(document, indent=2))


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
    """Check that ENDPOINT is in service and serves what was deployed, without failures.

    Weights, instances and images are compared with the configuration; the archives must still be in S3, or no new
    instance could start. Requests that ended with 5XX are a finding, and so are limits that CloudWatch's metrics do
    not keep.
    """
    from plansmith.sagemaker.metrics.cloudwatch import parse_time
    from plansmith.sagemaker.verification import EndpointLimits, verify_endpoint
    from plansmith.system.aws.client import resolve_region

    limits = EndpointLimits(error_rate=_read_rate(max_error_rate), p99_ms=max_p99_ms)
    start = parse_time(since, datetime.now(UTC)) if since is not None else None
    verification = verify_endpoint(endpoint, resolve_region(region), limits, start)
    if as_json:
        click.echo(verification.model_dump_json())
    else:
        echo_lines(_verification_lines(verification))
    if (error := verification.error()) is not None:
        click.echo(f"plansmith: {error}", err=True)  # the findings are the document already
        sys.exit(error.exit_code)


def _read_rate(text: str | None) -> float | None:
    """Parse a rate: 0.01 or 1%.

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


def _verification_lines(verification: EndpointVerification) -> list[str]:
    from plansmith.report.numbers import amount
    from plansmith.sagemaker.metrics.page import describe_variant, format_range, format_total

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
        f"  !! {f'{finding.variant}: ' if finding.variant else ''}{printable(finding.problem)}"
        for finding in verification.findings
    ]
    lines += [f"  {printable(note)}" for note in verification.notes]
    return lines if verification.findings else [*lines, "  all as it should be"]
