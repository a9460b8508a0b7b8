"""Commands that read a store or repository: `versions`, `diff`, `store`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from plansmith.cli.options import repository_option
from plansmith.cli.output import echo_lines, printable, table, without_empty_columns
from plansmith.cli.store.options import complete_stored_model, complete_version, open_existing, store_options
from plansmith.cli.store.signing import signature_policy_option
from plansmith.errors import UsageError
from plansmith.formatting import count

if TYPE_CHECKING:
    from plansmith.records.destination import Location
    from plansmith.signing.policy import SignaturePolicy
    from plansmith.stores.backend.object_store import Abilities
    from plansmith.stores.diff import Difference, Differences, Side
    from plansmith.stores.reader import ListedVersion, LiveAt, Overview
    from plansmith.stores.store import Store
    from plansmith.triton.repository.repository import ModelRepository, Version


LOCAL = "the repository on this machine"
"""What a command works on that is given no store."""

_CONTENTS = "objects"
_DOCUMENTS = {"leases", "live", "models", "probe", "releases", "turns"}
"""What the models and versions are told of by already, or concerns plansmith alone."""


@click.command("versions", short_help="The versions of a model in a store or repository.")
@click.argument("model", required=False, shell_complete=complete_stored_model)
@click.option("--all", "every", is_flag=True, help="List pruned versions, too.")
@store_options(otherwise=LOCAL)
@repository_option("Whose models are listed where no store is named.")
@click.option("--json", "as_json", is_flag=True, help="Print the same as one JSON document.")
def versions_command(
    model: str | None, *, every: bool, store: Location | None, repository: Path, as_json: bool
) -> None:
    """Show the versions of MODEL in a store: aliases, where each is live, the gate's result; or all models.

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
    from plansmith.stores.reader import list_versions

    stored = list_versions(store, model)
    listed = [version for version in stored if every or version.pruned is None]
    if as_json:
        versions = [version.model_dump(mode="json") for version in listed]
        click.echo(json.dumps({"store": store.place, "model": model, "versions": versions}))
        return
    pruned = sum(version.pruned is not None for version in stored)
    beside = f", {pruned} pruned" if pruned else ""
    click.echo(f"{model} in {store.place}: {count(len(stored) - pruned, 'version')}{beside}")
    fields = ("GATE", "PRECISION", "ENGINE", "SIZE", "SIGNED BY", "ALIASES", "LIVE", "PINNED")
    _echo(without_empty_columns([("VERSION", "PUBLISHED (UTC)", *fields), *map(_cells, listed)]))
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
        version.signer,
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
    from plansmith.triton.repository.repository import versions

    local = versions(repository, model)
    if as_json:
        listed = [version.as_json() for version in local]
        click.echo(json.dumps({"repository": str(repository.root), "model": model, "versions": listed}))
        return
    click.echo(f"{model} in {repository.root}: {count(len(local), 'version')}")
    head = ("VERSION", "COMPILED (UTC)", "GATE", "PRECISION", "ENGINE", "SIZE", "SIGNED BY", "TRITON")
    _echo(without_empty_columns([head, *(_local_cells(repository, model, version) for version in local)]))


def _local_cells(repository: ModelRepository, model: str, version: Version) -> tuple[str, ...]:
    from plansmith.formatting import format_bytes, minute
    from plansmith.triton.repository.signature import local_signer

    manifest, release = repository.readable(model, version.number), repository.release(model, version.number)
    return (
        str(version.number),
        minute(version.made) if version.made else "unknown",
        version.verdict or "unknown",
        str(manifest.engine.precision) if manifest else "",
        str(manifest.engine.kind) if manifest else "",
        format_bytes(sum(file.stat().st_size for file in release.rglob("*") if file.is_file())),
        local_signer(release),
        "serves" if version.serves else "shown" if version.shown else f"not shown: {version.hidden}",
    )


def _echo(rows: Sequence[Sequence[str]]) -> None:
    for line in table(rows) if rows else ():
        click.echo(f"  {line}")


@click.command("diff", short_help="What two releases differ in.")
@click.argument("old", shell_complete=complete_version)
@click.argument("new", shell_complete=complete_version)
@store_options(otherwise=LOCAL)
@repository_option("Where MODEL[@VERSION] is looked up where no store is named.")
@click.option("--json", "as_json", is_flag=True, help="Print the same as one JSON document.")
def diff_command(old: str, new: str, *, store: Location | None, repository: Path, as_json: bool) -> None:
    """Show the changes of release NEW against OLD: interface, accuracy, speed, size, parts, provenance, configuration.

    Each is MODEL[@VERSION], of a store also MODEL[@ALIAS], or the folder of a release. Only what differs is told; a
    speed was measured where its release was made, and the same machine is not taken for granted.

    \b
    plansmith diff minilm@3 minilm@4
    plansmith diff minilm@champion minilm@canary --store s3://models/prod
    plansmith diff minilm@champion artifacts/repository.plansmith/releases/minilm/7 --store s3://models/prod
    """
    from plansmith.stores.diff import differences

    comparison = differences(*(_side(text, store, repository) for text in (old, new)))
    if as_json:
        click.echo(json.dumps(comparison.model_dump(mode="json")))
        return
    echo_lines(_difference_lines(comparison))


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


