"""Options of `plansmith tune` and `compare` about the server of the trials and its requests, and what they mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.options import complete_file, complete_target, repository_option
from plansmith.errors import UsageError

if TYPE_CHECKING:
    from plansmith.system.urls import Protocol
    from plansmith.tuning.tuned_model import TunedModel

SERVER_OPTIONS = (
    click.option(
        "--target",
        default="",
        metavar="NAME",
        shell_complete=complete_target,
        help="Which target of a spec with several.",
    ),
    repository_option("Where the model's releases are."),
    click.option(
        "--tritonserver",
        type=click.Path(path_type=Path),
        metavar="PATH",
        shell_complete=complete_file,
        help="Server [found].",
    ),
    click.option(
        "--url",
        metavar="URL",
        default="",
        help="A running Triton in explicit mode, which is sent each configuration: http://host:8000 or"
        " grpc://host:8001, which takes models above 64 MB, too.",
    ),
)
REQUEST_OPTIONS = (
    click.option("--protocol", type=click.Choice(["http", "grpc"]), help="[grpc where the URL says so, else http]"),
    click.option("--encoding", type=click.Choice(["binary", "json"]), default="binary", show_default=True),
)


def read_protocol(options: Mapping[str, Any]) -> Protocol:
    """The protocol of the requests.

    Raises:
        UsageError: the options name two servers, no address, or what the protocol does not have.
    """
    from plansmith.system.urls import read_address

    if options["url"] and options["tritonserver"] is not None:
        raise UsageError("--url and --tritonserver are two servers", remedy="name one")
    protocol: Protocol = options["protocol"] or "http"
    if options["url"]:
        protocol = read_address(options["url"], options["protocol"]).protocol
    if protocol == "grpc" and options["encoding"] == "json":
        raise UsageError("gRPC has no JSON bodies", remedy="leave out --encoding, or use --protocol http")
    return protocol


def put_on_server(models: Iterable[TunedModel], options: Mapping[str, Any]) -> list[TunedModel]:
    """The models with the server of the options; errors as of `read_protocol`."""
    from plansmith.system.urls import read_address

    models, server = list(models), options["tritonserver"]
    if options["url"]:
        url = str(read_address(options["url"], options["protocol"]))
        return [replace(model, url=url) for model in models]
    if server is None:
        return models
    path = str(server.absolute())
    return [replace(model, spec=model.spec.model_copy(update={"tritonserver": path})) for model in models]
