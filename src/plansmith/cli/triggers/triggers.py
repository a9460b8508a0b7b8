"""`plansmith triggers`: model registries that start builds."""

from __future__ import annotations

import click

from plansmith.cli.triggers.inbox import inbox_group
from plansmith.cli.triggers.serve import serve_command
from plansmith.cli.triggers.watch import watch_command


@click.group("triggers", short_help="Have model registries start builds; what they told and what came of it.")
def triggers_group() -> None:
    """Model registries start builds: what they tell is kept in an inbox until it has become a run.

    Which registries are heard, what their events build and where the inbox lies stands under `triggers` in the file of
    the service, configs/service.yaml.

    \b
    plansmith triggers serve
    plansmith triggers watch
    plansmith triggers inbox
    """


triggers_group.add_command(inbox_group)
triggers_group.add_command(serve_command)
triggers_group.add_command(watch_command)
