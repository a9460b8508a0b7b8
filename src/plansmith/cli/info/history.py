"""`plansmith history`."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from plansmith.cli.options import artifacts_option, complete_model
from plansmith.cli.text import printable, table

if TYPE_CHECKING:
    from plansmith.steps.provenance.history import RunRecord

_HEAD = ("WHEN (UTC)", "MODEL", "OUTCOME", "GATE", "TOOK", "SOURCE")


@click.command("history")
@click.argument("model", required=False, shell_complete=complete_model)
@artifacts_option("Whose history is read.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, metavar="N", help="How many runs.")
@click.option("--failed", is_flag=True, help="Only those that failed or were interrupted.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole records as one JSON document.")
def history_command(model: str | None, artifacts: Path, limit: int, failed: bool, as_json: bool) -> None:
    """What was compiled here, of MODEL or of all, the last run first.

    OUTCOME ends with the precision where it is another than fp32; for auto, with the one that was chosen. GATE is the
    verdict and the largest error of any output, relative to the output's magnitude.

    \b
    plansmith history
    plansmith history minilm --failed --limit 5
    """
    from plansmith.steps.provenance.history import HISTORY, History

    history = History(artifacts / HISTORY)
    wanted = (
        run for run in history.newest_first() if model in {None, run.model} and not (failed and run.failure is None)
    )
    chosen = list(islice(wanted, limit))
    unreadable = history.unreadable()
    if as_json:
        click.echo(json.dumps({"runs": [run.model_dump(mode="json") for run in chosen], "unreadable": unreadable}))
        return
    if chosen:
        _print(chosen)
    else:
        click.echo(f"no such run is noted below {artifacts}")
    if unreadable:
        click.echo(f"{unreadable} {'record' if unreadable == 1 else 'records'} cannot be read")


def _print(runs: list[RunRecord]) -> None:
    head, *rows = table([_HEAD, *map(_cells, runs)])
    click.echo(head)
    for run, row in zip(runs, rows, strict=True):
        click.echo(row)
        if run.outcome == "failed" and run.failure is not None:
            first = next(iter(run.failure.message.splitlines()), "")
            click.echo(f"    {run.failure.error} (exit code {run.failure.exit_code}): {printable(first)}")


def _cells(run: RunRecord) -> tuple[str, ...]:
    from plansmith.formatting import format_seconds, minute

    took = format_seconds(run.seconds)
    return minute(run.started), run.model, run.outcome_text, run.gate_text, took, printable(run.source)
