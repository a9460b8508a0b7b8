"""Server selection of `plansmith infer`: a running server, or one started for the request."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.options import DEFAULT_REPOSITORY
from plansmith.errors import RepositoryError, ServedCheckError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plansmith.cli.infer.inputs import InputArguments
    from plansmith.records.release import Manifest
    from plansmith.triton.client import Client, Protocol
    from plansmith.triton.repository.repository import ModelRepository
    from plansmith.triton.server.server import TritonServer


# As `plansmith serve`: a person who waits can press Ctrl-C.
_LOAD_SECONDS = 3600


def opened_model(repository: Path, model: str, version: str) -> tuple[ModelRepository, Manifest | None]:
    """Open the repository, which exposes the model in that version, and the manifest of the version that will answer.

    Args:
        repository: the folder.
        model: its name.
        version: its number; empty for the one that Triton chooses.

    Raises:
        RepositoryError: there is no such model, or it is not shown in that version.
    """
    from plansmith.triton.repository.ensembles import require_alone
    from plansmith.triton.repository.repository import ModelRepository

    if not repository.is_dir():
        raise RepositoryError(
            f"{repository} does not exist", remedy="compile a model into it first, or name another --repository"
        )
    opened = ModelRepository(repository)
    require_alone(opened.root)
    with suppress(RepositoryError):  # a repository that cannot be written is served as it stands
        opened.settle_all()
    present = opened.served_models()
    if model not in present:
        raise RepositoryError(
            f"{repository} shows no model {model!r}",
            remedy=f"choose from: {', '.join(present)}" if present else "compile a model into it first",
        )
    shown = opened.views(model).shown()
    if version and version not in map(str, shown):
        is_there = version in map(str, opened.versions(model))
        raise RepositoryError(
            f"{repository} does not show version {version} of {model}",
            remedy=f"ask for one that is shown: {', '.join(map(str, shown))}"
            + f"; or plansmith rollback {model}, which shows an earlier one again" * is_there,
        )
    number = int(version) if version else max(shown, default=0)
    return opened, opened.readable(model, number) if number else None


def members_of(opened: ModelRepository, model: str) -> list[str]:
    """Return the companion models of a model's visible releases, which Triton may not load by itself."""
    shown = [opened.readable(model, number) for number in opened.views(model).shown()]
    return sorted({member.model for manifest in shown if manifest for member in manifest.package.members})


@contextmanager
def served(
    opened: ModelRepository, models: Sequence[str], *, purpose: str = "this request", quiet: bool
) -> Iterator[TritonServer]:
    """Serve models and their ensemble members on Triton; it stops at the end of the block.

    Args:
        opened: the repository.
        models: their names.
        purpose: what it is started for.
        quiet: say nothing while it starts.

    Raises:
        ServedCheckError: the model does not load.
        EnvironmentFault: this machine or its server lacks what the model needs.
    """
    from plansmith.cli.compile.progress import MovingLine
    from plansmith.cli.output import open_console, short
    from plansmith.cli.serve.serve import log_file
    from plansmith.triton.server.installation import find_installation
    from plansmith.triton.server.needs import needs_of, shown_manifests
    from plansmith.triton.server.server import TritonServer

    installation = find_installation()
    needs = needs_of(installation, opened.load_target(), shown_manifests(opened, models))
    names = " and ".join(models)
    members = [member for model in models for member in members_of(opened, model)]
    log = log_file(opened.root, "infer")
    server = TritonServer(
        opened.root,
        installation,
        log,
        site=needs.site,
        dali_site=needs.dali_site,
        models=list(dict.fromkeys([*models, *members])),
        deadline_seconds=_LOAD_SECONDS,
        arguments=needs.arguments,
        pythons=needs.pythons,
    )
    started = time.monotonic()
    try:
        with ExitStack() as stack:
            with MovingLine(open_console(stderr=True), quiet=quiet) as line:
                message = f"starting Triton with {names}; log: {short(log)}"
                line.tell(message)
                if not (quiet or line.shown):
                    click.echo(message, err=True)
                stack.enter_context(server)
            if not quiet:
                took = time.monotonic() - started
                click.echo(f"Triton {server.version} serves {names} for {purpose}, after {took:.1f} s", err=True)
            yield server
    except ServedCheckError as refused:
        raise refused.located(log=log) from refused.__cause__


_Opened = tuple["Client", "Mapping[str, int]"]
"""A client of the model, and the usual sizes of its axes as far as a release tells them."""


@contextmanager
def on_running(
    name: str, version: str, repository: Path | None, arguments: InputArguments, options: Mapping[str, Any]
) -> Iterator[_Opened]:
    """Use the running server."""
    del arguments
    manifest = None if repository is None else _manifest(repository, f"{name}{'@' * bool(version)}{version}")
    with client_of(name, version, manifest, options) as client:
        yield client, _sizes(manifest)


@contextmanager
def on_own_server(
    name: str, version: str, repository: Path | None, arguments: InputArguments, options: Mapping[str, Any]
) -> Iterator[_Opened]:
    """Start a server for this request; refuses before the start what the release already rules out."""
    from plansmith.triton.client.dtypes import signature_from_package
    from plansmith.triton.client.request_inputs import checked_feed, missing_inputs

    if options["url"]:
        raise UsageError("--serve starts a server, and --url names another", remedy="leave one of the two out")
    opened, manifest = opened_model(repository or DEFAULT_REPOSITORY, name, version)
    if manifest is not None:
        known = signature_from_package(manifest.package)
        feed = arguments.feed(known, _sizes(manifest))
        lacks_only = missing_inputs(known, feed) and feed.keys() <= {tensor.name for tensor in known.inputs}
        if not lacks_only:  # the server knows better which may be left out
            checked_feed(known, feed)
    with served(opened, [name], quiet=options["as_json"]) as server:
        streams = manifest is not None and manifest.package.decoupled
        protocol = options["protocol"] or ("grpc" if streams else "http")
        url = f"{protocol}://{server.http_url if protocol == 'http' else server.grpc_url}"
        with client_of(name, version, None, {**options, "url": url}) as client:
            yield client, _sizes(manifest)


def _manifest(repository: Path, model: str) -> Manifest:
    """Return the manifest of the release that MODEL[@VERSION] names in a repository.

    Raises:
        RepositoryError: there is none.
    """
    from plansmith.triton.repository.repository import ModelRepository

    opened = ModelRepository(repository)
    return opened.manifest(*opened.find(model))


def _sizes(manifest: Manifest | None) -> Mapping[str, int]:
    return {} if manifest is None else {axis: axis_range.opt for axis, axis_range in manifest.onnx.axes.items()}


def client_of(name: str, version: str, manifest: Manifest | None, options: Mapping[str, Any]) -> Client:
    """Return a client of a model from the options; does not query a model whose manifest is known."""
    from plansmith.system.urls import DEFAULT_ADDRESSES, read_address, read_header
    from plansmith.triton.client import Client

    requested: Protocol | None = options["protocol"]
    protocol = requested or (read_address(options["url"]).protocol if options["url"] else "http")
    return Client(
        options["url"] or DEFAULT_ADDRESSES[protocol],
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
