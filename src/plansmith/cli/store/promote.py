"""Commands that change the served version: `promote`, `pin`, `rollback`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.options import repository_option
from plansmith.cli.store.options import (
    complete_alias,
    complete_stored_model,
    complete_version,
    open_existing,
    renew_view,
    store_options,
)
from plansmith.cli.store.versions import LOCAL
from plansmith.errors import RepositoryError, UsageError

if TYPE_CHECKING:
    from plansmith.records.destination import Location
    from plansmith.records.release import Manifest
    from plansmith.stores.records import Pointer
    from plansmith.stores.store import Store
    from plansmith.triton.repository.repository import ModelRepository


_PERCENT = re.compile(r"(\d{1,3}(?:\.\d+)?)\s*%")


def _share(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Parse a share of the requests: 10% or 0.1."""
    del context
    if value is None:
        return None
    percent = _PERCENT.fullmatch(value)
    try:
        share = float(percent[1]) / 100 if percent else float(value)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise click.BadParameter(f"{value!r} is no share: write 10%, or 0.1", param=parameter)
    return share


@click.command("promote", short_help="Have an alias stand for a version.")
@click.argument("release", metavar="MODEL@VERSION", shell_complete=complete_version)
@click.argument("alias", shell_complete=complete_alias)
@click.option(
    "--share", metavar="SHARE", callback=_share, help="What part of the requests it should get, as a hint: 10%."
)
@click.option("--allow-interface-change", is_flag=True, help="Promote it even if its inputs or outputs are others.")
@click.option("--off", is_flag=True, help="Take the alias away from MODEL instead; its versions stay.")
@store_options()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def promote_command(
    release: str,
    alias: str,
    *,
    share: float | None,
    allow_interface_change: bool,
    off: bool,
    store: Location,
    as_json: bool,
) -> None:
    """Point ALIAS at a version of MODEL: a number, or the target of another alias.

    Loaders that follow the alias (`plansmith sync --alias`) take the version up. It is one write: nobody sees half of
    it, and `plansmith rollback` takes it back. A version with other inputs or outputs than the one before is refused.
    The share is kept for whoever routes requests; plansmith routes none.

    \b
    plansmith promote minilm@4 champion --store s3://models/prod
    plansmith promote minilm@5 canary --share 10% --store s3://models/prod
    plansmith promote minilm@canary champion --store s3://models/prod
    plansmith promote minilm canary --off --store s3://models/prod
    """
    opened = open_existing(store)
    model, at, _ = release.partition("@")
    before = opened.catalogue(model).aliases.get(alias)
    after = None
    if off:
        opened.take_alias_away(model, alias)
    elif at:
        if before is not None and not allow_interface_change:
            _require_same_interface(opened, f"{model}@{before.version}", release)
        after = _promoted(opened, release, alias, share)
    else:
        raise UsageError(f"{release} names no version", remedy=f"plansmith promote {model}@VERSION {alias}")
    if as_json:
        document = {"store": opened.place, "model": model, "alias": alias, "was": before and before.version}
        click.echo(json.dumps(document | _pointer_values(after)))
        return
    was = before.version if before is not None else None
    if after is None:
        click.echo(f"{model} has no alias {alias} any more" + (f"; it stood for version {was}" if was else ""))
        return
    hint = f", for {after.share:.0%} of the requests" if after.share is not None else ""
    beside = "" if was is None else ", as before" if was == after.version else f", no longer {was}"
    click.echo(f"{alias} of {model} is version {after.version}{beside}{hint}")


def _promoted(store: Store, release: str, alias: str, share: float | None) -> Pointer:
    from plansmith.records.destination import wrong_alias

    wrong = wrong_alias(alias)
    if wrong is not None:
        raise UsageError(wrong, remedy="choose another name, such as champion")
    catalogue, version = store.find(release)
    pointer = store.promote(catalogue.model, version.version, alias, share).aliases[alias]
    renew_view(store, catalogue.model, alias, pointer)
    return pointer


