"""The options of a compile that can stand in a spec too, whether it is done here or on a worker."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import click

from plansmith.cli.compile.specs import source_options
from plansmith.cli.options import complete_file, complete_folder

_NAME = click.option("--name", help="Name of the model in Triton; made from the source when left out.")
_OPTIONS = (
    click.option(
        "--repository",
        metavar="DIR",
        shell_complete=complete_folder,
        help="Triton model repository [<artifacts>/repository].",
    ),
    click.option(
        "--builder",
        type=click.Choice(["auto", "api", "trtexec"]),
        help="Who builds a TensorRT plan; auto: the Python API where it is there [auto].",
    ),
    click.option(
        "--pipeline/--no-pipeline",
        default=None,
        help="Serve raw inputs and outputs around the model, such as text in, embedding out [off].",
    ),
    click.option(
        "--check-served/--no-check-served", default=None, help="Have a running Triton load and answer it first [on]."
    ),
    click.option(
        "--allow-interface-change/--no-allow-interface-change",
        default=None,
        help="Publish even if inputs or outputs changed.",
    ),
    click.option(
        "--tritonserver",
        metavar="PATH",
        callback=lambda _ctx, _param, value: value and str(Path(value).absolute()),  # a release remembers it
        shell_complete=complete_file,
        help="The server for that check; found when left out.",
    ),
    click.option(
        "--load-into",
        metavar="URL",
        multiple=True,
        help="A running Triton that reads the repository and has to load the version, such as grpc://127.0.0.1:8001;"
        " repeatable.",
    ),
    click.option(
        "--load-seconds",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        help="How long each of those may take to load it [900].",
    ),
    click.option(
        "--publish",
        metavar="PLACE",
        multiple=True,
        shell_complete=complete_folder,
        help="Publish the release to a store besides: a folder or s3://bucket/prefix; repeatable.",
    ),
    click.option("--no-publish", is_flag=True, help="Publish it to none of the stores that the spec names."),
    click.option("--force/--no-force", default=None, help="Do every step again and publish a new version."),
)


def compile_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """All that can be said of one compile on the command line, for `specs_from_arguments`."""
    return _NAME(source_options(reduce(lambda decorated, option: option(decorated), reversed(_OPTIONS), command)))
