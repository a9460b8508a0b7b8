"""`plansmith pull`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from plansmith.cli.options import complete_folder
from plansmith.cli.store.completion import complete_version
from plansmith.cli.store.options import open_existing, store_options

if TYPE_CHECKING:
    from plansmith.records.destination import Location
    from plansmith.stores.sync.pull import Pulled

INTO = Path("artifacts") / "mirror"


@click.command("pull", short_help="Bring a version of a store to this machine, and show it to Triton.")
@click.argument("release", metavar="MODEL[@VERSION|@ALIAS]", shell_complete=complete_version)
@click.option(
    "--into",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default=INTO,
    show_default=True,
    shell_complete=complete_folder,
    help="The folder that Triton reads; everything else lies beside it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@store_options()
def pull_command(release: str, into: Path, *, as_json: bool, store: Location) -> None:
    """Bring a version of a store to this machine, check every byte of it, and show it to Triton in one step.

    The version is that of the alias `current` where none is named. What is here already is not fetched, and a pull that
    was killed goes on from there. The folder is a repository like that of a compile: serve, show, check, validate and
    report work on it.

    \b
    plansmith pull minilm --store s3://models/prod --into /srv/models
    plansmith pull minilm@champion --store /mnt/store
    plansmith serve --repository artifacts/mirror
    """
    from plansmith.cli.store.transfers import transfer_line
    from plansmith.cli.text import require_text
    from plansmith.records.destination import CURRENT
    from plansmith.stores.sync.mirror import Mirror
    from plansmith.stores.sync.pull import pull

    require_text(release)
    opened = open_existing(store)
    catalogue, version = opened.find(release)
    pointer = catalogue.aliases.get(release.partition("@")[2] or CURRENT)
    line, mirror = pointer.line if pointer is not None else (), Mirror(into)
    with mirror.held(opened, alone=False), transfer_line(f"of {release} fetched", quiet=as_json) as moved:
        pulled = pull(opened, mirror, catalogue, version, line=line, moved=moved)
    if as_json:
        click.echo(pulled.model_dump_json())
    else:
        _print(pulled)


def _print(pulled: Pulled) -> None:
    from plansmith.cli.text import short
    from plansmith.formatting import format_bytes

    fetched = f"{format_bytes(pulled.fetched_bytes)} of {format_bytes(pulled.total_bytes)} fetched"
    click.echo(f"{pulled.model} version {pulled.version}: {'was here already' if pulled.unchanged else fetched}")
    click.echo(f"  release  {short(Path(pulled.release))}")
    click.echo(f"  shown    version {', '.join(map(str, pulled.shown))} in {short(Path(pulled.repository))}")
