"""`plansmith verify`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from plansmith.cli.options import repository_option
from plansmith.cli.output import echo_lines, table
from plansmith.cli.store.options import complete_stored_model, open_existing, store_options
from plansmith.cli.store.signing import signature_policy_option
from plansmith.cli.store.versions import LOCAL
from plansmith.errors import PlansmithError, RepositoryError, SignatureError
from plansmith.formatting import count

if TYPE_CHECKING:
    from plansmith.records.destination import Location
    from plansmith.signing.policy import SignaturePolicy
    from plansmith.stores.prune import Pruning
    from plansmith.stores.store import Store
    from plansmith.stores.verify import Verification

_NAMED = 4


@click.command("verify", short_help="Check that all that was published is there and unharmed.")
@click.argument("model", required=False, shell_complete=complete_stored_model)
@click.option("--quick", is_flag=True, help="Look at sizes and at kept digests, and read no contents.")
@signature_policy_option("Have each version signed by whom the policy names.")
@store_options(otherwise=LOCAL)
@repository_option("Whose releases are looked at where no store is named.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quiet", is_flag=True, help="Print no progress.")
def verify_command(
    model: str | None,
    *,
    quick: bool,
    require_signature: SignaturePolicy | None,
    store: Location | None,
    repository: Path,
    as_json: bool,
    quiet: bool,
) -> None:
    """Read every file of the releases of MODEL, or of all models, and compare it with its published SHA-256.

    What is damaged or missing is listed, and the exit code is 7 then. A content that several versions share is read
    once. With --quick a store of any size takes seconds: it finds what is missing or cut off. An endpoint has a command
    of its own, plansmith sagemaker verify.

    With a signature policy, its own or the store's, a version that is not signed by whom it names is listed, too; where
    nothing else is wrong the exit code is 10.

    \b
    plansmith verify --store s3://models/prod
    plansmith verify minilm --quick --store /srv/store
    plansmith verify --repository artifacts/repository --require-signature policy.yaml
    """
    opened = open_existing(store) if store is not None else None
    verification = _verified(opened, repository, model, require_signature, quick=quick, quiet=quiet)
    if as_json:
        click.echo(json.dumps(verification.model_dump(mode="json")))
    else:
        echo_lines(_lines(verification))
    if verification.damages:
        error = _failure(verification)
        click.echo(f"plansmith: {error}", err=True)  # the findings are the document already
        sys.exit(error.exit_code)


def _verified(
    store: Store | None,
    repository: Path,
    model: str | None,
    policy: SignaturePolicy | None,
    *,
    quick: bool,
    quiet: bool,
) -> Verification:
    from plansmith.cli.compile.progress import MovingLine
    from plansmith.formatting import format_bytes
    from plansmith.stores.verify import verify_repository, verify_store
    from plansmith.triton.repository.repository import ModelRepository

    with MovingLine(quiet=quiet or quick) as line:

        def checked(read: int, total: int) -> None:
            line.tell(f"{format_bytes(read)} of {format_bytes(total)} read")

        if store is not None:
            return verify_store(store, model, quick=quick, policy=policy, checked=checked)
        return verify_repository(ModelRepository(repository), model, quick=quick, policy=policy, checked=checked)


def _lines(verification: Verification) -> list[str]:
    from plansmith.formatting import format_bytes

    how = "looked at" if verification.quick else "read"
    things = (
        f"{count(verification.models, 'model')}, {count(verification.versions, 'version')},"
        f" {count(verification.files, 'file')}"
    )
    lines = [f"{verification.place}: {things} {how}, {format_bytes(verification.bytes)}"]
    for damage in verification.damages:
        version = f"@{damage.version}" if damage.version is not None else ""
        lines.append(f"  !! {damage.model}{version}{f' {damage.path}' if damage.path else ''}: {damage.problem}")
    if verification.others:
        others = f"{count(verification.others, 'content')} of no version, {format_bytes(verification.other_bytes)}"
        lines.append(f"  {others}: of shared caches, of publications under way, or for plansmith prune")
    if verification.damages:
        return lines
    return [*lines, "  all is there; contents were not read" if verification.quick else "  all as it was published"]


def _failure(verification: Verification) -> PlansmithError:
    broken = sorted(
        {
            f"{damage.model}@{damage.version}" if damage.version is not None else damage.model
            for damage in verification.damages
        }
    )
    names = ", ".join(broken)
    if all(damage.remedy for damage in verification.damages):
        return SignatureError(f"not signed by whom it must be: {names}", remedy=verification.remedy())
    return RepositoryError(f"not as it was published: {names}", remedy=verification.remedy())


@click.command("prune", short_help="Remove old versions from a store, and what none needs.")
@click.option("--keep", metavar="N", type=click.IntRange(1), default=5, show_default=True, help="So many stay of each.")
@click.option(
    "--older-than",
    metavar="AGE",
    default="30d",
    show_default=True,
    help="Younger versions stay: 12h, 30d, 4w; 0 for all.",
)
@click.option("--dry-run", is_flag=True, help="Say what would go, and change nothing.")
@store_options()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def prune_command(*, keep: int, older_than: str, dry_run: bool, store: Location, as_json: bool) -> None:
    """Remove old versions from a store, and contents that no version refers to.

    A version goes if it is none of the newest N of its model and was published more than AGE ago. What an alias stands
    for stays, what a rollback of it leads to, what is pinned, and what a loader said to be live in the last 7 days.
    Contents go when no version and no shared cache has them, and they are older than a day. Those of a version that was
    pruned stay for a day more, as somebody may still be reading it: the next prune after that frees the space.

    \b
    plansmith prune --dry-run --store s3://models/prod
    plansmith prune --keep 3 --older-than 2w --store /srv/store
    """
    from plansmith.formatting import seconds_from_age
    from plansmith.stores.prune import Pruner, Retention

    retention = Retention(keep=keep, seconds=seconds_from_age(older_than))
    pruning = Pruner(open_existing(store), retention, dry=dry_run).prune()
    if as_json:
        click.echo(json.dumps({"dry_run": dry_run, **pruning.model_dump(mode="json")}))
    else:
        _print(pruning, would="would be " if dry_run else "")


def _print(pruning: Pruning, would: str) -> None:
    from plansmith.formatting import format_bytes, minute

    for item in pruning.gone:
        if item.kind == "version":
            click.echo(f"  {item.name}  {item.why}")
    counts = Counter(item.kind for item in pruning.gone)
    things = f"{count(counts['version'], 'version')} and {count(counts['content'], 'content')}"
    click.echo(f"{things} {would}removed, {format_bytes(pruning.freed_bytes)} freed")
    if pruning.waiting_until is not None:
        more, until = format_bytes(pruning.waiting_bytes), minute(pruning.waiting_until)
        click.echo(f"{more} more can go after {until} UTC: until then, somebody may be reading what was pruned")
    click.echo(f"{count(len(pruning.staying), 'version')} {'stays' if len(pruning.staying) == 1 else 'stay'}")
    reasons: dict[str, list[str]] = {}
    for staying in pruning.staying:
        reasons.setdefault(staying.why, []).append(f"{staying.model}@{staying.version}")
    for line in table([(why, _names(names)) for why, names in reasons.items()]) if reasons else ():
        click.echo(f"  {line}")


def _names(names: list[str]) -> str:
    more = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
