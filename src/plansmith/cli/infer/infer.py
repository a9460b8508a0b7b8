"""`plansmith infer`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.infer.options import answer_options, input_options, require_no_arguments
from plansmith.cli.options import DEFAULT_REPOSITORY, complete_folder
from plansmith.cli.store.completion import complete_served

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plansmith.triton.client import Client, Parameter


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
    **asked: Any,
) -> None:
    """Ask MODEL on a running Triton and print what it answers, or write it to a file.

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
    from plansmith.cli.infer.answer import ModelAnswer, latency_of, print_answer, require_output, terminal_width
    from plansmith.cli.infer.client import on_own_server, on_running
    from plansmith.cli.infer.given import read_input_arguments, require_inputs
    from plansmith.cli.infer.parameters import read_parameters
    from plansmith.cli.infer.pieces import print_pieces, require_streamable

    require_no_arguments(others)
    if stream:
        require_streamable(asked, output, repeat)
    if output is not None:
        require_output(output, replace=asked["force"])
    name, _, version = model.partition("@")
    rows = asked["texts"], asked["lines"], asked["files"]
    given = read_input_arguments(asked["inputs"], asked["input_json"], rows, asked["shapes"], draw=asked["draw"])
    parameters = read_parameters(asked["parameters"])
    opening = on_own_server if serve else on_running
    reach = {**asked, "as_json": as_json, "protocol": "grpc" if stream else asked["protocol"]}
    with opening(name, version, repository, given, reach) as (client, sizes):
        feed = given.feed(client.signature(), sizes)
        if serve or repository is None:  # a release does not tell which inputs may be left out
            require_inputs(client.signature(), feed)
        if stream:
            pieces = client.stream(feed, outputs=asked["only"], parameters={"stream": True, **parameters})
            print_pieces(pieces, client.signature(), as_json=as_json, width=terminal_width())
            return
        answer = client.ask(feed, outputs=asked["only"], parameters=parameters)
        seconds = _times(client, feed, asked["only"], parameters, repeat or 0)
        answered = ModelAnswer(name, answer, client.signature(), latency_of(seconds) if seconds else None)
    print_answer(answered, given, output=output, replace=asked["force"], as_json=as_json)


def _times(
    client: Client, feed: Mapping[str, object], only: Sequence[str], parameters: Mapping[str, Parameter], repeat: int
) -> list[float]:
    """Seconds of so many questions, one after the other, over the connection that there is."""
    seconds = []
    for _ in range(repeat):
        started = time.perf_counter()
        client.ask(feed, outputs=only, parameters=parameters)
        seconds.append(time.perf_counter() - started)
    return seconds