def _require_same_interface(store: Store, old: str, new: str) -> None:
    """Check that clients of the version behind an alias can also call the new version.

    Raises:
        RepositoryError: they cannot, or the manifest of the other one is lost.
    """
    from plansmith.stores.reader import read_stored_manifest
    from plansmith.triton.repository.release import interface_differences

    def manifest_of(text: str) -> Manifest:
        catalogue, version = store.find(text)
        return read_stored_manifest(store.objects, store.release(catalogue.model, version))

    candidate = manifest_of(new)
    try:
        current = manifest_of(old)
    except RepositoryError:  # pruned or lost: there is nothing to compare with
        return
    differences = interface_differences(current.package.interface, candidate.package.interface)
    if differences:
        raise RepositoryError(
            f"the inputs or outputs of {new} differ from those of {old}: {'; '.join(differences)}",
            remedy="clients of the alias would break; pass --allow-interface-change if that is meant",
        )


def _pointer_values(pointer: Pointer | None) -> dict[str, Any]:
    if pointer is None:
        return {"version": None, "share": None}
    return {"version": pointer.version, "share": pointer.share, "moved": pointer.moved}


@click.command("pin", short_help="Keep a version from being pruned.")
@click.argument("release", metavar="MODEL@VERSION", shell_complete=complete_version)
@click.option("--reason", metavar="TEXT", help="Why, for whoever wonders later.")
@click.option("--off", is_flag=True, help="Let it be pruned again.")
@store_options()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def pin_command(release: str, *, reason: str | None, off: bool, store: Location, as_json: bool) -> None:
    """Protect a version of MODEL from pruning, or remove the protection with --off.

    \b
    plansmith pin minilm@3 --reason "audit of March" --store s3://models/prod
    plansmith pin minilm@3 --off --store s3://models/prod
    """
    model, at, _ = release.partition("@")
    if not at:
        raise UsageError(f"{release} names no version", remedy=f"plansmith pin {model}@VERSION --reason TEXT")
    if off == bool(reason):
        raise UsageError("a pin has a reason, or is taken off", remedy="give one of --reason TEXT and --off")
    opened = open_existing(store)
    number = opened.find(release)[1].version
    catalogue = opened.unpin(model, number) if off else opened.pin(model, number, reason or "")
    if as_json:
        pins = [pin.model_dump(mode="json") for pin in catalogue.pins]
        click.echo(json.dumps({"store": opened.place, "model": model, "version": number, "pins": pins}))
        return
    click.echo(f"version {number} of {model} {'may be pruned again' if off else f'is pinned: {reason}'}")


@click.command("rollback", short_help="Go back to the version before.")
@click.argument("model", shell_complete=complete_stored_model)
@click.option("--alias", metavar="ALIAS", shell_complete=complete_alias, help="Which alias goes back [current].")
@store_options(otherwise=LOCAL)
@repository_option("Whose newest version is withdrawn where no store is named.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def rollback_command(model: str, *, alias: str | None, store: Location | None, repository: Path, as_json: bool) -> None:
    """Roll back to the previous version of MODEL.

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
        document, message = _in_store(open_existing(store), model, alias)
    elif alias is not None:
        raise UsageError("a repository has no aliases", remedy="leave --alias out, or name a --store")
    else:
        from plansmith.triton.repository.repository import ModelRepository

        document, message = _on_this_machine(ModelRepository(repository), model)
    click.echo(json.dumps(document) if as_json else message)


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
    told = f"version {standing[-1]} of {model} is withdrawn, and Triton is shown version {shown[-1]} again"
    return document, f"{told}\nNext: to have it back, compile it again with --force, as a new version"


def _say_waiting(process: int | None) -> None:
    owner = f" (process {process})" if process is not None else ""
    click.echo(f"waiting for another publication of this model{owner}", err=True)
