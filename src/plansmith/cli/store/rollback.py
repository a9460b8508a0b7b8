"""`plansmith rollback`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.options import repository_option
from plansmith.cli.store.completion import complete_alias, complete_model
from plansmith.cli.store.options import open_existing, renew_view, store_options
from plansmith.cli.store.versions import LOCAL
from plansmith.errors import RepositoryError, UsageError

if TYPE_CHECKING:
    from plansmith.records.destination import Location
    from plansmith.stores.store import Store
    from plansmith.triton.repository.repository import ModelRepository


@click.command("rollback", short_help="Go back to the version before.")
@click.argument("model", shell_complete=complete_model)
@click.option("--alias", metavar="ALIAS", shell_complete=complete_alias, help="Which alias goes back [current].")
@store_options(otherwise=LOCAL)
@repository_option("Whose newest version is withdrawn where no store is named.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def rollback_command(model: str, *, alias: str | None, store: Location | None, repository: Path, as_json: bool) -> None:
    """Go back to the version of MODEL before this one.

    In a store, an alias stands again for what it stood for before: one write, which loaders that follow it take up; a
    second rollback goes one further back, and `plansmith promote` forward again.

    Without a store, the newest version in the repository on this machine is withdrawn: never shown to Triton again, as
    it lies there for `plansmith show` and `plansmith diff`. A running `plansmith serve --follow` loads the one before.

    \b
    plansmith rollback minilm --store s3://models/prod
    plansmith rollback minilm --alias champion --store s3://models/prod
    plansmith rollback minilm --repository artifacts/repository
    """
    if store is not None:
        document, words = _in_store(open_existing(store), model, alias)
    elif alias is not None:
        raise UsageError("a repository has no aliases", remedy="leave --alias out, or name a --store")
    else:
        from plansmith.triton.repository.repository import ModelRepository

        document, words = _on_this_machine(ModelRepository(repository), model)
    click.echo(json.dumps(document) if as_json else words)


def _in_store(store: Store, model: str, alias: str | None) -> tuple[dict[str, Any], str]:
    from plansmith.records.destination import CURRENT

    name = alias or CURRENT
    before = store.catalogue(model).aliases.get(name)
    after = store.roll_back(model, name).aliases[name]
    renew_view(store, model, name, after)
    was = before.version if before is not None else None
    document = {"store": store.place, "model": model, "alias": name, "version": after.version, "was": was}
    return document, f"{name} of {model} is version {after.version} again, no longer {was}"


def _on_this_machine(repository: ModelRepository, model: str) -> tuple[dict[str, Any], str]:
    model, _ = repository.find(model)
    repository.require_own(model)
    standing = repository.standing(model)
    if len(standing) < 2:
        raise RepositoryError(
            f"{model} in {repository.root} has no version to go back to",
            remedy=f"see what there is: plansmith versions {model} --repository {repository.root}",
        )
    repository.withdraw(model, standing[-1], "rolled back", _say_waiting)
    shown = repository.views(model).shown()
    document = {"repository": str(repository.root), "model": model, "withdrawn": standing[-1], "shown": shown}
    return document, f"version {standing[-1]} of {model} is withdrawn, and Triton is shown version {shown[-1]} again"


def _say_waiting(process: int | None) -> None:
    who = f" (process {process})" if process is not None else ""
    click.echo(f"waiting for another publication of this model{who}", err=True)
