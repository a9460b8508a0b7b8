"""`plansmith verify`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from plansmith.cli.options import repository_option
from plansmith.cli.store.completion import complete_model
from plansmith.cli.store.options import open_existing, store_options
from plansmith.cli.store.versions import LOCAL
from plansmith.cli.text import count, echo_lines
from plansmith.errors import RepositoryError

if TYPE_CHECKING:
    from plansmith.records.destination import Location
    from plansmith.stores.maintenance.damage import Verification
    from plansmith.stores.store import Store


@click.command("verify", short_help="Whether all that was published is there and unharmed.")
@click.argument("model", required=False, shell_complete=complete_model)
@click.option("--quick", is_flag=True, help="Look at sizes and at kept digests, and read no contents.")
@store_options(otherwise=LOCAL)
@repository_option("Whose releases are looked at where no store is named.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quiet", is_flag=True, help="Print no progress.")
def verify_command(
    model: str | None,
    *,
    quick: bool,
    store: Location | None,
    repository: Path,
    as_json: bool,
    quiet: bool,
) -> None:
    """Read every file of MODEL's releases, or of all, and compare it with the SHA-256 that it was published with.

    What is damaged or missing is listed, and the exit code is 7 then. A content that several versions share is read
    once. With --quick a store of any size takes seconds: it finds what is missing or cut off. An endpoint has a command
    of its own, plansmith sagemaker verify.

    \b
    plansmith verify --store s3://models/prod
    plansmith verify minilm --quick --store /srv/store
    plansmith verify --repository artifacts/repository
    """
    opened = open_existing(store) if store is not None else None
    found = _verified(opened, repository, model, quick=quick, quiet=quiet)
    if as_json:
        click.echo(json.dumps(found.model_dump(mode="json")))
    else:
        echo_lines(_lines(found))
    if found.damages:
        error = _failure(found)
        click.echo(f"plansmith: {error}", err=True)  # the findings are the document already
        sys.exit(error.exit_code)


def _verified(store: Store | None, repository: Path, model: str | None, *, quick: bool, quiet: bool) -> Verification:
    from plansmith.cli.compile.progress import MovingLine
    from plansmith.cli.streams import open_console
    from plansmith.formatting import format_bytes
    from plansmith.stores.maintenance.verify import verify_repository, verify_store
    from plansmith.triton.repository.repository import ModelRepository

    with MovingLine(open_console(stderr=True), quiet=quiet or quick) as line:

        def checked(read: int, total: int) -> None:
            line.tell(f"{format_bytes(read)} of {format_bytes(total)} read")

        if store is not None:
            return verify_store(store, model, quick=quick, checked=checked)
        return verify_repository(ModelRepository(repository), model, quick=quick, checked=checked)


def _lines(found: Verification) -> list[str]:
    from plansmith.formatting import format_bytes

    how = "looked at" if found.quick else "read"
    things = f"{count(found.models, 'model')}, {count(found.versions, 'version')}, {count(found.files, 'file')}"
    lines = [f"{found.place}: {things} {how}, {format_bytes(found.bytes)}"]
    for one in found.damages:
        version = f"@{one.version}" if one.version is not None else ""
        lines.append(f"  !! {one.model}{version}{f' {one.path}' if one.path else ''}: {one.problem}")
    if found.others:
        others = f"{count(found.others, 'content')} of no version, {format_bytes(found.other_bytes)}"
        lines.append(f"  {others}: of shared caches, of publications under way, or for plansmith prune")
    if found.damages:
        return lines
    return [*lines, "  all is there; contents were not read" if found.quick else "  all as it was published"]


def _failure(found: Verification) -> RepositoryError:
    broken = sorted({f"{one.model}@{one.version}" if one.version is not None else one.model for one in found.damages})
    return RepositoryError(f"not as it was published: {', '.join(broken)}", remedy=found.remedy())
