"""`plansmith infer`."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.options import complete_file, complete_folder, complete_model
from plansmith.cli.text import short

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plansmith.client import Client, Protocol
    from plansmith.manifest import Manifest


@click.command("infer", short_help="Ask a served model.")
@click.argument("model", metavar="MODEL[@VERSION]", shell_complete=complete_model)
@click.option(
    "--input",
    "inputs",
    metavar="NAME=VALUE",
    multiple=True,
    help="A file (.npy, .npz, .json), - for JSON on standard input, JSON, or numbers with commas between them.",
)
@click.option(
    "--input-json",
    metavar="FILE",
    shell_complete=complete_file,
    help="The values of several inputs by name, or a request of KServe's protocol; - for standard input.",
)
@click.option("--random", "draw", is_flag=True, help="Draw the inputs that are not given.")
@click.option("--shape", "shapes", metavar="NAME=SIZES", multiple=True, help="Of a drawn input, batch first: 4x64.")
@click.option("--only", metavar="NAME", multiple=True, help="An output to ask for [all of them].")
@click.option("--url", metavar="URL", help="Where Triton answers [127.0.0.1:8000, or :8001 for gRPC].")
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
    help="Know the inputs by the release in DIR instead of asking the server.",
)
@click.option("--repeat", type=click.IntRange(1), metavar="N", help="Ask N times more, and tell how long it took.")
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    shell_complete=complete_file,
    help="Write the answer to FILE, .npz or .json.",
)
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole answer as one JSON document.")
def infer_command(
    model: str,
    *,
    inputs: tuple[str, ...],
    input_json: str | None,
    draw: bool,
    shapes: tuple[str, ...],
    repository: Path | None,
    repeat: int | None,
    output: Path | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Ask MODEL on a running Triton and print what it answers, or write it to a file.

    A value that lacks the batch is one sample; a batch above the model's largest is sent in parts. --random draws
    values that are valid and mean nothing.

    \b
    plansmith infer minilm --random
    plansmith infer minilm --input input_ids=101,4937,102 --input attention_mask=1,1,1
    plansmith infer resnet@3 --input pixel_values=image.npy --url grpc://gpu-box:8001 --output logits.npz
    plansmith infer minilm --random --shape input_ids=8x64 --repository artifacts/repository --repeat 100
    """
    from plansmith.cli.infer_answer import Answered, latency_of, require_output

    if output is not None:
        require_output(output, replace=asked["force"])
    name, _, version = model.partition("@")
    manifest = None if repository is None else _manifest(repository, model)
    given = _Given(inputs, input_json, shapes, draw=draw)
    with _client(name, version, manifest, asked) as client:
        feed = given.feed(client, manifest)
        answer = client.ask(feed, outputs=asked["only"])
        seconds = _times(client, feed, asked["only"], repeat or 0)
        answered = Answered(name, answer, client.signature(), latency_of(seconds) if seconds else None)
    if output is not None:
        answered.write(output, replace=asked["force"])
    if as_json:
        click.echo(json.dumps(answered.document()))
        return
    for line in answered.lines(values=output is None):
        click.echo(line)
    if output is not None:
        click.echo(f"written to {short(output.absolute())}")


@dataclass(frozen=True)
class _Given:
    """What a person said about the inputs.

    Args:
        inputs: each NAME=VALUE.
        document: a file of several.
        shapes: each NAME=SIZES, of drawn ones.
        draw: those that are not given.
    """

    inputs: tuple[str, ...]
    document: str | None
    shapes: tuple[str, ...]
    draw: bool

    def feed(self, client: Client, manifest: Manifest | None) -> dict[str, object]:
        """What is sent; a release says which sizes are usual.

        Raises:
            UsageError: nothing is given, or not as it has to be.
        """
        from plansmith.cli.infer_inputs import given_shapes, read_inputs, read_shapes
        from plansmith.client.drawing import drawn_feed
        from plansmith.errors import UsageError
        from plansmith.types import BATCH

        if self.shapes and not self.draw:
            raise UsageError("--shape is for drawn inputs", remedy="pass --random, or leave it out")
        if not (self.inputs or self.document or self.draw):
            words = client.signature().words()
            raise UsageError(
                f"no input is given. The model has:\n{words}", remedy="pass --input NAME=VALUE or --random"
            )
        feed = read_inputs(client.signature(), self.inputs, self.document)
        if not self.draw:
            return feed
        sizes = {} if manifest is None else {axis: found.opt for axis, found in manifest.onnx.axes.items()}
        shapes = given_shapes(client.signature(), feed) | read_shapes(self.shapes)
        drawn = drawn_feed(client.signature(), shapes=shapes, sizes=sizes | {BATCH: 1})
        return {**drawn, **feed}


def _manifest(repository: Path, model: str) -> Manifest:
    """The release that MODEL[@VERSION] names in a repository.

    Raises:
        RepositoryError: there is none.
    """
    from plansmith.triton.repository import ModelRepository

    opened = ModelRepository(repository)
    return opened.manifest(*opened.find(model))


def _client(name: str, version: str, manifest: Manifest | None, asked: Mapping[str, Any]) -> Client:
    from plansmith.addresses import DEFAULT_ADDRESSES, read_address, read_header
    from plansmith.client import Client

    given: Protocol | None = asked["protocol"]
    protocol = given or (read_address(asked["url"]).protocol if asked["url"] else "http")
    return Client(
        asked["url"] or DEFAULT_ADDRESSES[protocol],
        model=name,
        version=version,
        protocol=protocol,
        encoding=asked["encoding"],
        interface=None if manifest is None else manifest.package.interface,
        max_batch_size=None if manifest is None else manifest.package.max_batch_size,
        timeout_seconds=asked["timeout"],
        shared_memory=asked["shared_memory"],
        headers=dict(read_header(text, "a --header") for text in asked["headers"]),
    )


def _times(client: Client, feed: Mapping[str, object], only: Sequence[str], repeat: int) -> list[float]:
    """Seconds of so many questions, one after the other, over the connection that there is."""
    seconds = []
    for _ in range(repeat):
        started = time.perf_counter()
        client.ask(feed, outputs=only)
        seconds.append(time.perf_counter() - started)
    return seconds
