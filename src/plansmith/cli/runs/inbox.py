"""`plansmith triggers inbox`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.options import complete_file
from plansmith.cli.text import count, echo_lines, printable, table
from plansmith.errors import UsageError

if TYPE_CHECKING:
    from plansmith.triggers.inbox.entry import Entry, State
    from plansmith.triggers.inbox.inbox import Inbox

_SERVICE = Path("configs") / "service.yaml"
_STATES = ("waiting", "in-work", "done", "set-aside")
_MANY = 1_000_000

_WHERE = (
    click.option(
        "--service",
        metavar="FILE",
        type=click.Path(path_type=Path),
        default=_SERVICE,
        show_default=True,
        shell_complete=complete_file,
        help="The file of the service whose inbox it is.",
    ),
    click.option(
        "--database",
        metavar="URL",
        help="The inbox itself, in place of the service's: sqlite:///FILE or postgresql://USER@HOST/DATABASE.",
    ),
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def _on_inbox(command: Callable[..., Any]) -> Callable[..., Any]:
    return reduce(lambda made, option: option(made), reversed((*_WHERE, _JSON)), command)


@click.group("inbox", short_help="What registries told: list, retry and drop it.", invoke_without_command=True)
@click.pass_context
def inbox_group(ctx: click.Context) -> None:
    """What registries told: what waits, is in work, became a run, or was set aside with a reason.

    What failed for a while is tried again by itself. What cannot succeed as it is is set aside: mend the cause and
    retry it, or drop it. Without a command, it is listed.

    \b
    plansmith triggers inbox
    plansmith triggers inbox list --state set-aside
    plansmith triggers inbox retry 17
    plansmith triggers inbox drop 18 19 --yes
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_command)


@inbox_group.command("list", short_help="The newest entries, newest first.")
@click.option("--state", type=click.Choice(_STATES), help="Only those that wait, are in work, done or set aside.")
@click.option("--registry", metavar="NAME", help="Only those of this registry.")
@click.option("--limit", metavar="N", type=click.IntRange(1), default=50, show_default=True, help="So many at most.")
@_on_inbox
def list_command(
    *, state: State | None, registry: str | None, limit: int, service: Path, database: str | None, as_json: bool
) -> None:
    """The newest entries of the inbox, newest first, with what became of each.

    \b
    plansmith triggers inbox list
    plansmith triggers inbox list --state set-aside --registry mlflow --json
    """
    with _opened(service, database) as inbox:
        counts, found = inbox.counts(), inbox.entries(state=state, registry=registry, limit=limit)
        place = inbox.place
    if as_json:
        entries = [entry.model_dump(mode="json", exclude={"lease"}) for entry in found]
        click.echo(json.dumps({"database": place, "counts": counts, "entries": entries}))
        return
    numbers = ", ".join(f"{number} {state.replace('-', ' ')}" for state, number in counts.items())
    click.echo(f"{place}: {numbers}")
    echo_lines(_listed(found))


@inbox_group.command("retry", short_help="Have entries tried again at once.")
@click.argument("ids", metavar="[ID]...", type=int, nargs=-1)
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

    \b
    plansmith triggers inbox retry 17 18
    plansmith triggers inbox retry --all-set-aside --dry-run
    """
    if bool(ids) == all_set_aside:
        raise UsageError(
            "name entries, or all that were set aside", remedy="plansmith triggers inbox retry ID, or --all-set-aside"
        )
    with _opened(service, database) as inbox:
        if all_set_aside:
            chosen = tuple(entry.id for entry in reversed(inbox.entries(state="set-aside", limit=_MANY)))
        else:
            chosen = _present(inbox, ids, refused=("in-work", "done"))
        changed = chosen if dry_run else inbox.retry(*chosen)
    _say("retried", changed, dry_run=dry_run, as_json=as_json)


@inbox_group.command("drop", short_help="Forget entries: they become no run.")
@click.argument("ids", metavar="ID...", type=int, nargs=-1, required=True)
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
    with _opened(service, database) as inbox:
        chosen = _present(inbox, ids, refused=("in-work",))
        if not (yes or dry_run):
            raise UsageError(
                f"what is dropped does not come back: {_named(chosen)}", remedy="pass --yes to do it, or --dry-run"
            )
        changed = chosen if dry_run else inbox.drop(*chosen)
    _say("dropped", changed, dry_run=dry_run, as_json=as_json)


@contextmanager
def _opened(service: Path, database: str | None) -> Iterator[Inbox]:
    """The inbox that is meant, for the length of a block; it is not made where there is none."""
    from plansmith.triggers.inbox.inbox import open_inbox
    from plansmith.triggers.inbox.location import database_of

    if database is None:
        from plansmith.config.service.service import read_service

        if not service.exists():
            raise UsageError(f"there is no file {service}", remedy="name it with --service, or pass --database URL")
        # Prefect, which knows schedules, takes seconds to import, and none is asked for here.
        database = database_of(read_service(service, cron=lambda _: None).config)
    inbox = open_inbox(database, make=False)
    try:
        yield inbox
    finally:
        inbox.close()


def _present(inbox: Inbox, ids: tuple[int, ...], *, refused: tuple[State, ...]) -> tuple[int, ...]:
    """These ids, each once, oldest first.

    Raises:
        UsageError: there is no such entry, or one is in a state in which that is not done to it; nothing was changed.
    """
    states = inbox.states(*ids)
    problems = [f"there is no entry {number}" for number in dict.fromkeys(ids) if number not in states]
    problems += [f"entry {number} is {state.replace('-', ' ')}" for number, state in states.items() if state in refused]
    if problems:
        raise UsageError("; ".join(problems), remedy="plansmith triggers inbox list shows what there is")
    return tuple(sorted(states))


def _say(done: str, ids: tuple[int, ...], *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"dry_run": dry_run, done: list(ids)}))
    elif ids:
        click.echo(f"{'would be ' if dry_run else ''}{done}: {_named(ids)}")
    else:
        click.echo(f"nothing {'would be' if dry_run else 'was'} {done}")


def _named(ids: tuple[int, ...]) -> str:
    return f"{'entry' if len(ids) == 1 else 'entries'} {', '.join(map(str, ids))}"


def _listed(entries: tuple[Entry, ...]) -> list[str]:
    """A line of the table for each entry, and below it why it stands where it does and what it became."""
    if not entries:
        return []
    head, *rows = table([("ID", "RECEIVED (UTC)", "REGISTRY", "STATE", "WHAT"), *map(_cells, entries)])
    lines = [head]
    for entry, row in zip(entries, rows, strict=True):
        lines.append(row)
        if entry.reason:
            lines.append(_why(entry))
        lines += [f"    run {run.id}  {printable(run.address)}".rstrip() for run in entry.runs]
    return lines


def _cells(entry: Entry) -> tuple[str, ...]:
    from plansmith.formatting import minute

    received, state = minute(entry.received_at.isoformat()), entry.state.replace("-", " ")
    return str(entry.id), received, entry.registry, state, printable(entry.event.words)


def _why(entry: Entry) -> str:
    from plansmith.formatting import minute

    next_try = f", again at {minute(entry.next_try_at.isoformat())}" if entry.state == "waiting" else ""
    return f"    {printable(entry.reason)} ({count(entry.attempts, 'attempt')}{next_try})"
