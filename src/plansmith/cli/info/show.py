"""`plansmith show`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from plansmith.cli.options import complete_model, repository_option
from plansmith.cli.text import echo_lines, nested_lines, table

if TYPE_CHECKING:
    from plansmith.triton.repository.versions import Version


@click.command("show", short_help="The versions of a model, and one of them in full.")
@click.argument("release", metavar="MODEL[@VERSION]", shell_complete=complete_model)
@repository_option("Where the model is looked up.")
@click.option("--json", "as_json", is_flag=True, help="Print the same as one JSON document.")
def show_command(release: str, repository: Path, as_json: bool) -> None:
    """The versions of MODEL and which of them serves, and one release in full: VERSION, or the newest.

    \b
    plansmith show minilm
    plansmith show minilm@3 --repository /srv/models
    """
    from plansmith.cli.inspection import explain
    from plansmith.triton.repository.repository import ModelRepository
    from plansmith.triton.repository.versions import versions

    opened = ModelRepository(repository)
    model, number = opened.find(release)
    known = versions(opened, model)
    if as_json:
        serving = max((version.number for version in known if version.serves), default=None)
        listed = [version.as_json() for version in known]
        facts = explain(opened.release(model, number))
        click.echo(json.dumps({"model": model, "serves": serving, "versions": listed, "release": facts}))
        return
    _print(model, known)
    echo_lines(nested_lines(explain(opened.release(model, number))))


def _print(model: str, known: list[Version]) -> None:
    from plansmith.formatting import minute

    rows = [("VERSION", "MADE (UTC)", "GATE", "TRITON")]
    for version in known:
        triton = "serves" if version.serves else "shown" if version.shown else f"not shown: {version.hidden}"
        made = minute(version.made) if version.made else "unknown"
        rows.append((str(version.number), made, version.verdict or "unknown", triton))
    click.echo(f"{model}: {len(known)} version{'s' if len(known) > 1 else ''}")
    click.echo("\n".join(f"  {line}" for line in table(rows)) + "\n")
