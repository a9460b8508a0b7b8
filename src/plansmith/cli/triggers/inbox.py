"""`plansmith triggers inbox`."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.options import service_option
from plansmith.cli.text import echo_lines, require_text
from plansmith.cli.triggers.inbox_entries import opened, present, write_back_obstacle
from plansmith.cli.triggers.inbox_group import InboxGroup
from plansmith.cli.triggers.inbox_text import document_of, listed, write_back_counts
from plansmith.errors import UsageError

if TYPE_CHECKING:
    from plansmith.triggers.inbox.entry import State

_STATES = ("waiting", "in-work", "done", "set-aside")
_MANY = 1_000_000
_MOST = 2**63 - 1
"""What a database counts to."""

_WHERE = (
    service_option("The file of the service whose inbox it is."),
    click.option(
        "--database",
        metavar="URL",
        help="The inbox itself, in place of the service's: sqlite:///FILE or postgresql://USER@HOST/DATABASE.",
    ),
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def _on_inbox(command: Callable[..., Any]) -> Callable[..., Any]:
    return reduce(lambda made, option: option(made), reversed((*_WHERE, _JSON)), command)


@click.group("inbox", cls=InboxGroup, short_help="What registries told: list, retry and drop it.")
def inbox_group() -> None:
    """What registries told: what waits, is in work, became a run, or was set aside with a reason.

    What failed for a while is tried again by itself. What cannot succeed as it is is set aside: mend the cause and
    retry it, or drop it. What is done has its runs started, which tell at Prefect how they end, or is unwanted (no
    rule is about it) or outdated (the registry says otherwise by now). Without a command it is listed, with the
    options of `list`.

    \b
    plansmith triggers inbox
    plansmith triggers inbox --state set-aside
    plansmith triggers inbox retry 17
    plansmith triggers inbox write-back 17
    plansmith triggers inbox drop 18 19 --yes
    plansmith triggers inbox prune --dry-run
    """


@inbox_group.command("list", short_help="The newest entries, newest first.")
@click.option("--state", type=click.Choice(_STATES), help="Only those that wait, are in work, done or set aside.")
@click.option("--registry", metavar="NAME", help="Only those of this registry.")
@click.option("--not-written-back", is_flag=True, help="Only those whose registry could not be told what came of them.")
@click.option(
    "--limit", metavar="N", type=click.IntRange(1, _MOST), default=50, show_default=True, help="So many at most."
)
@_on_inbox
def list_command(
    *,
    state: State | None,
    registry: str | None,
    not_written_back: bool,
    limit: int,
    service: Path,
    database: str | None,
    as_json: bool,
) -> None:
    """The newest entries of the inbox, newest first, with what became of each.

    \b
    plansmith triggers inbox list
    plansmith triggers inbox list --state set-aside --registry mlflow --json
    plansmith triggers inbox list --not-written-back
    """
    require_text(registry or "")
    with opened(service, database) as inbox:
        counts, write_backs = inbox.counts(), inbox.write_backs.counts()
        found = inbox.entries(state=state, registry=registry, not_written=not_written_back, limit=limit)
        told = inbox.write_backs.of(*(entry.id for entry in found))
        place = inbox.place
    if as_json:
        entries = [document_of(entry, told.get(entry.id)) for entry in found]
        click.echo(json.dumps({"database": place, "counts": counts, "write_backs": write_backs, "entries": entries}))
        return
    numbers = ", ".join(f"{number} {state.replace('-', ' ')}" for state, number in counts.items())
    click.echo(f"{place}: {numbers}{write_back_counts(write_backs)}")
    echo_lines(listed(found, told))


@inbox_group.command("retry", short_help="Have entries tried again at once.")
@click.argument("ids", metavar="[ID]...", type=click.IntRange(1, _MOST), nargs=-1)
@click.option("--all-set-aside", is_flag=True, help="All that were set aside.")
@click.option("--dry-run", is_flag=True, help="Say which would be, and change nothing.")
@_on_inbox
def retry_command(
    ids: tuple[int, ...],
    *,
    all_set_aside: bool,
    dry_run: bool,
    service: Path,
    database: str | None,
    as_json: bool,
) -> None:
    """Have entries that were set aside or put off tried again at once, as if they had just come.

    Of one that is done, the runs that failed, crashed or were cancelled are started anew; those that go on or went well
    stay, and a rule that was not there when it came counts now.

    \b
    plansmith triggers inbox retry 17 18
    plansmith triggers inbox retry --all-set-aside --dry-run
    """
    if bool(ids) == all_set_aside:
        raise UsageError(
            "name entries, or all that were set aside", remedy="plansmith triggers inbox retry ID, or --all-set-aside"
        )
    with opened(service, database) as inbox:
        if all_set_aside:
            chosen = tuple(entry.id for entry in reversed(inbox.entries(state="set-aside", limit=_MANY)))
        else:
            chosen = present(inbox, ids, refused=("in-work",))
        changed = chosen if dry_run else inbox.retry(*chosen)
    _say("retried", changed, dry_run=dry_run, as_json=as_json)


@inbox_group.command("write-back", short_help="Have registries told once more what came of entries.")
@click.argument("ids", metavar="ID...", type=click.IntRange(1, _MOST), nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Say which would be, and change nothing.")
@_on_inbox
def write_back_command(
    ids: tuple[int, ...], *, dry_run: bool, service: Path, database: str | None, as_json: bool
) -> None:
    """Have registries told once more, or for the first time, what came of entries; their runs are not started again.

    For those with `write_back: true` in the file of the service, when `plansmith triggers serve` runs.

    \b
    plansmith triggers inbox write-back 17 18
    """
    with opened(service, database) as inbox:
        why_not = write_back_obstacle(inbox, service, database)
        chosen = present(inbox, ids, refused=("waiting", "in-work", "set-aside"), why_not=why_not)
        changed = chosen if dry_run else inbox.write_backs.again(*chosen)
    _say("queued for write-back", changed, dry_run=dry_run, as_json=as_json)


@inbox_group.command("drop", short_help="Forget entries: they become no run.")
@click.argument("ids", metavar="ID...", type=click.IntRange(1, _MOST), nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do it: what was dropped does not come back.")
@click.option("--dry-run", is_flag=True, help="Say which would be, and change nothing.")
@_on_inbox
def drop_command(
    ids: tuple[int, ...], *, yes: bool, dry_run: bool, service: Path, database: str | None, as_json: bool
) -> None:
    """Forget entries, whatever waits for them; a repetition of their deliveries does not bring them back.

    \b
    plansmith triggers inbox drop 18 19 --dry-run
    plansmith triggers inbox drop 18 19 --yes
    """
    with opened(service, database) as inbox:
        chosen = present(inbox, ids, refused=("in-work",))
        if not (yes or dry_run):
            raise UsageError(
                f"what is dropped does not come back: {_named(chosen)}", remedy="pass --yes to do it, or --dry-run"
            )
        changed = chosen if dry_run else inbox.drop(*chosen)
    _say("dropped", changed, dry_run=dry_run, as_json=as_json)


@inbox_group.command("prune", short_help="Forget entries that were done long ago.")
@click.option(
    "--days", type=click.IntRange(1, 36_500), default=90, show_default=True, help="How long ago an entry was done."
)
@click.option("--dry-run", is_flag=True, help="Say how many would be, and change nothing.")
@_on_inbox
def prune_command(*, days: int, dry_run: bool, service: Path, database: str | None, as_json: bool) -> None:
    """Forget entries that were done long ago and, where registries are told, told. Repetitions do not bring them back.

    \b
    plansmith triggers inbox prune --dry-run
    plansmith triggers inbox prune --days 30
    """
    before = datetime.now(UTC) - timedelta(days=days)
    with opened(service, database) as inbox:
        number = inbox.count_old(before) if dry_run else inbox.prune(before)
    if as_json:
        click.echo(json.dumps({"dry_run": dry_run, "pruned": number}))
    else:
        click.echo(f"{'would be ' if dry_run else ''}pruned: {number} {'entry' if number == 1 else 'entries'}")


def _say(done: str, ids: tuple[int, ...], *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"dry_run": dry_run, done.replace(" ", "_").replace("-", "_"): list(ids)}))
    elif ids:
        click.echo(f"{'would be ' if dry_run else ''}{done}: {_named(ids)}")
    else:
        click.echo(f"nothing {'would be' if dry_run else 'was'} {done}")


def _named(ids: tuple[int, ...]) -> str:
    return f"{'entry' if len(ids) == 1 else 'entries'} {', '.join(map(str, ids))}"
