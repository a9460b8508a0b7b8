"""`plansmith gc`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from plansmith.cli.options import artifacts_option, complete_folder
from plansmith.cli.output import short
from plansmith.cli.store.options import Reach, reach_options

if TYPE_CHECKING:
    from plansmith.fleet.maintenance.garbage import Garbage
    from plansmith.records.destination import Location


@click.command("gc")
@artifacts_option("Whose cache, logs and history are tidied.")
@click.option(
    "--repository",
    metavar="DIR",
    type=click.Path(path_type=Path),
    shell_complete=complete_folder,
    help="Releases and views, of several targets those of all [<artifacts>/repository].",
)
@click.option(
    "--older-than",
    metavar="AGE",
    default="30d",
    show_default=True,
    help="What was not used for so long: 12h, 30d, 4w; 0 for all.",
)
@click.option("--dry-run", is_flag=True, help="Say what would go, and change nothing.")
@click.option("--no-wait", is_flag=True, help="Fail while a compile is running, instead of waiting for its end.")
@click.option(
    "--shared-cache",
    metavar="PLACE",
    shell_complete=complete_folder,
    help="Tidy what machines share there, a folder or s3://bucket/prefix, and nothing here.",
)
@reach_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def gc_command(
    *,
    artifacts: Path,
    repository: Path | None,
    older_than: str,
    dry_run: bool,
    no_wait: bool,
    shared_cache: str | None,
    reach: Reach,
    as_json: bool,
) -> None:
    """Delete artifacts and releases that nothing needs any more.

    Cache entries, timing caches, logs and views not used for AGE; releases of that age that Triton is not shown
    because they are damaged or have another interface, but never a model's newest; what killed runs left. Damaged
    cache entries go at once. The last 1000 runs of the history stay. Of a shared cache, what no machine used for AGE,
    and then the contents that no other entry and no release needs, and that are older than a day.

    \b
    plansmith gc --dry-run
    plansmith gc --older-than 7d
    plansmith gc --shared-cache s3://models/shared --dry-run
    """
    from plansmith.errors import UsageError
    from plansmith.formatting import seconds_from_age

    age = seconds_from_age(older_than)
    if shared_cache is None and reach.values:
        raise UsageError(f"{reach.options} is for --shared-cache", remedy="name the place with it, or leave it out")
    if shared_cache is not None and repository is not None:
        raise UsageError("--shared-cache and --repository are two places", remedy="tidy one after the other")
    if shared_cache is not None:
        rows = _collect_shared(reach.place(shared_cache, "--shared-cache"), age, dry_run=dry_run)
    else:
        rows = _collect(artifacts, repository, age, dry_run=dry_run, no_wait=no_wait)
    _print(rows, dry_run=dry_run, as_json=as_json)


@dataclass(frozen=True)
class _Row:
    """An artifact to be deleted: its path, and how that is printed."""

    kind: str
    path: str
    shown: str
    why: str
    bytes: int


def _collect(artifacts: Path, repository: Path | None, age: float, *, dry_run: bool, no_wait: bool) -> list[_Row]:
    import time

    from plansmith.errors import RepositoryError
    from plansmith.fleet.maintenance.garbage import Collector, Limits
    from plansmith.triton.repository.ensembles import repositories_in
    from plansmith.triton.repository.repository import ModelRepository

    if not artifacts.is_dir():
        raise RepositoryError(f"{artifacts} is no folder", remedy="pass --artifacts, or compile a model first")
    if repository is not None and not ModelRepository(repository).is_there():
        raise RepositoryError(
            f"there is no repository {repository}",
            remedy=f"pass the --repository that models were compiled into, or leave it out for {artifacts}/repository",
        )

    def waiting(process: int | None) -> None:
        owner = f" (process {process})" if process is not None else ""
        command = "another plansmith gc" if dry_run else "a compile"
        if no_wait:
            raise RepositoryError(
                f"{command} is using {artifacts}{owner}", remedy="wait for its end, or leave --no-wait out"
            )
        click.echo(f"waiting for the end of {command} that uses {artifacts}{owner}", err=True)

    limits, folder = Limits(older_than=age, now=time.time()), repository or artifacts / "repository"
    found: dict[Path, Garbage] = {}  # what lies below the artifacts is found with each of several repositories
    for root in repositories_in(folder) or [folder]:
        collector = Collector(artifacts, root, limits, dry=dry_run)
        for item in collector.find(waiting) if dry_run else collector.collect(waiting):
            found.setdefault(item.path, item)
    return [
        _Row(item.kind, str(item.path), short(item.path.absolute()), item.why, item.bytes) for item in found.values()
    ]


def _collect_shared(place: Location, age: float, *, dry_run: bool) -> list[_Row]:
    from plansmith.errors import RepositoryError
    from plansmith.steps.cache.shared import collect_shared
    from plansmith.stores.store import open_store

    store = open_store(place, Path.cwd())
    if store.marker() is None:
        raise RepositoryError(
            f"nothing is shared at {store.place}", remedy=f"compile something with --shared-cache {place.to}"
        )
    garbage = collect_shared(store, age, dry=dry_run)
    return [_Row(item.kind, f"{store.place}/{item.key}", item.key, item.why, item.bytes) for item in garbage]


def _print(garbage: list[_Row], *, dry_run: bool, as_json: bool) -> None:
    from plansmith.formatting import format_bytes

    freed = sum(row.bytes for row in garbage)
    if as_json:
        rows = [{"kind": row.kind, "path": row.path, "why": row.why, "bytes": row.bytes} for row in garbage]
        click.echo(json.dumps({"dry_run": dry_run, "freed_bytes": freed, "garbage": rows}))
        return
    for row in garbage:
        click.echo(f"  {row.kind:<15}{format_bytes(row.bytes):>10}  {row.why}: {row.shown}")
    would = "would be " if dry_run else ""
    click.echo(
        f"{len(garbage)} {'thing' if len(garbage) == 1 else 'things'} {would}removed, {format_bytes(freed)} freed"
    )
