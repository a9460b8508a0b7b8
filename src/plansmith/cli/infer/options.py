"""Options of the commands that ask a served model: what is sent, and where the answer goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import click

from plansmith.cli.options import complete_file
from plansmith.errors import UsageError

_INPUTS = (
    click.option("--text", "texts", metavar="[NAME=]TEXT", multiple=True, help="A text; each one is a row."),
    click.option(
        "--lines",
        metavar="[NAME=]FILE",
        multiple=True,
        shell_complete=complete_file,
        help="A file of texts, a row for each line; - for standard input.",
    ),
    click.option(
        "--file",
        "files",
        metavar="[NAME=]FILE",
        multiple=True,
        shell_complete=complete_file,
        help="A file as it is, such as an image or a sound; each one is a row.",
    ),
    click.option(
        "--input",
        "inputs",
        metavar="NAME=VALUE",
        multiple=True,
        shell_complete=complete_file,
        help="A file (.npy, .npz, .json), - for JSON on standard input, JSON, or numbers with commas between them.",
    ),
    click.option(
        "--input-json",
        metavar="FILE",
        shell_complete=complete_file,
        help="The values of several inputs by name, or a request of KServe's protocol; - for standard input.",
    ),
    click.option("--random", "draw", is_flag=True, help="Draw the inputs that are not given."),
    click.option("--shape", "shapes", metavar="NAME=SIZES", multiple=True, help="Of a drawn input, batch first: 4x64."),
    click.option(
        "--parameter",
        "parameters",
        metavar="NAME=VALUE",
        multiple=True,
        help="Beside the inputs: a number, true, false or text; what stands in double quotes is text.",
    ),
)

_ANSWER = (
    click.option(
        "--output",
        metavar="FILE",
        type=click.Path(path_type=Path),
        shell_complete=complete_file,
        help="Write the answer to FILE, .npz or .json.",
    ),
    click.option("--force", is_flag=True, help="Replace FILE if it is there."),
    click.option("--json", "as_json", is_flag=True, help="Print the whole answer as one JSON document."),
)


def input_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The inputs: texts, lines, files, inputs, input_json, draw, shapes and parameters."""
    return reduce(lambda decorated, option: option(decorated), reversed(_INPUTS), command)


def answer_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Where the answer goes: output, force and as_json."""
    return reduce(lambda decorated, option: option(decorated), reversed(_ANSWER), command)


def require_no_arguments(arguments: Sequence[str]) -> None:
    """Check that nothing follows the name that a command takes, as files do that a shell found for a pattern.

    Raises:
        UsageError: something does.
    """
    if arguments:
        raise UsageError(
            f"{arguments[0]!r} stands behind no option", remedy="pass --file, or --text, before each file or text"
        )
