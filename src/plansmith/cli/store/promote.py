"""`plansmith promote`."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.store.completion import complete_alias, complete_version
from plansmith.cli.store.options import open_existing, renew_view, store_options
from plansmith.errors import RepositoryError, UsageError

if TYPE_CHECKING:
    from plansmith.records.destination import Location
    from plansmith.records.release import Manifest
    from plansmith.stores.records import Pointer
    from plansmith.stores.store import Store

_PERCENT = re.compile(r"(\d{1,3}(?:\.\d+)?)\s*%")


def _share(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """A part of the requests: 10% or 0.1."""
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
    """Have ALIAS stand for a version of MODEL: a number, or what another alias stands for.

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
        click.echo(json.dumps(document | _told(after)))
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
    """See that the clients of the version that an alias stands for can ask the other one.

    Raises:
        RepositoryError: they cannot, or the manifest of the other one is lost.
    """
    from plansmith.stores.reader import read_stored_manifest
    from plansmith.triton.repository.release import interface_differences

    def manifest_of(text: str) -> Manifest:
        catalogue, version = store.find(text)
        return read_stored_manifest(store.objects, store.release(catalogue.model, version))

    wanted = manifest_of(new)
    try:
        known = manifest_of(old)
    except RepositoryError:  # pruned or lost: there is nothing to compare with
        return
    differences = interface_differences(known.package.interface, wanted.package.interface)
    if differences:
        raise RepositoryError(
            f"the inputs or outputs of {new} differ from those of {old}: {'; '.join(differences)}",
            remedy="clients of the alias would break; pass --allow-interface-change if that is meant",
        )


def _told(pointer: Pointer | None) -> dict[str, Any]:
    if pointer is None:
        return {"version": None, "share": None}
    return {"version": pointer.version, "share": pointer.share, "moved": pointer.moved}
