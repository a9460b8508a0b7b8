"""`plansmith inspect`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from plansmith.cli.text import echo_lines, nested_lines


@click.command("inspect")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the same as JSON.")
def inspect_command(path: Path, as_json: bool) -> None:
    """Explain a release, a repository, a graph, a plan or a record.

    \b
    plansmith inspect artifacts/repository
    plansmith inspect artifacts/repository.plansmith/releases/minilm/1
    plansmith inspect minilm-int8
    plansmith inspect model.onnx --json
    plansmith inspect model.plan
    """
    from plansmith.cli.inspection import explain

    found = explain(path)
    if as_json:
        click.echo(json.dumps(found))
    else:
        echo_lines(nested_lines(found))
