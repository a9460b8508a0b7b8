"""Whom `plansmith infer` asks: a server that runs, or one of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.cli.options import DEFAULT_REPOSITORY
from plansmith.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plansmith.cli.infer.given import InputArguments
    from plansmith.records.release import Manifest
    from plansmith.triton.client import Client, Protocol

_Opened = tuple["Client", "Mapping[str, int]"]
"""A client of the model, and the usual sizes of its axes as far as a release tells them."""


@contextmanager
def on_running(
    name: str, version: str, repository: Path | None, given: InputArguments, asked: Mapping[str, Any]
) -> Iterator[_Opened]:
    """The server that runs already."""
    del given
    manifest = None if repository is None else _manifest(repository, f"{name}{'@' * bool(version)}{version}")
    with client_of(name, version, manifest, asked) as client:
        yield client, _sizes(manifest)


@contextmanager
def on_own_server(
    name: str, version: str, repository: Path | None, given: InputArguments, asked: Mapping[str, Any]
) -> Iterator[_Opened]:
    """A server for this request; what a release tells is enough to refuse is refused before it starts."""
    from plansmith.cli.infer.server import opened_model, served
    from plansmith.triton.client.request_inputs import checked_feed, missing_inputs
    from plansmith.triton.client.signature import signature_from_package

    if asked["url"]:
        raise UsageError("--serve starts a server, and --url names another", remedy="leave one of the two out")
    opened, manifest = opened_model(repository or DEFAULT_REPOSITORY, name, version)
    if manifest is not None:
        known = signature_from_package(manifest.package)
        feed = given.feed(known, _sizes(manifest))
        lacks_only = missing_inputs(known, feed) and feed.keys() <= {tensor.name for tensor in known.inputs}
        if not lacks_only:  # the server knows better which may be left out
            checked_feed(known, feed)
    with served(opened, [name], quiet=asked["as_json"]) as server:
        streams = manifest is not None and manifest.package.decoupled
        protocol = asked["protocol"] or ("grpc" if streams else "http")
        url = f"{protocol}://{server.http_url if protocol == 'http' else server.grpc_url}"
        with client_of(name, version, None, {**asked, "url": url}) as client:
            yield client, _sizes(manifest)


def _manifest(repository: Path, model: str) -> Manifest:
    """The release that MODEL[@VERSION] names in a repository.

    Raises:
        RepositoryError: there is none.
    """
    from plansmith.triton.repository.repository import ModelRepository

    opened = ModelRepository(repository)
    return opened.manifest(*opened.find(model))


def _sizes(manifest: Manifest | None) -> Mapping[str, int]:
    return {} if manifest is None else {axis: found.opt for axis, found in manifest.onnx.axes.items()}


def client_of(name: str, version: str, manifest: Manifest | None, asked: Mapping[str, Any]) -> Client:
    """A client of a model, as the options say; one whose manifest is known is not asked for."""
    from plansmith.system.urls import DEFAULT_ADDRESSES, read_address, read_header
    from plansmith.triton.client import Client

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
        decoupled=manifest is not None and manifest.package.decoupled,
        timeout_seconds=asked["timeout"],
        shared_memory=asked["shared_memory"],
        headers=dict(read_header(text, "a --header") for text in asked["headers"]),
    )
