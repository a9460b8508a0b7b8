"""`plansmith publish`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.compile.outcomes import describe_publication
from plansmith.cli.options import complete_folder, complete_model, repository_option
from plansmith.cli.store.options import Reach, reach_options
from plansmith.errors import RepositoryError, UsageError

if TYPE_CHECKING:
    from plansmith.records.destination import Destination, Publication
    from plansmith.stores.transfer.delivery import Outgoing
    from plansmith.triton.repository.repository import ModelRepository


@click.command("publish", short_help="Bring a release into a store: a folder or a prefix in S3.")
@click.argument("release", metavar="MODEL[@VERSION]", shell_complete=complete_model)
@click.argument("destination", shell_complete=complete_folder)
@repository_option("Where the release is.")
@click.option("--alias", "aliases", metavar="NAME", multiple=True, help="Have it stand for the version; repeatable.")
@click.option("--no-alias", is_flag=True, help="Publish it, and leave all aliases where they are.")
@click.option("--view", is_flag=True, help="Keep a model repository in it, for a Triton that reads it there.")
@click.option("--allow-interface-change", is_flag=True, help="Move an alias even if inputs or outputs changed.")
@click.option("--resend", is_flag=True, help="Send what is there, too: mends what plansmith verify found.")
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
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    **wishes: Any,
) -> None:
    """Bring a release of a repository into a store: VERSION, or the newest that was not withdrawn.

    DESTINATION is a folder or s3://bucket/prefix. What is there already is not sent, and what an interrupted call sent
    is not sent again. Nobody sees any of it before all of it is there; then one write gives it a number, its own where
    that is free and the highest, and moves the alias `current`, or those that are named, onto it.

    A release that the store has already gets no second number there. An alias that stands for another version is moved
    onto it where the alias or VERSION is typed, and is left alone otherwise: a rollback is not undone by the way.

    \b
    plansmith publish minilm /srv/store
    plansmith publish minilm@3 s3://models/prod --alias champion
    plansmith publish minilm s3://models/prod --endpoint-url https://minio.lan:9000 --ca-bundle lan.pem
    plansmith publish minilm s3://models/prod --no-alias --dry-run
    """
    where = _destination(reach, destination, wishes)
    made = _publish(release, repository, where, wishes, quiet=quiet, dry=dry_run)
    if as_json:
        click.echo(json.dumps(made.model_dump() | {"dry_run": dry_run}))
        return
    would = "would be " if dry_run else ""
    click.echo(f"{release.partition('@')[0]} {would}{describe_publication(made)}")
    if made.caution:
        click.echo(f"  {made.caution}")
    store = where.model_copy(update={"to": made.place}).typed
    for alias, number in made.elsewhere.items():
        command = f"plansmith promote {made.model}@{made.version} {alias} --store {store}"
        click.echo(f"  {alias} stands for version {number}, and is left so; to move it: {command}")


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
    from plansmith.cli.streams import open_console
    from plansmith.stores.transfer.delivery import Delivery
    from plansmith.stores.transfer.publication import Terms
    from plansmith.triton.repository.repository import ModelRepository

    repository = ModelRepository(root)
    delivery = Delivery(destination, relative_to=Path.cwd(), apart=(repository.root, repository.store))
    leaving = _outgoing(repository, release)
    terms = Terms(
        move_anyway=bool(wishes["aliases"]) or "@" in release,
        allow_interface_change=wishes["allow_interface_change"],
        resend=wishes["resend"],
    )
    if dry:
        return delivery.plan(leaving, terms)
    with MovingLine(open_console(stderr=True), quiet=quiet) as line:
        return delivery.publish(leaving, terms, line.tell)


def _outgoing(repository: ModelRepository, release: str) -> Outgoing:
    """A release that may leave its repository.

    Raises:
        RepositoryError: there is none of that name, or it was withdrawn.
    """
    from plansmith.stores.transfer.delivery import Outgoing
    from plansmith.system.digest import Digester

    model, number = repository.find(release)
    reason = repository.withdrawals(model).reason(number)
    if reason is not None:
        raise RepositoryError(
            f"version {number} of {model} was withdrawn: {reason}",
            remedy=f"name another: plansmith show {model} --repository {repository.root}",
        )
    digester = Digester(repository.store / "no-memo", read_only=True)
    return Outgoing(repository.release(model, number), repository.manifest(model, number), digester)
