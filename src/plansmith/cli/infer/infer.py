"""`plansmith infer`: a request to a running server, or to one that is started for it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.options import DEFAULT_REPOSITORY, complete_file, complete_folder
from plansmith.cli.store.options import complete_served
from plansmith.errors import UsageError

if TYPE_CHECKING:
    from plansmith.cli.infer.inputs import InputArguments
    from plansmith.records.release import Manifest
    from plansmith.triton.client import Client, Parameter, Protocol


_INPUTS = (
    click.option("--text", "texts", metavar="[NAME=]TEXT", multiple=True, help="A text; each one is a row."),
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
    click.option("--random", "draw", is_flag=True, help="Draw the inputs that are not given; they mean nothing."),
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

_INTEGER = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def input_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the input options: texts, files, inputs, input_json, draw and parameters."""
    return reduce(lambda decorated, option: option(decorated), reversed(_INPUTS), command)


def answer_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the output options: output, force and as_json."""
    return reduce(lambda decorated, option: option(decorated), reversed(_ANSWER), command)


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
        parameters[name] = _parameter(value)
    require_parameters(parameters)
    return parameters


def _parameter(text: str) -> Parameter:
    """Parse an integer, a decimal, true, false or a text in quotes; everything else is text as it is."""
    with suppress(ValueError):
        if _INTEGER.fullmatch(text):
            return int(text)
        if _DECIMAL.fullmatch(text):
            return float(text)
        if text in {"true", "false"} or text.startswith('"'):
            value: bool | str = json.loads(text)
            return value
    return text


@click.command("infer", short_help="Ask a served model.")
@click.argument("model", metavar="MODEL[@VERSION]", shell_complete=complete_served)
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
@answer_options
def infer_command(
    model: str,
    *,
    stream: bool,
    output: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Send a request to MODEL on a running Triton and print its answer, or write it to a file.

    A text or file goes to the one input that takes strings; where there are several, NAME= before it says which. A
    value of --input that lacks the batch is one sample; a batch above the model's largest is sent in parts. Where no
    server runs, --serve starts one and ends it.

    \b
    plansmith infer minilm --text "a cat" --text "a dog on a mat"
    plansmith infer minilm --input-json texts.json --output embeddings.npz
    plansmith infer resnet@3 --file cat.jpg --serve
    plansmith infer answers --text question="Who?" --text context="Ada wrote it." --parameter top_k=3
    plansmith infer writer --text "Once upon a time" --parameter max_new_tokens=64 --stream
    plansmith infer minilm --input input_ids=101,4937,102 --input attention_mask=1,1,1
    plansmith infer minilm --random --url grpc://gpu-box:8001
    """
    from plansmith.cli.infer.answers import print_answer, print_pieces, require_output
    from plansmith.cli.infer.inputs import read_input_arguments

    if stream:
        by_url = "http" if (options["url"] or "").startswith("http") else "grpc"
        if output is not None or (options["protocol"] or by_url) == "http":
            raise UsageError(
                "--stream prints what comes over gRPC",
                remedy="pass --protocol grpc or a --url grpc://…, and leave --output out",
            )
        options["protocol"] = "grpc"
    if output is not None:
        require_output(output, replace=options["force"])
    arguments, only = read_input_arguments(options), options["only"]
    parameters = read_parameters(options["parameters"])
    with _connect(model, arguments, {**options, "as_json": as_json}) as (client, sizes):
        feed = arguments.feed(client.signature(), sizes)
        if stream:
            pieces = client.stream(feed, outputs=only, parameters={"stream": True, **parameters})
            print_pieces(pieces, client.signature(), as_json=as_json)
            return
        answer = client.ask(feed, outputs=only, parameters=parameters)
    print_answer(client.model, answer, client.signature(), output=output, replace=options["force"], as_json=as_json)


@contextmanager
def _connect(
    model: str, arguments: InputArguments, options: Mapping[str, Any]
) -> Iterator[tuple[Client, Mapping[str, int]]]:
    """Connect to the running server, or to one that is started for this request.

    What a release already rules out is refused before the start.

    Args:
        model: MODEL[@VERSION].
        arguments: the inputs.
        options: of the command.

    Yields:
        The client, and the usual sizes of the model's axes as far as a release tells them.
    """
    from plansmith.cli.serve.temporary import opened_model, served
    from plansmith.triton.repository.repository import ModelRepository

    name, _, version = model.partition("@")
    repository: Path | None = options["repository"]
    if not options["serve"]:
        known = None if repository is None else ModelRepository(repository)
        manifest = None if known is None else known.manifest(*known.find(model))
        with _client(name, version, manifest, options) as client:
            yield client, _sizes(manifest)
        return
    if options["url"]:
        raise UsageError("--serve starts a server, and --url names another", remedy="leave one of the two out")
    opened, manifest = opened_model(repository or DEFAULT_REPOSITORY, name, version)
    if manifest is not None:
        _require_feed(manifest, arguments)
    with served(opened, [name], quiet=options["as_json"]) as server:
        streams = manifest is not None and manifest.package.decoupled
        protocol = options["protocol"] or ("grpc" if streams else "http")
        url = f"{protocol}://{server.http_url if protocol == 'http' else server.grpc_url}"
        with _client(name, version, None, {**options, "url": url}) as client:
            yield client, _sizes(manifest)


def _require_feed(manifest: Manifest, arguments: InputArguments) -> None:
    """Check the inputs against a release; errors as for `checked_feed`, except of inputs that may be optional."""
    from plansmith.triton.client.request_inputs import checked_feed, missing_inputs
    from plansmith.triton.dtypes import signature_from_package

    known = signature_from_package(manifest.package)
    feed = arguments.feed(known, _sizes(manifest))
    if not missing_inputs(known, feed) or not feed.keys() <= {tensor.name for tensor in known.inputs}:
        checked_feed(known, feed)


def _sizes(manifest: Manifest | None) -> Mapping[str, int]:
    return {} if manifest is None else {axis: axis_range.opt for axis, axis_range in manifest.onnx.axes.items()}


def _client(name: str, version: str, manifest: Manifest | None, options: Mapping[str, Any]) -> Client:
    """Return a client of a model from the options; does not query a model whose manifest is known."""
    from plansmith.system.urls import DEFAULT_ADDRESSES, read_address, read_header
    from plansmith.triton.client import Client

    url: str = options["url"] or DEFAULT_ADDRESSES[options["protocol"] or "http"]
    protocol: Protocol = options["protocol"] or read_address(url).protocol
    return Client(
        url,
        model=name,
        version=version,
        protocol=protocol,
        encoding=options["encoding"],
        interface=None if manifest is None else manifest.package.interface,
        max_batch_size=None if manifest is None else manifest.package.max_batch_size,
        decoupled=manifest is not None and manifest.package.decoupled,
        timeout_seconds=options["timeout"],
        shared_memory=options["shared_memory"],
        headers=dict(read_header(text, "a --header") for text in options["headers"]),
    )
