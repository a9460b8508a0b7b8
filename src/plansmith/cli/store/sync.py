"""`plansmith sync`."""

from __future__ import annotations

import re
import signal
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from plansmith.cli.options import complete_folder
from plansmith.cli.store.completion import complete_model
from plansmith.cli.store.options import store_options
from plansmith.cli.store.pull import INTO

if TYPE_CHECKING:
    from plansmith.records.destination import Location
    from plansmith.stores.records import LiveReport
    from plansmith.stores.sync.sync import Sync

_EPILOG = """\
\b
Examples:
  plansmith sync --store s3://models/prod --into /srv/models --once       # before Triton starts
  plansmith sync --store s3://models/prod --into /srv/models --url grpc://127.0.0.1:8001
  plansmith sync minilm --alias canary --store /mnt/store --into /srv/canary --url grpc://canary:8001
"""


@click.command("sync", short_help="Keep a Triton on what a store's aliases stand for.", epilog=_EPILOG)
@click.argument("models", nargs=-1, metavar="[MODEL]...", shell_complete=complete_model)
@click.option(
    "--into",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default=INTO,
    show_default=True,
    shell_complete=complete_folder,
    help="The folder that Triton reads; everything else lies beside it.",
)
@click.option(
    "--url",
    "urls",
    metavar="URL",
    multiple=True,
    help="A Triton that reads the folder and is told to load, such as grpc://127.0.0.1:8001; repeatable.",
)
@click.option("--alias", default="current", show_default=True, help="Show what it stands for.")
@click.option(
    "--interval",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    default=10,
    show_default=True,
    help="Between two looks.",
)
@click.option(
    "--load-seconds",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    default=900,
    show_default=True,
    help="How long a Triton may take to load a version.",
)
@click.option("--name", help="What the store's reports call this loader [host and folder].")
@click.option("--once", is_flag=True, help="Look once, and end: with an error where a model is not as the store says.")
@click.option("--accept-older", is_flag=True, help="With --once: no error where a whole version is shown all the same.")
@click.option("--retry", is_flag=True, help="Try again what a Triton refused.")
@click.option("--json", "as_json", is_flag=True, help="Print what is live, at each change, as a line of JSON.")
@store_options()
def sync_command(  # noqa: PLR0913 - whoever keeps it running wants all of it in one place
    models: tuple[str, ...],
    *,
    into: Path,
    urls: tuple[str, ...],
    alias: str,
    interval: float,
    load_seconds: float,
    name: str | None,
    once: bool,
    accept_older: bool,
    retry: bool,
    as_json: bool,
    store: Location,
) -> None:
    """Follow a store: bring here what its aliases stand for, show it to Triton, and have Triton load it.

    All models that have the alias unless some are named. A version that a Triton refuses is said, with its reason, and
    taken back; the one before serves on until the alias is moved. So it is while the store cannot be reached. A Triton
    that was started again is loaded again. What is live is reported to the store (plansmith versions). Ctrl-C or
    SIGTERM ends it.
    """
    from plansmith.stores.open import open_store
    from plansmith.stores.sync.followed_model import SyncContext
    from plansmith.stores.sync.mirror import Mirror
    from plansmith.stores.sync.servers import MirrorServers
    from plansmith.stores.sync.sync import Sync

    if accept_older and not once:
        raise click.UsageError("--accept-older goes with --once")
    mirror, opened = Mirror(into), open_store(store, Path.cwd())
    with mirror.held(opened, alone=True):
        around = SyncContext(
            store=opened,
            mirror=mirror,
            loaders=MirrorServers(urls, load_seconds=load_seconds),
            name=_name(name or f"{socket.gethostname()}-{mirror.repository.root.name}"),
            alias=_alias(alias),
            pause_seconds=interval,
            say=lambda line: click.echo(line, err=as_json),
            told=_print_report if as_json else lambda _: None,
        )
        sync = Sync(around, models)
        if retry:
            sync.forget_refusals()
        if once:
            faults = sync.look()
            if accept_older and sync.shows_older(faults):
                faults = []
            for fault in (*faults, *around.loaders.away()):
                raise fault
            return
        click.echo(f"{mirror.repository.root} follows {opened.place}; Ctrl-C ends it", err=True)
        _follow(sync, interval)


def _follow(sync: Sync, interval: float) -> None:
    """Look until somebody ends it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while True:
            sync.look()
            time.sleep(interval)
    except KeyboardInterrupt:
        click.echo("stopped", err=True)


def _print_report(report: LiveReport) -> None:
    click.echo(report.model_dump_json())


def _alias(text: str) -> str:
    from plansmith.records.destination import wrong_alias

    wrong = wrong_alias(text)
    if wrong is not None:
        raise click.BadParameter(wrong, param_hint="--alias")
    return text


def _name(text: str) -> str:
    """A name that is one part of a key."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).lstrip(".") or "loader"
