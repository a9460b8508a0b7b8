"""`plansmith store`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from plansmith.cli.store.options import open_existing, store_options
from plansmith.cli.text import count, echo_lines

if TYPE_CHECKING:
    from plansmith.records.destination import Location
    from plansmith.stores.backend.object_store import Abilities
    from plansmith.stores.overview import Overview


@click.command("store", short_help="What a store is: target, models, bytes, what can be relied on there.")
@click.option("--probe", is_flag=True, help="Ask the server anew what it does, and keep that.")
@store_options()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def store_command(*, probe: bool, store: Location, as_json: bool) -> None:
    """What a store is: its target, its models and bytes, and what can be relied on there.

    A server is asked once, when the store is made, whether it keeps publishers apart (conditional writes, also when
    several come at once) and checks what it is sent. Where it does not, plansmith does both by itself. Ask again after
    an update of the server, while nobody publishes.

    \b
    plansmith store --store /srv/store
    plansmith store --store s3://models/prod --endpoint-url https://minio.lan:9000
    plansmith store --store s3://models/prod --probe
    """
    from plansmith.stores.initialize import probe_again
    from plansmith.stores.overview import look_over

    opened = open_existing(store)
    if probe:
        probe_again(opened)
    found = look_over(opened)
    if as_json:
        click.echo(json.dumps(found.model_dump(mode="json")))
    else:
        echo_lines(_lines(found))


_CONTENTS = "objects"
_DOCUMENTS = {"leases", "live", "models", "probe", "releases", "turns"}
"""What the models and versions are told of by already, or concerns plansmith alone."""


def _lines(found: Overview) -> list[str]:
    from plansmith.formatting import format_bytes, minute

    able = found.abilities
    told = [
        ("target", found.target or "that of its first release"),
        ("made", f"{minute(found.created)} UTC"),
        ("writes", able.shortcoming or "conditional, so that publishers need not wait for each other"),
        *_server(able),
        ("models", f"{count(found.models, 'model')}, {count(found.versions, 'version')}"),
    ]
    for kind, held in found.held.items():
        if kind not in _DOCUMENTS:
            name = "contents" if kind == _CONTENTS else kind
            told.append((name, f"{count(held.objects, 'object')}, {format_bytes(held.bytes)}"))
    return [found.place, *(f"  {name:<12}{words}" for name, words in told)]


def _server(able: Abilities) -> list[tuple[str, str]]:
    """What it calls itself, when it was asked, and whether it checks what it is sent; nothing for a folder."""
    from plansmith.formatting import minute

    if not able.probed:
        return [] if able.is_known else [("server", "was never asked what it does: pass --probe")]
    checks = "by the server, too" if able.checksums else "by plansmith alone: what is sent is read back"
    return [
        ("server", f"{able.server or 'does not say what it is'}, asked {minute(able.probed)} UTC"),
        ("checksums", checks),
    ]
