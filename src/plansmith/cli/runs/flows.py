"""`plansmith flows`: deploys and serves the flows of a service on a Prefect server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from plansmith.cli.options import service_option
from plansmith.cli.output import echo_lines, program, table
from plansmith.formatting import count

if TYPE_CHECKING:
    from plansmith.config.service import FlowDeployment
    from plansmith.flows.deploy.automations import Change

_WORKER_OPTIONS = {"process": " --limit 4 --install-policy never"}
"""A fleet's run waits for those of its models: a worker takes up several."""

_OUTCOMES = {"made": "would make", "changed": "would change", "removed": "would remove", "left": "is as it should be"}


@click.group("flows", short_help="Run compiles on schedules and on other machines, with Prefect.")
def flows_group() -> None:
    """Run the flows of a service on a Prefect server.

    Fleets, refreshes, verification and garbage collection, on schedule.

    The server is the one of PREFECT_API_URL; `plansmith[flows]` has to be installed. What runs, when and where stands
    in a file, configs/service.yaml.

    \b
    plansmith flows serve
    plansmith flows deploy --dry-run
    """


@flows_group.command("serve", short_help="Run all flows of the service in this process, with their schedules.")
@service_option("The file of the service.", "--config")
@click.option("--dry-run", is_flag=True, help="Say what would be served, and ask no server.")
def serve_command(service: Path, dry_run: bool) -> None:
    """Run all flows of the service here, on schedule or on request, until Ctrl-C.

    For one machine: no work pools and no workers. Schedules are paused while nothing is served.

    \b
    plansmith flows serve
    plansmith flows serve --service configs/service.yaml --dry-run
    """
    from plansmith.flows.prefect_api.api import prepare_prefect

    def tell(message: str) -> None:
        click.echo(message, err=True)

    prepare_prefect("INFO")
    from plansmith.flows.deploy.deployments import deployments_of, load_service

    config = load_service(service).config
    deployments = deployments_of(config, served=True)
    for place in config.specs:
        if not Path(config.directory, place).exists():
            tell(f"there is no {place} in {config.directory}: fleets fail until there is")
    if dry_run:
        echo_lines(_listed(deployments))
        click.echo(f"would run in {config.directory}")
        return
    from plansmith.flows.deploy.serving import serve

    def ready(url: str) -> None:
        echo_lines(_listed(deployments))
        click.echo(f"served to {url} from {config.directory}; Ctrl-C ends it")

    serve(config, deployments, ready=ready, tell=tell)
    tell("nothing is served any more; schedules are paused until it is served again")


@flows_group.command("deploy", short_help="Put the flows of the service onto work pools.")
@service_option("The file of the service.", "--config")
@click.option("--pool", "pools", metavar="NAME", multiple=True, help="Only what runs in this work pool; repeatable.")
@click.option("--dry-run", is_flag=True, help="Say what would change, and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the changes as JSON.")
def deploy_command(service: Path, pools: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Update the deployments, schedules and automations on the Prefect server to match the service file.

    A second call changes nothing. What plansmith did not make stays. Workers take the runs up: on each machine,
    `prefect worker start --pool NAME`, in an environment that has plansmith.

    \b
    plansmith flows deploy
    plansmith flows deploy --pool gpu-l4 --dry-run
    """
    from plansmith.flows.prefect_api.api import prepare_prefect

    prepare_prefect("CRITICAL")
    from plansmith.flows.deploy.deploying import deploy
    from plansmith.flows.deploy.deployments import load_service

    config = load_service(service).config
    done = deploy(config, pools, dry_run=dry_run)
    if as_json:
        click.echo(done.model_dump_json())
        return
    echo_lines(_changed(done.changes, dry_run=dry_run))
    for name in done.crashed:
        click.echo(f"{name} had not been heard of for too long, and counts as crashed now", err=True)
    for change in done.changes:
        if change.what == "work pool" and change.outcome == "left" and change.words:
            says = f"the pool {change.name} stays as it is: {'; '.join(change.words)}"
            click.echo(f"{says}. Compare it with that of its type in configs/work_pools", err=True)
    for pool in done.unattended:
        kind = config.pools[pool].type
        start = f"prefect worker start --pool {pool} --type {kind}{_WORKER_OPTIONS.get(kind, '')}"
        click.echo(f"nobody takes up runs of the pool {pool}. Next: {start}", err=True)


def _listed(deployments: tuple[FlowDeployment, ...]) -> list[str]:
    rows = [("DEPLOYMENT", "WHEN", "WITH")]
    for deployment in deployments:
        when = (
            ", ".join(f"{each.name} {each.cron} {each.timezone}" for each in deployment.schedules) or "when asked for"
        )
        rows.append((deployment.label, when, json.dumps(deployment.parameters) if deployment.parameters else ""))
    return table(rows)


def _changed(changes: tuple[Change, ...], *, dry_run: bool) -> list[str]:
    real = [change for change in changes if change.outcome != "left"]
    lines = [
        f"{_OUTCOMES[change.outcome] if dry_run else change.outcome} {change.what} {change.name}"
        + (f" ({', '.join(change.words)})" if change.words else "")
        for change in real
    ]
    left = len(changes) - len(real)
    if not real:
        return [f"nothing to change: {count(left, 'thing')} as {program()} would make them"]
    return [*lines, f"{count(left, 'other')} left as they were" if left else "nothing else is there"]
