"""Arguments and options that the commands about an endpoint share."""

from __future__ import annotations

from pathlib import Path

import click

from plansmith.cli.options import complete_file

ARCHIVES = Path("artifacts") / "sagemaker"

spec_argument = click.argument(
    "spec", metavar="SPEC.yaml", type=click.Path(path_type=Path), shell_complete=complete_file
)
