"""`plansmith triggers inbox`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.options import service_option
from plansmith.cli.output import echo_lines, printable, require_text, table
from plansmith.errors import UsageError
from plansmith.formatting import count, short_path

if TYPE_CHECKING:
    from plansmith.triggers.inbox.entry import InboxEntry, StartedRun, State, WriteBack, WriteBackState
    from plansmith.triggers.inbox.inbox import Inbox

_LIST = "list"
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


@contextmanager
def opened(service: Path, database: str | None) -> Iterator[Inbox]:
    """Open the selected inbox for a block; does not create a missing one."""
    from plansmith.triggers.inbox.inbox import open_inbox
    from plansmith.triggers.inbox.location import database_of

    if database is None:
        from plansmith.triggers.configuration import read_triggered

        instead = "pass --database with the URL of an inbox"
        database = database_of(read_triggered(service, instead=instead), instead=instead)
    inbox = open_inbox(database, make=False)
    try:
        yield inbox
    finally:
        inbox.close()


def write_back_obstacle(inbox: Inbox, service: Path, database: str | None) -> Callable[[int], str]:
    """Return why an entry cannot be reported; an inbox alone does not record which registries get reports."""
    from plansmith.triggers.configuration import read_triggered

    triggers = None if database else read_triggered(service).triggers

    def why(number: int) -> str:
        entry = inbox.entry(number)
        if entry is not None and not entry.runs:
            return "became no run"
        if entry is None or triggers is None:
            return ""
        if entry.registry not in triggers.registries:
            return f"is of the registry {entry.registry}, which {service} lacks"
        is_told = getattr(triggers.registries[entry.registry], "write_back", False)
        return "" if is_told else f"is of the registry {entry.registry}, which is not told (no write_back: true)"

    return why


def present(
    inbox: Inbox, ids: tuple[int, ...], *, refused: tuple[State, ...], why_not: Callable[[int], str] = lambda _: ""
) -> tuple[int, ...]:
    """Return the ids that exist, without duplicates, oldest first.

    Raises:
        UsageError: there is no such entry, or one is in a state in which that is not done to it, or there is another
            reason why not; nothing was changed.
    """
    states = inbox.states(*ids)
    problems = [f"there is no entry {number}" for number in dict.fromkeys(ids) if number not in states]
    problems += [f"entry {number} is {state.replace('-', ' ')}" for number, state in states.items() if state in refused]
    others = [number for number, state in states.items() if state not in refused]
    problems += [f"entry {number} {reason}" for number in others if (reason := why_not(number))]
    if problems:
        raise UsageError("; ".join(problems), remedy="plansmith triggers inbox list shows what there is")
    return tuple(sorted(states))


class InboxGroup(click.Group):
    """Command group that runs `list` if no command is given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert `list` before its options; during shell completion a command may still follow.

        Raises:
            UsageError: options come before a command.
        """
        has_options = bool(args) and args[0].startswith("-") and args[0] not in ctx.help_option_names
        if has_options and not ctx.resilient_parsing:
            self._require_order(ctx, args)
        is_bare = not args and not ctx.resilient_parsing
        if is_bare or has_options:
            args = [_LIST, *args]
        return super().parse_args(ctx, args)

    def _require_order(self, ctx: click.Context, args: list[str]) -> None:
        at = 0
        while at < len(args) and args[at].startswith("-"):
            at += 2 if args[at] in self._with_value() else 1
        if at < len(args) and args[at] in self.commands:
            raise UsageError(
                f"options come after their command: {args[at]}, then {shlex.join(args[:at])}",
                remedy=f"{ctx.command_path} {shlex.join([*args[at:], *args[:at]])}",
            )

    def _with_value(self) -> set[str]:
        """Return the command options that take the next argument as their value."""
        options = (
            parameter
            for command in self.commands.values()
            for parameter in command.params
            if isinstance(parameter, click.Option)
        )
        return {name for parameter in options if not parameter.is_flag for name in parameter.opts}


def document_of(entry: InboxEntry, write_back: WriteBack | None) -> dict[str, Any]:
    """Return an entry as JSON-ready fields.

    `write_back`: state of the report on its runs, null where the registry gets none.
    """
    report = None if write_back is None else write_back.model_dump(mode="json", exclude={"entry", "lease"})
    return {**entry.model_dump(mode="json", exclude={"lease"}), "write_back": report}


def write_back_counts(counts: Mapping[WriteBackState, int]) -> str:
    """Count pending and failed reports to registries; empty if all were delivered."""
    parts = {"to be told": counts["waiting"] + counts["in-work"], "could not be told": counts["set-aside"]}
    summary = ", ".join(f"{number} {label}" for label, number in parts.items() if number)
    return f"; registries: {summary}" if summary else ""


def listed(entries: tuple[InboxEntry, ...], write_backs: Mapping[int, WriteBack]) -> list[str]:
    """Return a table line per entry, and below it the reason of its state and its runs."""
    from plansmith.triggers.inbox.entry import describe_write_back, shown_state

    if not entries:
        return []
    head, *rows = table([("ID", "RECEIVED (UTC)", "REGISTRY", "STATE", "WHAT"), *map(_cells, entries)])
    lines = [head]
    for entry, row in zip(entries, rows, strict=True):
        lines.append(row)
        if entry.reason:
            lines.append(_why(entry))
        if shown_state(entry) == "unwanted":
            lines.append("    no rule wants it")
        lines += [f"    {_format_run(run)}".rstrip() for run in entry.known_runs]
        if entry.id in write_backs:
            lines.append(f"    {printable(describe_write_back(write_backs[entry.id]))}")
    return lines


def _format_run(run: StartedRun) -> str:
    if run.published_in:
        return f"published in {printable(short_path(run.published_in))}"
    return f"run {run.id}  {printable(run.address)}"


def _cells(entry: InboxEntry) -> tuple[str, ...]:
    from plansmith.formatting import minute
    from plansmith.triggers.inbox.entry import shown_state

    received, state = minute(entry.received_at.isoformat()), shown_state(entry).replace("-", " ")
    return str(entry.id), received, entry.registry, state, printable(entry.event.label)


def _why(entry: InboxEntry) -> str:
    from plansmith.formatting import minute

    if entry.state == "done":
        return f"    {printable(entry.reason)}"
    next_try = f", again at {minute(entry.next_try_at.isoformat())}" if entry.state == "waiting" else ""
    return f"    {printable(entry.reason)} ({count(entry.attempts, 'attempt')}{next_try})"


def _on_inbox(command: Callable[..., Any]) -> Callable[..., Any]:
    return reduce(lambda decorated, option: option(decorated), reversed((*_WHERE, _JSON)), command)


@click.group("inbox", cls=InboxGroup, short_help="What registries told: list, retry and drop it.")
def inbox_group() -> None:
    """Manage events of registries: waiting, in progress, turned into a run, or set aside with a reason.

    What failed for a while is tried again by itself. What cannot succeed as it is is set aside: mend the cause and
    retry it, or drop it. What is done was published by the service itself, has its runs started, which tell at Prefect
    how they end, or is unwanted (no rule is about it) or outdated (the registry says otherwise by now). Without a
    command it is listed, with the options of `list`.

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
    """List the newest entries of the inbox, newest first, with the outcome of each.

    \b
    plansmith triggers inbox list
    plansmith triggers inbox list --state set-aside --registry mlflow --json
    plansmith triggers inbox list --not-written-back
    """
    require_text(registry or "")
    with opened(service, database) as inbox:
        counts, write_backs = inbox.counts(), inbox.write_backs.counts()
        entries_found = inbox.entries(state=state, registry=registry, not_written=not_written_back, limit=limit)
        reports = inbox.write_backs.of(*(entry.id for entry in entries_found))
        place = inbox.place
    if as_json:
        entries = [document_of(entry, reports.get(entry.id)) for entry in entries_found]
        click.echo(json.dumps({"database": place, "counts": counts, "write_backs": write_backs, "entries": entries}))
        return
    numbers = ", ".join(f"{number} {state.replace('-', ' ')}" for state, number in counts.items())
    click.echo(f"{place}: {numbers}{write_back_counts(write_backs)}")
    echo_lines(listed(entries_found, reports))


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
    """Retry entries that were set aside or postponed at once, as if they had just arrived.

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
    """Report the outcome of entries to registries again, or for the first time; does not restart their runs.

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
    """Delete entries in any state; repeated deliveries do not bring them back.

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
    """Delete entries completed long ago and, if due, reported to registries.

    Repeated deliveries do not bring them back.

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
