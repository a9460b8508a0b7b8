"""`plansmith diff`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from plansmith.cli.options import repository_option
from plansmith.cli.store.completion import complete_version
from plansmith.cli.store.options import open_existing, store_options
from plansmith.cli.store.versions import LOCAL
from plansmith.cli.text import echo_lines, printable

if TYPE_CHECKING:
    from plansmith.records.destination import Location
    from plansmith.stores.diff import Difference, Differences, Side


@click.command("diff", short_help="What two releases differ in.")
@click.argument("old", shell_complete=complete_version)
@click.argument("new", shell_complete=complete_version)
@store_options(otherwise=LOCAL)
@repository_option("Where MODEL[@VERSION] is looked up where no store is named.")
@click.option("--json", "as_json", is_flag=True, help="Print the same as one JSON document.")
def diff_command(old: str, new: str, *, store: Location | None, repository: Path, as_json: bool) -> None:
    """What the release NEW has otherwise than OLD: interface, accuracy, speed, size, parts, provenance, configuration.

    Each is MODEL[@VERSION], of a store also MODEL[@ALIAS], or the folder of a release. Only what differs is told; a
    speed was measured where its release was made, and the same machine is not taken for granted.

    \b
    plansmith diff minilm@3 minilm@4
    plansmith diff minilm@champion minilm@canary --store s3://models/prod
    plansmith diff minilm@champion artifacts/repository.plansmith/releases/minilm/7 --store s3://models/prod
    """
    from plansmith.stores.diff import differences

    found = differences(*(_side(text, store, repository) for text in (old, new)))
    if as_json:
        click.echo(json.dumps(found.model_dump(mode="json")))
        return
    echo_lines(_lines(found))


def _side(text: str, store: Location | None, repository: Path) -> Side:
    from plansmith.records.release import MANIFEST_FILE
    from plansmith.stores.diff import side_of_folder, side_of_stored
    from plansmith.triton.repository.repository import ModelRepository

    if (Path(text) / MANIFEST_FILE).is_file():
        return side_of_folder(Path(text), text)
    if store is not None:
        return side_of_stored(open_existing(store), text)
    opened = ModelRepository(repository)
    model, number = opened.find(text)
    return side_of_folder(opened.release(model, number), f"{model}@{number}")


def _lines(found: Differences) -> Iterator[str]:
    yield f"{found.old} -> {found.new}"
    if found.is_empty:
        yield "  nothing differs"
        return
    for title, lines in found.sections.items():
        if not lines:
            yield f"  {title}: the same"
            continue
        yield f"  {title}:"
        width = max(len(line.what) for line in lines)
        yield from (f"    {line.what.ljust(width)}  {_words(line)}{_beside(title, line)}" for line in lines)
    if found.config:
        yield "  config.pbtxt:"
        yield from (f"    {printable(line)}" for line in found.config)
    else:
        yield "  config.pbtxt: the same"


def _words(line: Difference) -> str:
    from plansmith.stores.difference_text import shorten_digests

    old, new = (printable(shorten_digests(text)) for text in (line.old, line.new))
    return f"{old} -> {new}"


def _beside(title: str, line: Difference) -> str:
    from plansmith.stores.difference_text import describe_change

    change = describe_change(title, line)
    return f" ({change})" if change else ""
