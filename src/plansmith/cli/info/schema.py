"""`plansmith schema`."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command("schema", short_help="Print the JSON Schema of specs, for editors.")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write it to FILE, which is replaced.")
def schema_command(output: Path | None) -> None:
    """Print the JSON Schema of spec files, with which editors complete and check them.

    \b
    plansmith schema
    plansmith schema --output plansmith.schema.json

    Then make this the first line of a spec, with the path from the spec to the schema:

    \b
    # yaml-language-server: $schema=plansmith.schema.json
    """
    from plansmith.cli.text import write_output
    from plansmith.config.schema import spec_schema

    text = json.dumps(spec_schema(), indent=2) + "\n"
    if output is None:
        click.echo(text, nl=False)
    else:
        write_output(output, text, replace=True)
