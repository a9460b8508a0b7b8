"""`plansmith pin`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from plansmith.cli.store.completion import complete_version
from plansmith.cli.store.options import open_existing, store_options
from plansmith.errors import UsageError

if TYPE_CHECKING:
    from plansmith.records.destination import Location


@click.command("pin", short_help="Keep a version from being pruned.")
@click.argument("release", metavar="MODEL@VERSION", shell_complete=complete_version)
@click.option("--reason", metavar="TEXT", help="Why, for whoever wonders later.")
@click.option("--off", is_flag=True, help="Let it be pruned again.")
@store_options()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def pin_command(release: str, *, reason: str | None, off: bool, store: Location, as_json: bool) -> None:
    """Keep a version of MODEL from being pruned, or let it be with --off.

    \b
    plansmith pin minilm@3 --reason "audit of March" --store s3://models/prod
    plansmith pin minilm@3 --off --store s3://models/prod
    """
    model, at, _ = release.partition("@")
    if not at:
        raise UsageError(f"{release} names no version", remedy=f"plansmith pin {model}@VERSION --reason TEXT")
    if off == bool(reason):
        raise UsageError("a pin has a reason, or is taken off", remedy="give one of --reason TEXT and --off")
    opened = open_existing(store)
    number = opened.find(release)[1].version
    catalogue = opened.unpin(model, number) if off else opened.pin(model, number, reason or "")
    if as_json:
        pins = [pin.model_dump(mode="json") for pin in catalogue.pins]
        click.echo(json.dumps({"store": opened.place, "model": model, "version": number, "pins": pins}))
        return
    click.echo(f"version {number} of {model} {'may be pruned again' if off else f'is pinned: {reason}'}")
