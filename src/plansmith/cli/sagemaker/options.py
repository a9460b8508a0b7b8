"""Arguments and options that the commands about an endpoint share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from plansmith.cli.options import complete_file, complete_folder

if TYPE_CHECKING:
    from plansmith.sagemaker.deployment.waiter import Polling, Progress

ARCHIVES = Path("artifacts") / "sagemaker"

spec_argument = click.argument(
    "spec", metavar="SPEC.yaml", type=click.Path(path_type=Path), shell_complete=complete_file
)
archives_option = click.option(
    "--output",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    default=ARCHIVES,
    show_default=True,
    shell_complete=complete_folder,
    help="The folder that takes the archives.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
quiet_option = click.option("--quiet", is_flag=True, help="Print no progress.")
wait_option = click.option(
    "--wait-minutes",
    metavar="N",
    type=click.IntRange(1),
    default=60,
    show_default=True,
    help="How long to wait for the endpoint; it goes on by itself after that.",
)


def polling_for(wait_minutes: int) -> Polling:
    """How an endpoint is waited for."""
    from plansmith.sagemaker.deployment.waiter import Polling

    return Polling(limit_seconds=wait_minutes * 60)


def progress_to_stderr(*, quiet: bool) -> Progress:
    """Prints each line of progress, unless the command is to be quiet."""

    def show(line: str) -> None:
        if not quiet:
            click.echo(line, err=True)

    return show
