"""`plansmith prune`."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import click

from plansmith.cli.store.options import open_existing, store_options
from plansmith.cli.text import count, table

if TYPE_CHECKING:
    from plansmith.records.destination import Location
    from plansmith.stores.maintenance.prune import Pruning

_NAMED = 4


@click.command("prune", short_help="Remove old versions from a store, and what none needs.")
@click.option("--keep", metavar="N", type=click.IntRange(1), default=5, show_default=True, help="So many stay of each.")
@click.option(
    "--older-than",
    metavar="AGE",
    default="30d",
    show_default=True,
    help="Younger versions stay: 12h, 30d, 4w; 0 for all.",
)
@click.option("--dry-run", is_flag=True, help="Say what would go, and change nothing.")
@store_options()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def prune_command(*, keep: int, older_than: str, dry_run: bool, store: Location, as_json: bool) -> None:
    """Remove old versions from a store, and contents that no version needs.

    A version goes if it is none of the newest N of its model and was published more than AGE ago. What an alias stands
    for stays, what a rollback of it leads to, what is pinned, and what a loader said to be live in the last 7 days.
    Contents go when no version and no shared cache has them, and they are older than a day.

    \b
    plansmith prune --dry-run --store s3://models/prod
    plansmith prune --keep 3 --older-than 2w --store /srv/store
    """
    from plansmith.formatting import seconds_from_age
    from plansmith.stores.maintenance.prune import Pruner
    from plansmith.stores.maintenance.retention import Retention

    retention = Retention(keep=keep, seconds=seconds_from_age(older_than))
    found = Pruner(open_existing(store), retention, dry=dry_run).prune()
    if as_json:
        click.echo(json.dumps({"dry_run": dry_run, **found.model_dump(mode="json")}))
    else:
        _print(found, would="would be " if dry_run else "")


def _print(found: Pruning, would: str) -> None:
    from plansmith.formatting import format_bytes

    for one in found.gone:
        if one.kind == "version":
            click.echo(f"  {one.name}  {one.why}")
    counts = Counter(one.kind for one in found.gone)
    things = f"{count(counts['version'], 'version')} and {count(counts['content'], 'content')}"
    click.echo(f"{things} {would}removed, {format_bytes(found.freed_bytes)} freed")
    click.echo(f"{count(len(found.staying), 'version')} {'stays' if len(found.staying) == 1 else 'stay'}")
    reasons: dict[str, list[str]] = {}
    for staying in found.staying:
        reasons.setdefault(staying.why, []).append(f"{staying.model}@{staying.version}")
    for line in table([(why, _names(names)) for why, names in reasons.items()]) if reasons else ():
        click.echo(f"  {line}")


def _names(names: list[str]) -> str:
    more = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