def _difference_lines(comparison: Differences) -> Iterator[str]:
    yield f"{comparison.old} -> {comparison.new}"
    if comparison.is_empty:
        yield "  nothing differs"
        return
    for title, lines in comparison.sections.items():
        if not lines:
            yield f"  {title}: the same"
            continue
        yield f"  {title}:"
        width = max(len(line.what) for line in lines)
        yield from (f"    {line.what.ljust(width)}  {_transition(line)}{_change_note(title, line)}" for line in lines)
    if comparison.config:
        yield "  config.pbtxt:"
        yield from (f"    {printable(line)}" for line in comparison.config)
    else:
        yield "  config.pbtxt: the same"


def _transition(line: Difference) -> str:
    from plansmith.stores.diff import shorten_digests

    old, new = (printable(shorten_digests(text)) for text in (line.old, line.new))
    return f"{old} -> {new}"


def _change_note(title: str, line: Difference) -> str:
    from plansmith.stores.diff import describe_change

    change = describe_change(title, line)
    return f" ({change})" if change else ""


@click.command("store", short_help="Describe a store: its target, models, size and server.")
@click.option("--probe", is_flag=True, help="Ask the server anew what it does, and keep that.")
@signature_policy_option("Have it take and give only what is signed by whom the policy names.", envvar=None)
@click.option("--accept-unsigned", is_flag=True, help="Take the requirement of signatures away.")
@store_options()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def store_command(
    *, probe: bool, require_signature: SignaturePolicy | None, accept_unsigned: bool, store: Location, as_json: bool
) -> None:
    """Show a store: its target, its models and bytes, and its guarantees.

    A server is asked once, when the store is made, whether it keeps publishers apart (conditional writes, also when
    several come at once) and checks what it is sent. Where it does not, plansmith does both by itself. Ask again after
    an update of the server, while nobody publishes.

    A signature policy that is kept in the store binds every publisher and every machine that pulls. Whoever may write
    to the store may change it: a machine that must not be deceived has its own, PLANSMITH_SIGNATURE_POLICY.

    \b
    plansmith store --store /srv/store
    plansmith store --store s3://models/prod --endpoint-url https://minio.lan:9000
    plansmith store --store s3://models/prod --probe
    plansmith store --store s3://models/prod --require-signature policy.yaml
    """
    from plansmith.stores.initialize import probe_again, set_signature_policy
    from plansmith.stores.reader import look_over

    opened = open_existing(store)
    if require_signature is not None and accept_unsigned:
        raise UsageError("--require-signature and --accept-unsigned are opposites", remedy="give one of the two")
    if probe:
        probe_again(opened)
    if require_signature is not None or accept_unsigned:
        set_signature_policy(opened, require_signature)
    found = look_over(opened)
    if as_json:
        click.echo(json.dumps(found.model_dump(mode="json")))
    else:
        echo_lines(_overview_lines(found))


def _overview_lines(overview: Overview) -> list[str]:
    from plansmith.formatting import format_bytes, minute

    able = overview.abilities
    fields = [
        ("target", overview.target or "that of its first release"),
        ("created", f"{minute(overview.created)} UTC"),
        ("writes", able.shortcoming or "conditional, so that publishers need not wait for each other"),
        *_server(able),
        ("signatures", _describe_policy(overview.signatures)),
        ("models", f"{count(overview.models, 'model')}, {count(overview.versions, 'version')}"),
    ]
    for kind, contents in overview.held.items():
        if kind not in _DOCUMENTS:
            name = "contents" if kind == _CONTENTS else kind
            fields.append((name, f"{count(contents.objects, 'object')}, {format_bytes(contents.bytes)}"))
    return [overview.place, *(f"  {name:<12}{value}" for name, value in fields)]


def _describe_policy(policy: SignaturePolicy | None) -> str:
    if policy is None:
        return "not required"
    trusted = [
        count(len(entries), name)
        for name, entries in (
            ("key", policy.keys),
            ("authority", policy.certificates),
            ("Sigstore identity", policy.sigstore),
        )
        if entries
    ]
    return f"required, of {', '.join(trusted)}; {len(policy.revoked)} revoked"


def _server(able: Abilities) -> list[tuple[str, str]]:
    """Describe the store's server: name, if requested, and whether it verifies uploads; empty for a folder."""
    from plansmith.formatting import minute

    if not able.probed:
        return [] if able.is_known else [("server", "was never asked what it does: pass --probe")]
    checks = "by the server, too" if able.checksums else "by plansmith alone: what is sent is read back"
    return [
        ("server", f"{able.server or 'does not say what it is'}, asked {minute(able.probed)} UTC"),
        ("checksums", checks),
    ]
