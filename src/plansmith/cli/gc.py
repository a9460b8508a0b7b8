"""`plansmith gc`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from plansmith.cli.options import artifacts_option, complete_folder
from plansmith.cli.text import short


@click.command("gc")
@artifacts_option("Whose cache, logs and history are tidied.")
@click.option(
    "--repository",
    metavar="DIR",
    type=click.Path(path_type=Path),
    shell_complete=complete_folder,
    help="Releases and views [<artifacts>/repository].",
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
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def gc_command(
    artifacts: Path, repository: Path | None, older_than: str, dry_run: bool, no_wait: bool, as_json: bool
) -> None:
    """Remove what nobody needs any more.

    Cache entries, timing caches, logs and views not used for AGE; releases of that age that Triton is not shown
    because they are damaged or have another interface, but never a model's newest; what killed runs left. Damaged
    cache entries go at once. The last 1000 runs of the history stay.

    \b
    plansmith gc --dry-run
    plansmith gc --older-than 7d
    """
    import time

    from plansmith.collection import Collector, Limits
    from plansmith.errors import RepositoryError
    from plansmith.triton.repository import ModelRepository
    from plansmith.units import bytes_in_words, seconds_from_age

    age = seconds_from_age(older_than)
    if not artifacts.is_dir():
        raise RepositoryError(f"{artifacts} is no folder", remedy="pass --artifacts, or compile a model first")
    if repository is not None and not ModelRepository(repository).is_there():
        raise RepositoryError(
            f"there is no repository {repository}",
            remedy=f"pass the --repository that models were compiled into, or leave it out for {artifacts}/repository",
        )

    def waiting(process: int | None) -> None:
        who = f" (process {process})" if process is not None else ""
        other = "another plansmith gc" if dry_run else "a compile"
        if no_wait:
            raise RepositoryError(
                f"{other} is using {artifacts}{who}", remedy="wait for its end, or leave --no-wait out"
            )
        click.echo(f"waiting for the end of {other} that uses {artifacts}{who}", err=True)

    limits = Limits(older_than=age, now=time.time())
    collector = Collector(artifacts, repository or artifacts / "repository", limits, dry=dry_run)
    found = collector.found(waiting) if dry_run else collector.collect(waiting)
    freed = sum(one.bytes for one in found)
    if as_json:
        rows = [{"kind": one.kind, "path": str(one.path), "why": one.why, "bytes": one.bytes} for one in found]
        click.echo(json.dumps({"dry_run": dry_run, "freed_bytes": freed, "garbage": rows}))
        return
    for one in found:
        size = bytes_in_words(one.bytes)
        click.echo(f"  {one.kind:<15}{size:>10}  {one.why}: {short(one.path.absolute())}")
    would = "would be " if dry_run else ""
    click.echo(f"{len(found)} {'thing' if len(found) == 1 else 'things'} {would}removed, {bytes_in_words(freed)} freed")
