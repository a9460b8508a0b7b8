"""`plansmith infer`."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.options import DEFAULT_REPOSITORY, complete_file, complete_folder
from plansmith.cli.store.options import complete_served
from plansmith.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plansmith.triton.client import Client, Parameter


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
    """Add the input options: texts, lines, files, inputs, input_json, draw, shapes and parameters."""
    return reduce(lambda decorated, option: option(decorated), reversed(_INPUTS), command)


def answer_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the output options: output, force and as_json."""
    return reduce(lambda decorated, option: option(decorated), reversed(_ANSWER), command)


def require_no_arguments(arguments: Sequence[str]) -> None:
    """Check that no arguments follow a command's name argument, such as files that a shell expanded from a pattern.

    Raises:
        UsageError: something does.
    """
    if arguments:
        raise UsageError(
            f"{arguments[0]!r} stands behind no option", remedy="pass --file, or --text, before each file or text"
        )


_INTEGER = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?")


def read_parameters(texts: Sequence[str]) -> dict[str, Parameter]:
    """Parse each NAME=VALUE; the type follows from the form of VALUE.

    Raises:
        UsageError: another form, a name that is given twice, or a parameter that cannot be sent.
    """
    from plansmith.triton.client.messages import require_parameters

    parameters: dict[str, Parameter] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise UsageError(
                f"--parameter {text!r} is not NAME=VALUE", remedy="write it like --parameter max_tokens=32"
            )
        if name in parameters:
            raise UsageError(f"parameter {name!r} is given twice", remedy="give each parameter once")
        parameters[name] = _typed(name, value)
    require_parameters(parameters)
    return parameters


def _typed(name: str, text: str) -> Parameter:
    """Parse an integer, a decimal, true or false; everything else, and anything in quotes, is text."""
    if text in {"true", "false"}:
        return text == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return float(text)
    if text.startswith('"'):
        try:
            return str(json.loads(text))
        except ValueError as error:
            raise UsageError(
                f"--parameter {name}={text} begins with a quote and does not end with one",
                remedy=f"write it like --parameter '{name}=\"12\"'",
            ) from error
    return text


@click.command("infer", short_help="Ask a served model.")
@click.argument("model", metavar="MODEL[@VERSION]", shell_complete=complete_served)
@click.argument("others", nargs=-1, metavar="")
@input_options
@click.option("--stream", is_flag=True, help="Print what comes as it comes, of a model that answers in pieces.")
@click.option("--only", metavar="NAME", multiple=True, help="An output to ask for [all of them].")
@click.option("--url", metavar="URL", help="Where Triton answers [127.0.0.1:8000, or :8001 for gRPC].")
@click.option("--serve", is_flag=True, help="Start Triton with MODEL of the repository for this request.")
@click.option("--protocol", type=click.Choice(["http", "grpc"]), help="[grpc where the URL says so, else http]")
@click.option("--encoding", type=click.Choice(["binary", "json"]), default="binary", show_default=True)
@click.option("--shared-memory", is_flag=True, help="Hand large tensors over in memory; Triton runs on this machine.")
@click.option("--header", "headers", metavar="'NAME: VALUE'", multiple=True, help="Sent with each request.")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), default=60, show_default=True, metavar="SECONDS")
@click.option(
    "--repository",
    metavar="DIR",
    type=click.Path(path_type=Path),
    shell_complete=complete_folder,
    help=f"Know the inputs by the release in DIR; with --serve, where MODEL is [{DEFAULT_REPOSITORY}].",
)
@click.option("--repeat", type=click.IntRange(1), metavar="N", help="Ask N times more, and tell how long it took.")
@answer_options
def infer_command(
    model: str,
    others: tuple[str, ...],
    *,
    repository: Path | None,
    serve: bool,
    stream: bool,
    repeat: int | None,
    output: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Send a request to MODEL on a running Triton and print its answer, or write it to a file.

    A text or file goes to the one input that takes strings; where there are several, NAME= before it says which. A
    value of --input that lacks the batch is one sample; a batch above the model's largest is sent in parts. --random
    draws values that are valid and mean nothing. Where no server runs, --serve starts one and ends it.

    \b
    plansmith infer minilm --text "a cat" --text "a dog on a mat"
    plansmith infer minilm --lines sentences.txt --output embeddings.npz
    plansmith infer resnet@3 --file cat.jpg --serve
    plansmith infer answers --text question="Who?" --text context="Ada wrote it." --parameter top_k=3
    plansmith infer writer --text "Once upon a time" --parameter max_new_tokens=64 --stream
    plansmith infer minilm --input input_ids=101,4937,102 --input attention_mask=1,1,1
    plansmith infer minilm --random --shape input_ids=8x64 --url grpc://gpu-box:8001 --repeat 100
    """
    from plansmith.cli.infer.answers import (
        ModelAnswer,
        latency_of,
        print_answer,
        print_pieces,
        require_output,
        require_streamable,
        terminal_width,
    )
    from plansmith.cli.infer.client import on_own_server, on_running
    from plansmith.cli.infer.inputs import read_input_arguments, require_inputs

    require_no_arguments(others)
    if stream:
        require_streamable(options, output, repeat)
    if output is not None:
        require_output(output, replace=options["force"])
    name, _, version = model.partition("@")
    rows = options["texts"], options["lines"], options["files"]
    arguments = read_input_arguments(
        options["inputs"], options["input_json"], rows, options["shapes"], draw=options["draw"]
    )
    parameters = read_parameters(options["parameters"])
    opening = on_own_server if serve else on_running
    reach = {**options, "as_json": as_json, "protocol": "grpc" if stream else options["protocol"]}
    with opening(name, version, repository, arguments, reach) as (client, sizes):
        feed = arguments.feed(client.signature(), sizes)
        if serve or repository is None:  # a release does not tell which inputs may be left out
            require_inputs(client.signature(), feed)
        if stream:
            pieces = client.stream(feed, outputs=options["only"], parameters={"stream": True, **parameters})
            print_pieces(pieces, client.signature(), as_json=as_json, width=terminal_width())
            return
        answer = client.ask(feed, outputs=options["only"], parameters=parameters)
        seconds = _times(client, feed, options["only"], parameters, repeat or 0)
        answered = ModelAnswer(name, answer, client.signature(), latency_of(seconds) if seconds else None)
    print_answer(answered, arguments, output=output, replace=options["force"], as_json=as_json)


def _times(
    client: Client, feed: Mapping[str, object], only: Sequence[str], parameters: Mapping[str, Parameter], repeat: int
) -> list[float]:
    """Measure the seconds of repeated sequential requests over the existing connection."""
    seconds = []
    for _ in range(repeat):
        started = time.perf_counter()
        client.ask(feed, outputs=only, parameters=parameters)
        seconds.append(time.perf_counter() - started)
    return seconds
