"""`plansmith triggers watch`."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from plansmith.cli.options import service_option
from plansmith.cli.text import count
from plansmith.errors import UsageError

if TYPE_CHECKING:
    from plansmith.config.service.triggers import TriggersConfig
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
    """Look at registries all the time, and keep what they hold in the inbox, each state once.

    Folders and prefixes of S3 for models that are complete, queues for what SageMaker and S3 put there, MLflow for
    aliases, tags and versions, the hub for branches and tags that rules name. Each registry is looked at every
    `poll_seconds`; queues tell at once. A registry that is away is said once, and once when it is there again.

    What happens is written to standard error, a line of JSON each. Ctrl-C or SIGTERM ends it, when what it is at is
    kept; a second one at once.
    """
    from plansmith.triggers.configuration import read_triggered
    from plansmith.triggers.inbox.inbox import open_inbox
    from plansmith.triggers.inbox.location import database_of
    from plansmith.triggers.json_logging import log_as_json
    from plansmith.triggers.pollers.factory import pollers_of
    from plansmith.triggers.registries.rules import rule_problems
    from plansmith.triggers.requirements import require_libraries
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
    for words in (one.words for one in rule_problems(triggers)):
        click.echo(f"plansmith: triggers.{words}", err=True)
    inbox = open_inbox(database)
    log_as_json()
    try:
        watch = Watch(pollers, inbox, notices)
        told = _look_once(watch, pollers) if once else _run(watch, pollers)
    finally:
        for poller in pollers.values():
            poller.close()
        inbox.close()
    if told not in {0, signal.SIGINT}:
        sys.exit(_EXIT_SIGNALLED + told)


def _only(config: TriggersConfig, registry: str | None) -> str:
    if registry is not None and registry not in config.registries:
        raise UsageError(
            f"there is no registry {registry!r} in the file of the service",
            remedy=f"name one of these: {', '.join(config.registries)}",
        )
    return registry or ""


def _look_once(watch: Watch, pollers: dict[str, Poller]) -> int:
    """Look at each registry; the first fault is the command's, after all were looked at."""
    watch.begin()
    faults = []
    for name in pollers:
        looked = watch.poll_fully(name, time.sleep)
        if looked.fault is None:
            click.echo(f"{name}: {count(len(looked.seen), 'state')} there, {looked.new} new")
        else:
            faults.append(looked.fault)
    for fault in faults:
        raise fault
    return 0


def _run(watch: Watch, pollers: dict[str, Poller]) -> int:
    """Look at registries until a signal comes, which is the answer."""

    def wait() -> int:
        click.echo(f"watching {', '.join(pollers)}; Ctrl-C ends it", err=True)
        told = signal.sigwait(_SIGNALS)
        for one in _SIGNALS:
            signal.signal(one, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        click.echo("ending when what is looked at is kept; once more to end at once", err=True)
        return told

    # They wait from now on until they are waited for, and go to no thread that is begun meanwhile.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    told = watch.run(wait)
    click.echo("nothing is looked at any more; what was found is kept", err=True)
    return told
