"""`plansmith versions`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from plansmith.cli.options import repository_option
from plansmith.cli.store.completion import complete_model
from plansmith.cli.store.options import open_existing, store_options
from plansmith.cli.text import count, table, without_empty_columns

if TYPE_CHECKING:
    from plansmith.records.destination import Location
    from plansmith.stores.listing import ListedVersion, LiveAt
    from plansmith.stores.store import Store
    from plansmith.triton.repository.repository import ModelRepository
    from plansmith.triton.repository.versions import Version

LOCAL = "the repository on this machine"
"""What a command works on that is given no store."""


@click.command("versions", short_help="The versions of a model in a store or repository.")
@click.argument("model", required=False, shell_complete=complete_model)
@click.option("--all", "every", is_flag=True, help="List pruned versions, too.")
@store_options(otherwise=LOCAL)
@repository_option("Whose models are listed where no store is named.")
@click.option("--json", "as_json", is_flag=True, help="Print the same as one JSON document.")
def versions_command(
    model: str | None, *, every: bool, store: Location | None, repository: Path, as_json: bool
) -> None:
    """The versions of MODEL in a store: what stands for each, where it is live, what the gate said; or all models.

    A store is a folder or a prefix in S3, s3://bucket/prefix, that `plansmith publish` made. LIVE names the loaders
    (`plansmith sync`) that serve a version. Without a store, the versions in the repository on this machine.

    \b
    plansmith versions minilm --store s3://models/prod
    plansmith versions --store /srv/store --json
    plansmith versions minilm --repository artifacts/repository
    """
    if store is not None:
        opened = open_existing(store)
        if model is None:
            _stored_models(opened, as_json=as_json)
        else:
            _stored_versions(opened, model, every=every, as_json=as_json)
        return
    from plansmith.triton.repository.repository import ModelRepository

    local = ModelRepository(repository)
    if model is None:
        _local_models(local, as_json=as_json)
    else:
        _local_versions(local, local.find(model)[0], as_json=as_json)


def _stored_models(store: Store, *, as_json: bool) -> None:
    from plansmith.formatting import minute
    from plansmith.stores.reader import in_parallel

    catalogues = in_parallel(store.catalogue, store.models())
    if as_json:
        models = [catalogue.model_dump(mode="json", exclude={"schema_version", "token"}) for catalogue in catalogues]
        click.echo(json.dumps({"store": store.place, "models": models}))
        return
    rows = [("MODEL", "VERSIONS", "LAST PUBLISHED (UTC)", "ALIASES")]
    for catalogue in catalogues:
        standing = catalogue.standing()
        last = minute(standing[-1].published) if standing else "-"
        aliases = ", ".join(f"{name} {pointer.version}" for name, pointer in catalogue.aliases.items())
        rows.append((catalogue.model, str(len(standing)), last, aliases or "-"))
    click.echo(f"{store.place}: {count(len(catalogues), 'model')}")
    _echo(rows if catalogues else [])


def _stored_versions(store: Store, model: str, *, every: bool, as_json: bool) -> None:
    from plansmith.stores.listing import list_versions

    found = list_versions(store, model)
    listed = [version for version in found if every or version.pruned is None]
    if as_json:
        versions = [version.model_dump(mode="json") for version in listed]
        click.echo(json.dumps({"store": store.place, "model": model, "versions": versions}))
        return
    pruned = sum(version.pruned is not None for version in found)
    beside = f", {pruned} pruned" if pruned else ""
    click.echo(f"{model} in {store.place}: {count(len(found) - pruned, 'version')}{beside}")
    rows = [("VERSION", "PUBLISHED (UTC)", "GATE", "PRECISION", "ENGINE", "SIZE", "ALIASES", "LIVE", "PINNED")]
    _echo(without_empty_columns([*rows, *map(_cells, listed)]))
    for version in listed:
        if version.problem is not None:
            click.echo(f"  version {version.version}: {version.problem}", err=True)


def _cells(version: ListedVersion) -> tuple[str, ...]:
    from plansmith.formatting import format_bytes, minute

    shares = {name: f" {share:.0%}" for name, share in version.shares.items()}
    return (
        str(version.version),
        minute(version.published),
        version.verdict or (f"pruned {version.pruned[:10]}" if version.pruned else "unknown"),
        version.precision or "",
        version.engine or "",
        format_bytes(version.bytes) if version.bytes is not None else "",
        ", ".join(f"{name}{shares.get(name, '')}" for name in version.aliases),
        ", ".join(map(_loader, version.live)),
        version.pinned or "",
    )


def _loader(live: LiveAt) -> str:
    from plansmith.formatting import format_age

    return f"{live.loader} (silent for {format_age(live.seconds_ago)})" if live.is_quiet else live.loader


def _local_models(repository: ModelRepository, *, as_json: bool) -> None:
    models = {
        model: {"versions": repository.versions(model), "shown": repository.views(model).shown()}
        for model in repository.models()
    }
    if as_json:
        listed = [{"model": model, **numbers} for model, numbers in models.items()]
        click.echo(json.dumps({"repository": str(repository.root), "models": listed}))
        return
    click.echo(f"{repository.root}: {count(len(models), 'model')}")
    rows = [
        (model, ", ".join(map(str, numbers["versions"])), ", ".join(map(str, numbers["shown"])) or "none")
        for model, numbers in models.items()
    ]
    _echo([("MODEL", "VERSIONS", "SHOWN TO TRITON"), *rows] if rows else [])


def _local_versions(repository: ModelRepository, model: str, *, as_json: bool) -> None:
    from plansmith.triton.repository.versions import versions

    known = versions(repository, model)
    if as_json:
        listed = [version.as_json() for version in known]
        click.echo(json.dumps({"repository": str(repository.root), "model": model, "versions": listed}))
        return
    click.echo(f"{model} in {repository.root}: {count(len(known), 'version')}")
    head = ("VERSION", "MADE (UTC)", "GATE", "PRECISION", "ENGINE", "SIZE", "TRITON")
    _echo(without_empty_columns([head, *(_local_cells(repository, model, version) for version in known)]))


def _local_cells(repository: ModelRepository, model: str, version: Version) -> tuple[str, ...]:
    from plansmith.formatting import format_bytes, minute

    manifest = repository.readable(model, version.number)
    return (
        str(version.number),
        minute(version.made) if version.made else "unknown",
        version.verdict or "unknown",
        str(manifest.engine.precision) if manifest else "",
        str(manifest.engine.kind) if manifest else "",
        format_bytes(sum(file.bytes for file in manifest.files)) if manifest else "",
        "serves" if version.serves else "shown" if version.shown else f"not shown: {version.hidden}",
    )


def _echo(rows: Sequence[Sequence[str]]) -> None:
    for line in table(rows) if rows else ():
        click.echo(f"  {line}")
