"""`plansmith triggers`: model registries whose events start builds."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from plansmith.cli.options import service_option
from plansmith.cli.triggers.inbox import inbox_group
from plansmith.cli.triggers.serve import serve_command
from plansmith.errors import UsageError
from plansmith.formatting import count

if TYPE_CHECKING:
    from plansmith.config.service_triggers import TriggersConfig
    from plansmith.triggers.pollers.poller import Poller
    from plansmith.triggers.watch import Watch


_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_EXIT_SIGNALLED = 128

_EPILOG = """\
\b
Examples:
  plansmith triggers watch
  plansmith triggers watch --once --registry models   # such as every hour, by cron

Exit codes: 2 usage or file; 9 a registry or the inbox is away (with --once), or a library missing; 143 after SIGTERM, 0
after Ctrl-C.
"""


@click.command(
    "watch", short_help="Look at registries by itself, so that no lost webhook is a lost build.", epilog=_EPILOG
)
@service_option("The file of the service whose registries they are.")
@click.option("--once", is_flag=True, help="Look at all that is there now, and end.")
@click.option("--registry", metavar="NAME", help="Only this one.")
def watch_command(*, service: Path, once: bool, registry: str | None) -> None:
    """Poll registries continuously, and store each observed state once in the inbox.

    Folders and prefixes of S3 for models that are complete, queues for what SageMaker and S3 put there, MLflow for
    aliases, tags and versions, the hub for branches and tags that rules name. Each registry is looked at every
    `poll_seconds`; queues tell at once. A registry that is away is said once, and once when it is there again.

    What happens is written to standard error, a line of JSON each. Ctrl-C or SIGTERM ends it, when what it is at is
    kept; a second one at once.
    """
    from plansmith.triggers.configuration import read_triggered, require_libraries
    from plansmith.triggers.inbox.inbox import open_inbox
    from plansmith.triggers.inbox.location import database_of
    from plansmith.triggers.pollers.factory import pollers_of
    from plansmith.triggers.registries.rules import rule_problems
    from plansmith.triggers.serving import log_as_json
    from plansmith.triggers.watch import Watch, WatchLog

    config = read_triggered(service)
    database = database_of(config)
    triggers = config.triggers
    assert triggers is not None
    notices = WatchLog(time.time)
    only = _only(triggers, registry)
    pollers = pollers_of(triggers, Path(config.directory), notices.note, only=only)
    if not pollers:
        raise UsageError(
            f"{only or 'what the service names'} cannot be looked at: hooks only tell by themselves",
            remedy="plansmith triggers serve hears them",
        )
    require_libraries({name: triggers.registries[name] for name in pollers})
    for message in (problem.message for problem in rule_problems(triggers)):
        click.echo(f"plansmith: triggers.{message}", err=True)
    inbox = open_inbox(database)
    log_as_json()
    try:
        watch = Watch(pollers, inbox, notices)
        signal_number = _look_once(watch, pollers) if once else _run(watch, pollers)
    finally:
        for poller in pollers.values():
            poller.close()
        inbox.close()
    if signal_number not in {0, signal.SIGINT}:
        sys.exit(_EXIT_SIGNALLED + signal_number)


def _only(config: TriggersConfig, registry: str | None) -> str:
    if registry is not None and registry not in config.registries:
        raise UsageError(
            f"there is no registry {registry!r} in the file of the service",
            remedy=f"name one of these: {', '.join(config.registries)}",
        )
    return registry or ""


def _look_once(watch: Watch, pollers: dict[str, Poller]) -> int:
    """Poll each registry once; the first error is raised after all were polled."""
    watch.begin()
    faults = []
    for name in pollers:
        looked = watch.poll_fully(name, time.sleep)
        if looked.fault is None:
            click.echo(f"{name}: {count(len(looked.identifiers), 'state')} there, {looked.new} new")
        else:
            faults.append(looked.fault)
    for fault in faults:
        raise fault
    return 0


def _run(watch: Watch, pollers: dict[str, Poller]) -> int:
    """Poll registries until a signal arrives; return the signal."""

    def wait() -> int:
        click.echo(f"watching {', '.join(pollers)}; Ctrl-C ends it", err=True)
        signal_number = signal.sigwait(_SIGNALS)
        for handled in _SIGNALS:
            signal.signal(handled, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        click.echo("ending when what is looked at is kept; once more to end at once", err=True)
        return signal_number

    # They wait from now on until they are waited for, and go to no thread that is begun meanwhile.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    signal_number = watch.run(wait)
    click.echo("nothing is looked at any more; what was found is kept", err=True)
    return signal_number


@click.group("triggers", short_help="Have model registries start builds.")
def triggers_group() -> None:
    """Start builds from model registries: their events are kept in an inbox until they have become runs.

    Which registries are heard, what their events build and where the inbox lies stands under `triggers` in the file of
    the service, configs/service.yaml.

    \b
    plansmith triggers serve
    plansmith triggers watch
    plansmith triggers inbox
    """


triggers_group.add_command(inbox_group)
triggers_group.add_command(serve_command)
triggers_group.add_command(watch_command)
