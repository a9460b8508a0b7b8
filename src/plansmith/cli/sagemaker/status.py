"""`plansmith sagemaker status`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from plansmith.cli.sagemaker.options import json_option, spec_argument
from plansmith.cli.text import echo_lines, program, short, table, without_empty_columns

if TYPE_CHECKING:
    from plansmith.sagemaker.deployment.status import EndpointStatus, VariantStatus

_COLUMNS = ["variant", "serves", "instances", "scales", "weight", "type", "state"]


@click.command("status", short_help="An endpoint now: its variants, instances, images and last events.")
@spec_argument
@json_option
def status_command(spec: Path, *, as_json: bool) -> None:
    """Show an endpoint as it is now: its state, what its variants serve, and what happened last.

    \b
    plansmith sagemaker status endpoint.yaml
    plansmith sagemaker status endpoint.yaml --json
    """
    from plansmith.sagemaker.deployment.account import Account
    from plansmith.sagemaker.deployment.status import read_status
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
        echo_lines(_lines(status))


def _document(status: EndpointStatus | None) -> dict[str, object] | None:
    """The description of an endpoint with its status as one mapping; None where there is no endpoint."""
    if status is None:
        return None
    return status.description.model_dump(mode="json") | status.model_dump(mode="json", exclude={"description"})


def _lines(status: EndpointStatus) -> list[str]:
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
