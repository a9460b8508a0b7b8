"""`plansmith sagemaker delete`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from plansmith.cli.sagemaker.options import (
    json_option,
    polling_for,
    progress_to_stderr,
    quiet_option,
    spec_argument,
    wait_option,
)
from plansmith.cli.text import count, echo_lines


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
    """Delete an endpoint, its auto scaling, and all configurations and models that were created for it.

    What has no tag of plansmith's stays, and so do archives without --archives.

    \b
    plansmith sagemaker delete endpoint.yaml --dry-run
    plansmith sagemaker delete endpoint.yaml --yes
    plansmith sagemaker delete endpoint.yaml --archives --yes
    """
    from plansmith.errors import EnvironmentFault, UsageError
    from plansmith.sagemaker.deployment.account import Account
    from plansmith.sagemaker.deployment.deletion import delete, plan_deletion
    from plansmith.sagemaker.deployment.waiter import StillPendingError
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
