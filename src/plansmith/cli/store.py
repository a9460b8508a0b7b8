"""`plansmith store`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from plansmith.cli.store_options import open_existing, store_options
from plansmith.cli.text import count, echo_lines

if TYPE_CHECKING:
    from plansmith.destinations import Place
    from plansmith.stores.overview import Overview


@click.command("store", short_help="What a store is: target, models, bytes, what can be relied on there.")
@store_options()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def store_command(*, store: Place, as_json: bool) -> None:
    """What a store is: its target, its models and bytes, and what can be relied on there.

    \b
    plansmith store --store /srv/store
    plansmith store --store s3://models/prod --endpoint-url https://minio.lan:9000
    """
    from plansmith.stores.overview import look_over

    found = look_over(open_existing(store))
    if as_json:
        click.echo(json.dumps(found.model_dump(mode="json")))
    else:
        echo_lines(_lines(found))


_CONTENTS = "objects"
_DOCUMENTS = {"leases", "live", "models", "probe", "releases", "turns"}
"""What the models and versions are told of by already, or concerns plansmith alone."""


def _lines(found: Overview) -> list[str]:
    from plansmith.units import bytes_in_words, minute

    able = found.abilities
    told = [
        ("target", found.target),
        ("made", f"{minute(found.created)} UTC"),
        ("writes", _writes(found)),
        ("checksums", "checked by the store, too" if able.checksums else "checked by plansmith alone"),
        ("models", f"{count(found.models, 'model')}, {count(found.versions, 'version')}"),
    ]
    for kind, held in found.held.items():
        if kind not in _DOCUMENTS:
            name = "contents" if kind == _CONTENTS else kind
            told.append((name, f"{count(held.objects, 'object')}, {bytes_in_words(held.bytes)}"))
    return [found.place, *(f"  {name:<12}{words}" for name, words in told)]


def _writes(found: Overview) -> str:
    able = found.abilities
    asked = f", as it showed on {able.probed[:10]}" if able.probed else ""
    if able.is_conditional:
        return f"conditional, and safe in a race{asked}"
    missing = [
        words
        for has, words in (
            (able.create_once, "refuse to write over a key"),
            (able.swap, "refuse to replace what changed"),
            (able.safe_in_race, "tell one of several writers apart"),
        )
        if not has
    ]
    return f"one publisher at a time: it does not {', nor '.join(missing)}{asked}"
