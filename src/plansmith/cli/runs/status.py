"""`plansmith status`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.runs.fleet_options import exit_with_first, fleet_options, planned_models, say_refusals
from plansmith.cli.text import count, echo_lines, printable, short, table, without_empty_columns
from plansmith.errors import UsageError

if TYPE_CHECKING:
    from plansmith.fleet.status import ModelStatus

_HEAD = ("MODEL", "TARGET", "VERSION", "MADE (UTC)", "PRECISION", "ENGINE", "STATE", "LAST RUN (UTC)", "WHY")
_MOST_NAMED = 12
_STATES = ("stale", "fresh", "refused")

_EPILOG = """\
\b
Examples:
  plansmith status
  plansmith status configs/models
  plansmith status configs/models --resolve --json

Exit codes: 0 whatever is stale; where specs are refused, that of the first of them.
"""


@click.command("status", epilog=_EPILOG, short_help="How the models stand: versions, what is stale and why, last runs.")
@fleet_options(required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def status_command(
    places: tuple[Path, ...], *, models: tuple[str, ...], resolve: bool, as_json: bool, **options: Any
) -> None:
    """The newest version of every model and target, whether it is stale and why, and what came of the last compile.

    PLACE is a spec, or a folder that holds some: what is stale is known of the models of specs alone. Without one, all
    models of the repository are listed.
    """
    from plansmith.cli.compile.specs import values_of_options
    from plansmith.config.multi_target import repository_of
    from plansmith.fleet.status import model_statuses

    values = values_of_options(options)
    planned = planned_models(places, values, models=models, resolve=resolve) if places else []
    artifacts, repository = Path(values.get("artifacts", "artifacts")), repository_of(values)
    found = model_statuses(planned, [repository], artifacts, models=models)
    if not places and (unknown := [name for name in models if name not in {one.model for one in found}]):
        raise _unknown(unknown, repository, model_statuses([], [repository], artifacts))
    say_refusals(planned)
    if as_json:
        click.echo(json.dumps({"models": [one.model_dump(mode="json") for one in found]}))
    else:
        _print(found, with_specs=bool(places))
    if not found:
        way = "plansmith compile SOURCE, or name specs (plansmith status PLACE...) or another --repository"
        click.echo(f"plansmith: there is no model in {short(repository)}; next: {way}", err=True)
    exit_with_first([one.failure.exit_code for one in planned if one.failure is not None])


def _unknown(models: Sequence[str], repository: Path, there: Sequence[ModelStatus]) -> UsageError:
    known = sorted({one.model for one in there if one.model})
    more = f" and {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else ""
    damaged = "".join(f"; {one.why}" for one in there if not one.model)
    return UsageError(
        f"there is no model {', '.join(map(repr, models))} in {short(repository)}",
        remedy=(f"there are {', '.join(known[:_MOST_NAMED])}{more}" if known else "there is none")
        + f"{damaged}; plansmith status PLACE... looks at specs, --repository at another folder",
    )


def _print(found: Sequence[ModelStatus], *, with_specs: bool) -> None:
    from plansmith.fleet.text import names

    counts: Counter[str] = Counter(one.state for one in found)
    states = ", ".join(f"{counts[state]} {state}" for state in _STATES if counts[state])
    click.echo(f"{count(len(found), 'model')}{f': {states}' if states else ''}")
    cells = [_cells(one, name, with_specs=with_specs) for one, name in zip(found, names(found), strict=True)]
    for words in dict.fromkeys(one.runs_unknown for one in found if one.runs_unknown):
        click.echo(f"plansmith: last runs are unknown: {printable(words)}", err=True)
    rows = without_empty_columns([_HEAD, *cells]) if found else []
    lines = table(rows) if rows else []
    echo_lines(f"  {line}" for line in lines[:1])
    for one, line in zip(found, lines[1:], strict=True):
        echo_lines([f"  {line}"])
        run = one.last_run
        if run is not None and run.message:
            first = next(iter(run.message.splitlines()), "")
            echo_lines([f"      {run.error} (exit code {run.exit_code}): {printable(first)}"])
    if found and not with_specs:
        click.echo("what is stale is known of specs: plansmith status PLACE...")


def _cells(one: ModelStatus, name: str, *, with_specs: bool) -> tuple[str, ...]:
    from plansmith.fleet.text import in_table
    from plansmith.formatting import minute

    newest = one.newest
    has_state = with_specs or one.state == "refused"
    hidden = "" if newest is None or newest.is_shown else ", not shown"
    cells = (
        name,
        one.target,
        f"{newest.version}{hidden}" if newest else "none",
        minute(newest.made) if newest and newest.made else "",
        (newest.precision or "unknown") if newest else "",
        (newest.engine or "unknown") if newest else "",
        one.state if has_state else "",
        _last_run(one),
        in_table(one.why) if has_state else "",
    )
    return tuple(map(printable, cells))


def _last_run(one: ModelStatus) -> str:
    from plansmith.formatting import minute

    run = one.last_run
    if run is None:
        return "unknown" if one.runs_unknown else "none noted"
    where = f" in {run.step}" if run.step else ""
    return f"{run.outcome}{where} {minute(run.started)}"
