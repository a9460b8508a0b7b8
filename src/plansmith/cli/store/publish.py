"""Commands that transfer releases: `publish`, `pull`, `sync`."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.compile.outcomes import describe_publication
from plansmith.cli.options import complete_folder, complete_model, repository_option
from plansmith.cli.store.options import (
    Reach,
    complete_stored_model,
    complete_version,
    open_existing,
    reach_options,
    store_options,
)
from plansmith.cli.store.signing import signature_policy_option, signer_from, signing_options
from plansmith.errors import UsageError

if TYPE_CHECKING:
    from plansmith.records.destination import Destination, Location, Publication
    from plansmith.signing.policy import SignaturePolicy
    from plansmith.signing.signer import Signer
    from plansmith.stores.records import LiveReport
    from plansmith.stores.sync.mirror import Pulled
    from plansmith.stores.sync.sync import Sync

INTO = Path("artifacts") / "mirror"
_EPILOG = """\
\b
Examples:
  plansmith sync --store s3://models/prod --into /srv/models --once       # before Triton starts
  plansmith sync --store s3://models/prod --into /srv/models --url grpc://127.0.0.1:8001
  plansmith sync minilm --alias canary --store /mnt/store --into /srv/canary --url grpc://canary:8001
"""


@click.command("publish", short_help="Bring a release into a store: a folder or a prefix in S3.")
@click.argument("release", metavar="MODEL[@VERSION]", shell_complete=complete_model)
@click.argument("destination", shell_complete=complete_folder)
@repository_option("Where the release is.")
@click.option("--alias", "aliases", metavar="NAME", multiple=True, help="Have it stand for the version; repeatable.")
@click.option("--no-alias", is_flag=True, help="Publish it, and leave all aliases where they are.")
@click.option("--view", is_flag=True, help="Keep a model repository in it, for a Triton that reads it there.")
@click.option("--allow-interface-change", is_flag=True, help="Move an alias even if inputs or outputs changed.")
@click.option("--resend", is_flag=True, help="Send what is there, too: mends what plansmith verify found.")
@click.option("--sign", is_flag=True, help="Sign it first, with --key or another option of plansmith sign.")
@signing_options
@reach_options
@click.option("--dry-run", is_flag=True, help="Say what would be sent, and send nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quiet", is_flag=True, help="Print no progress.")
def publish_command(
    release: str,
    destination: str,
    *,
    repository: Path,
    reach: Reach,
    sign: bool,
    signing: dict[str, Any],
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    **wishes: Any,
) -> None:
    """Publish a release of a repository to a store: VERSION, or the newest that was not withdrawn.

    DESTINATION is a folder or s3://bucket/prefix. What is there already is not sent, and what an interrupted call sent
    is not sent again. Nobody sees any of it before all of it is there; then one write gives it a number, its own where
    that is free and the highest, and moves the alias `current`, or those that are named, onto it.

    A release that the store has already gets no second number there. An alias that stands for another version is moved
    onto it where the alias or VERSION is typed, and is left alone otherwise: a rollback is not undone by the way. One
    that was signed since then gets its signature.

    \b
    plansmith publish minilm /srv/store
    plansmith publish minilm@3 s3://models/prod --alias champion
    plansmith publish minilm s3://models/prod --endpoint-url https://minio.lan:9000 --ca-bundle lan.pem
    plansmith publish minilm s3://models/prod --no-alias --dry-run
    plansmith publish minilm s3://models/prod --sign --key release.pem
    """
    signer = _signer(sign, signing, dry=dry_run)
    where = _destination(reach, destination, wishes)
    publication = _publish(release, repository, where, wishes | {"signer": signer}, quiet=quiet, dry=dry_run)
    if as_json:
        click.echo(json.dumps(publication.model_dump() | {"dry_run": dry_run}))
        return
    would = "would be " if dry_run else ""
    click.echo(f"{release.partition('@')[0]} {would}{describe_publication(publication)}")
    if publication.caution:
        click.echo(f"  {publication.caution}")
    store = where.model_copy(update={"to": publication.place}).typed
    for alias, number in publication.elsewhere.items():
        command = f"plansmith promote {publication.model}@{publication.version} {alias} --store {store}"
        click.echo(f"  {alias} stands for version {number}, and is left so; to move it: {command}")


def _signer(sign: bool, signing: dict[str, Any], *, dry: bool) -> Signer | None:
    if not sign:
        if any(value for name, value in signing.items() if name != "identity_token"):
            raise UsageError("with what to sign is said, and not that it is to be signed", remedy="pass --sign, too")
        return None
    if dry:
        raise UsageError(
            "--dry-run signs nothing, and what --sign would send is not known without a signature",
            remedy="plansmith sign MODEL --dry-run; or leave --sign out of the dry run",
        )
    return signer_from(signing)


def _destination(reach: Reach, text: str, wishes: dict[str, Any]) -> Destination:
    from plansmith.records.destination import CURRENT, Destination, wrong_alias

    aliases = wishes["aliases"]
    if aliases and wishes["no_alias"]:
        raise UsageError("--alias and --no-alias are opposites", remedy="give one of the two")
    if wishes["view"] and wishes["no_alias"]:
        raise UsageError("--view shows what an alias stands for", remedy="leave --no-alias out, or name one")
    wrong = next(filter(None, map(wrong_alias, aliases)), None)
    if wrong is not None:
        raise UsageError(wrong, remedy="choose another name, such as champion")
    stand = () if wishes["no_alias"] else tuple(dict.fromkeys(aliases)) or (CURRENT,)
    place = reach.place(text, "DESTINATION")
    return Destination(**place.model_dump(), aliases=stand, view=wishes["view"])


def _publish(
    release: str, root: Path, destination: Destination, wishes: dict[str, Any], *, quiet: bool, dry: bool
) -> Publication:
    from plansmith.cli.compile.progress import MovingLine
    from plansmith.stores.publication import Delivery, Terms, outgoing_release
    from plansmith.triton.repository.repository import ModelRepository
    from plansmith.triton.repository.signature import sign_release

    repository = ModelRepository(root)
    delivery = Delivery(destination, relative_to=Path.cwd(), apart=(repository.root, repository.store))
    leaving = outgoing_release(repository, release)
    if wishes["signer"] is not None:
        delivery.require_ours(leaving.manifest.target)
        sign_release(repository, leaving.manifest.name, leaving.manifest.version, wishes["signer"])
    terms = Terms(
        move_anyway=bool(wishes["aliases"]) or "@" in release,
        allow_interface_change=wishes["allow_interface_change"],
        resend=wishes["resend"],
    )
    if dry:
        return delivery.plan(leaving, terms)
    with MovingLine(quiet=quiet) as line:
        return delivery.publish(leaving, terms, line.tell)


@click.command("pull", short_help="Bring a version of a store to this machine.")
@click.argument("release", metavar="MODEL[@VERSION|@ALIAS]", shell_complete=complete_version)
@click.option(
    "--into",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default=INTO,
    show_default=True,
    shell_complete=complete_folder,
    help="The folder that Triton reads; everything else lies beside it.",
)
@signature_policy_option("Take nothing that is not signed by whom the policy names.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@store_options()
def pull_command(
    release: str, into: Path, *, require_signature: SignaturePolicy | None, as_json: bool, store: Location
) -> None:
    """Download a version from a store, verify every byte, and make it visible to Triton atomically.

    The version is that of the alias `current` where none is named. What is here already is not fetched, and a pull that
    was killed goes on from there. The folder is a repository like that of a compile: serve, show, check, validate and
    report work on it.

    \b
    plansmith pull minilm --store s3://models/prod --into /srv/models
    plansmith pull minilm@champion --store /mnt/store
    plansmith serve --repository artifacts/mirror
    """
    from plansmith.cli.output import require_text
    from plansmith.cli.store.transfers import transfer_line
    from plansmith.records.destination import CURRENT
    from plansmith.stores.sync.mirror import Mirror, pull

    require_text(release)
    opened = open_existing(store)
    catalogue, version = opened.find(release)
    pointer = catalogue.aliases.get(release.partition("@")[2] or CURRENT)
    line, mirror = pointer.line if pointer is not None else (), Mirror(into, require_signature)
    with mirror.lock(opened, alone=False), transfer_line(f"of {release} fetched", quiet=as_json) as moved:
        pulled = pull(opened, mirror, catalogue, version, line=line, moved=moved)
    if as_json:
        click.echo(pulled.model_dump_json())
    else:
        _print(pulled)


def _print(pulled: Pulled) -> None:
    from plansmith.cli.output import short
    from plansmith.formatting import format_bytes

    fetched = f"{format_bytes(pulled.fetched_bytes)} of {format_bytes(pulled.total_bytes)} fetched"
    click.echo(f"{pulled.model} version {pulled.version}: {'was here already' if pulled.unchanged else fetched}")
    click.echo(f"  release  {short(Path(pulled.release))}")
    click.echo(f"  shown    version {', '.join(map(str, pulled.shown))} in {short(Path(pulled.repository))}")


@click.command("sync", short_help="Keep a Triton on what a store's aliases stand for.", epilog=_EPILOG)
@click.argument("models", nargs=-1, metavar="[MODEL]...", shell_complete=complete_stored_model)
@click.option(
    "--into",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default=INTO,
    show_default=True,
    shell_complete=complete_folder,
    help="The folder that Triton reads; everything else lies beside it.",
)
@click.option(
    "--url",
    "urls",
    metavar="URL",
    multiple=True,
    help="A Triton that reads the folder and is told to load, such as grpc://127.0.0.1:8001; repeatable.",
)
@click.option("--alias", default="current", show_default=True, help="Show what it stands for.")
@click.option(
    "--interval",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    default=10,
    show_default=True,
    help="Between two looks.",
)
@click.option(
    "--load-seconds",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    default=900,
    show_default=True,
    help="How long a Triton may take to load a version.",
)
@click.option("--name", help="What the store's reports call this loader [host and folder].")
@click.option("--once", is_flag=True, help="Look once, and end: with an error where a model is not as the store says.")
@click.option("--accept-older", is_flag=True, help="With --once: no error where a whole version is shown all the same.")
@click.option("--retry", is_flag=True, help="Try again what a Triton refused.")
@signature_policy_option("Take nothing that is not signed by whom the policy names.")
@click.option("--json", "as_json", is_flag=True, help="Print what is live, at each change, as a line of JSON.")
@store_options()
def sync_command(  # noqa: PLR0913 - whoever keeps it running wants all of it in one place
    models: tuple[str, ...],
    *,
    into: Path,
    urls: tuple[str, ...],
    alias: str,
    interval: float,
    load_seconds: float,
    name: str | None,
    once: bool,
    accept_older: bool,
    retry: bool,
    require_signature: SignaturePolicy | None,
    as_json: bool,
    store: Location,
) -> None:
    """Follow a store: download what its aliases point at, make it visible to Triton, and have Triton load it.

    All models that have the alias unless some are named. A version that a Triton refuses is said, with its reason, and
    taken back; the one before serves on until the alias is moved. So it is while the store cannot be reached. A Triton
    that was started again is loaded again. What is live is reported to the store (plansmith versions). Ctrl-C or
    SIGTERM ends it.
    """
    import socket

    from plansmith.stores.store import open_store
    from plansmith.stores.sync.mirror import Mirror
    from plansmith.stores.sync.servers import MirrorServers
    from plansmith.stores.sync.sync import Sync, SyncContext

    if accept_older and not once:
        raise click.UsageError("--accept-older goes with --once")
    mirror, opened = Mirror(into, require_signature), open_store(store, Path.cwd())
    with mirror.lock(opened, alone=True):
        around = SyncContext(
            store=opened,
            mirror=mirror,
            loaders=MirrorServers(urls, load_seconds=load_seconds),
            name=_name(name or f"{socket.gethostname()}-{mirror.repository.root.name}"),
            alias=_alias(alias),
            pause_seconds=interval,
            say=lambda line: click.echo(line, err=as_json),
            report=_print_report if as_json else lambda _: None,
        )
        sync = Sync(around, models)
        if retry:
            sync.forget_refusals()
        if once:
            faults = sync.look()
            if accept_older and sync.shows_older(faults):
                faults = []
            for fault in (*faults, *around.loaders.away()):
                raise fault
            return
        click.echo(f"{mirror.repository.root} follows {opened.place}; Ctrl-C ends it", err=True)
        _follow(sync, interval)


def _follow(sync: Sync, interval: float) -> None:
    """Poll for new releases until interrupted."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while True:
            sync.look()
            time.sleep(interval)
    except KeyboardInterrupt:
        click.echo("stopped", err=True)


def _print_report(report: LiveReport) -> None:
    click.echo(report.model_dump_json())


def _alias(text: str) -> str:
    from plansmith.records.destination import wrong_alias

    wrong = wrong_alias(text)
    if wrong is not None:
        raise click.BadParameter(wrong, param_hint="--alias")
    return text


def _name(text: str) -> str:
    """Validate a name that is one segment of a key."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).lstrip(".") or "loader"
