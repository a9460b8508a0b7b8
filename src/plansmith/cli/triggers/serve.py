"""`plansmith triggers serve`."""

from __future__ import annotations

import json
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from plansmith.cli.options import service_option
from plansmith.cli.output import echo_lines, table
from plansmith.errors import EnvironmentFault, UsageError
from plansmith.formatting import count

if TYPE_CHECKING:
    from plansmith.config.service import ServiceConfig, ServiceFile
    from plansmith.config.service_triggers import TriggersConfig
    from plansmith.flows.triggers.service import PendingBuild
    from plansmith.triggers.secrets import Secrets

_EXIT_SIGNALLED = 128

_EPILOG = """\
\b
Examples:
  plansmith triggers serve --dry-run
  plansmith triggers serve
  plansmith triggers serve --host 10.0.0.7 --port 8420 --workers 4
  plansmith triggers serve --no-worker --no-poll   # deliveries are kept, and built by another process
  plansmith triggers serve --no-page               # hooks, /healthz and /metrics only

Exit codes: 2 usage, file or secret; 9 port taken, library missing or no inbox; 143 after SIGTERM, 0 after Ctrl-C.
"""


@click.command("serve", short_help="Take deliveries of registries, and start builds for them.", epilog=_EPILOG)
@service_option("The file of the service, with the section `triggers`.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address of this machine to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=8420, show_default=True, help="0: one that is free.")
@click.option(
    "--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Threads that work the inbox off."
)
@click.option("--no-worker", is_flag=True, help="Keep deliveries, and build nothing: another process does.")
@click.option("--no-poll", is_flag=True, help="Poll no registry: `plansmith triggers watch` does, or nobody.")
@click.option("--no-page", is_flag=True, help="Serve no status page.")
@click.option("--dry-run", is_flag=True, help="Say what would be heard and built, and start nothing.")
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: as one JSON document.")
def serve_command(
    *,
    service: Path,
    host: str,
    port: int,
    workers: int,
    no_worker: bool,
    no_poll: bool,
    no_page: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Receive registry webhooks at /hooks/NAME, store them, and start a flow run for each event that matches a rule.

    A delivery that was acknowledged is on the disk: its run is started when Prefect is there, once, whatever is
    repeated, killed or started again meanwhile. Where no Prefect API is configured, models are compiled in this
    process. Any number of these may work on one inbox. Registries are polled, too, for what no delivery told.

    Every delivery and every entry is a line of JSON on standard error; requests that prove no secret are one a minute,
    with their number.

    The status page at / shows the fleet, each model and the inbox. It is read-only and needs no password, and neither
    do /healthz and /metrics: have a proxy pass on /hooks/ alone. The page is served under addresses, localhost, the
    name of --host and those that triggers.hosts lists.

    Where Prefect is away, secrets that its blocks hold are asked for until they are known; what they have to prove is
    answered with 503 meanwhile, and sent again.
    """
    from plansmith.flows.triggers.service import configuration_cautions, enter_directory
    from plansmith.triggers.configuration import read_triggered_file, registries_of_workers, require_libraries
    from plansmith.triggers.inbox.location import database_of
    from plansmith.triggers.receiver.server import require_server

    if as_json and not dry_run:
        raise UsageError("--json goes with --dry-run", remedy="a service that runs logs lines of JSON already")
    require_server()
    file = read_triggered_file(service)
    config, database = file.config, database_of(file.config)
    triggers = config.triggers
    assert triggers is not None
    if not no_worker:
        require_libraries(registries_of_workers(triggers))
    if not no_poll:
        require_libraries(triggers.registries)
    enter_directory(config.directory)
    secrets = _require_buildable(file, triggers, with_specs=not no_worker)
    for caution in configuration_cautions(triggers, secrets):
        click.echo(f"plansmith: caution: {caution}", err=True)
    if dry_run:
        _show(service, config, secrets, poll=not no_poll, as_json=as_json)
        return
    number = _serve(
        config,
        database,
        secrets,
        (host, port),
        workers=0 if no_worker else workers,
        poll=not no_poll,
        with_page=not no_page,
    )
    click.echo("no deliveries are taken any more; what was kept is built when it is started again", err=True)
    if number != signal.SIGINT:
        sys.exit(_EXIT_SIGNALLED + number)


def _require_buildable(file: ServiceFile, triggers: TriggersConfig, *, with_specs: bool) -> Secrets:
    """Return the secrets of all registries after checking that each rule can build; all problems form one error."""
    from plansmith.config.spec import Problem
    from plansmith.flows.triggers.service import configuration_problems
    from plansmith.triggers.secrets import Secrets

    problems = list(configuration_problems(file, with_specs=with_specs))
    secrets = None
    try:
        secrets = Secrets(triggers.registries, _read_block)
    except UsageError as error:
        if not problems:
            raise
        problems.append(Problem(("triggers", "registries"), "wrong", error.message))
    file.require(iter(problems))
    assert secrets is not None
    return secrets


def _read_block(name: str) -> str:
    from plansmith.flows.prefect_api.api import read_secret

    return read_secret(name)


def _serve(
    config: ServiceConfig,
    database: str,
    secrets: Secrets,
    at: tuple[str, int],
    *,
    workers: int,
    poll: bool,
    with_page: bool,
) -> int:
    """Serve until a signal arrives; return the signal."""
    from plansmith.flows.triggers.service import workers_of
    from plansmith.triggers.inbox.inbox import open_inbox
    from plansmith.triggers.metrics import Metrics
    from plansmith.triggers.pages.routes import StatusPages
    from plansmith.triggers.pollers.factory import pollers_of
    from plansmith.triggers.receiver.server import address_of, bind
    from plansmith.triggers.serving import log_as_json, serve
    from plansmith.triggers.watch import Watch, WatchLog

    triggers = config.triggers
    assert triggers is not None
    with ExitStack() as stack:
        inbox = open_inbox(database)
        stack.callback(inbox.close)
        listening = stack.enter_context(bind(*at))
        metrics, log = Metrics(), WatchLog(time.time)
        threads = workers_of(config, inbox, _prefect(), workers, metrics.count_worked) if workers else []
        pollers = pollers_of(triggers, Path(config.directory), log.note) if poll else {}
        for poller in pollers.values():
            stack.callback(poller.close)
        log_as_json()
        watch = Watch(pollers, inbox, log)
        watch.begin()

        pages = StatusPages(config, inbox, host=at[0]) if with_page else None

        def ready() -> None:
            if with_page:
                click.echo(f"status page at {address_of(listening)}/")
            click.echo(f"{_describe_hooks(triggers, address_of(listening))}; Ctrl-C ends it")

        def ending() -> None:
            message = "what is in work is finished first, for a minute at most; a second signal ends it at once"
            click.echo(message, err=True)

        services = [*threads, *watch.services()]
        return serve(
            triggers, inbox, secrets, listening, services, ready=ready, ending=ending, pages=pages, metrics=metrics
        )


def _prefect() -> str:
    """Return the URL of the Prefect API, which need not respond yet; empty if none is configured."""
    from plansmith.flows.prefect_api.api import known_api

    try:
        api = known_api()
    except ImportError:
        api = ""
    if not api:
        click.echo("plansmith: no Prefect API is configured: models are compiled in this process", err=True)
    return api


def _show(service: Path, config: ServiceConfig, secrets: Secrets, *, poll: bool, as_json: bool) -> None:
    """Print which events would be handled, and what would be built from the registries' current contents."""
    from plansmith.flows.triggers.service import poll_once

    builds, faults = poll_once(config, time.time()) if poll else ([], [])
    for caution in faults:
        click.echo(f"plansmith: caution: {caution}", err=True)
    if as_json:
        click.echo(json.dumps(_document(config, builds)))
    else:
        _print(service, config, builds)
    if secrets.awaited:
        raise EnvironmentFault(
            "secrets that Prefect keeps were not looked at", remedy="run it again when Prefect answers", transient=True
        )


def _document(config: ServiceConfig, builds: list[PendingBuild]) -> dict[str, object]:
    from dataclasses import asdict

    from plansmith.flows.triggers.builder import targets_of
    from plansmith.triggers.registries.parse import delivering

    triggers = config.triggers
    assert triggers is not None
    hooks = delivering(triggers.registries)
    registries = {
        name: {
            "type": item.type,
            "hook": f"/hooks/{name}" if name in hooks else None,
            "poll_seconds": item.poll_seconds,
        }
        for name, item in triggers.registries.items()
    }
    rules = [{**rule.model_dump(mode="json"), "targets": targets_of(rule)} for rule in triggers.rules]
    return {"registries": registries, "rules": rules, "builds": [asdict(item) for item in builds]}


def _print(service: Path, config: ServiceConfig, builds: list[PendingBuild]) -> None:
    from plansmith.flows.triggers.builder import targets_of
    from plansmith.flows.triggers.service import describe_rule
    from plansmith.triggers.registries.parse import delivering

    triggers = config.triggers
    assert triggers is not None
    hooks = delivering(triggers.registries)
    click.echo(f"{service}: {count(len(triggers.rules), 'rule')} for {', '.join(triggers.registries)}")
    for name, entry in triggers.registries.items():
        hook = f", hears /hooks/{name}" if name in hooks else ""
        click.echo(f"{name} ({entry.type}){hook}")
        rows = [
            ("", describe_rule(rule), "->", rule.spec, f"for {', '.join(targets_of(rule))}")
            for rule in triggers.rules
            if rule.registry == name
        ]
        echo_lines(table(rows))
    for build in builds:
        click.echo(f"would build {build.event} of {build.registry}: {build.spec} for {', '.join(build.targets)}")
    click.echo("nothing was started")


def _describe_hooks(triggers: TriggersConfig, address: str) -> str:
    from plansmith.triggers.registries.parse import delivering

    if hooks := [f"{address}/hooks/{name}" for name in delivering(triggers.registries)]:
        return f"takes deliveries at {', '.join(hooks)}"
    return f"no registry here sends anything: builds what polls find, and answers at {address}"
