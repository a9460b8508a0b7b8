"""Prepares a running Triton for a load test: asks for its models, chooses and encodes their requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from plansmith.errors import EnvironmentFault
from plansmith.loadtest.payloads.source import KnownModel, ModelInputs, RequestOptions, choose_inputs, encode
from plansmith.loadtest.plan.plan_file import ModelShare
from plansmith.loadtest.server.metrics import read_gauges
from plansmith.loadtest.server.monitor import ServerMonitor
from plansmith.loadtest.target import LoadTarget
from plansmith.system.temporary import scratch_folder
from plansmith.system.urls import Address
from plansmith.triton.client.connection import Connection
from plansmith.triton.client.signature import signature_from_config
from plansmith.triton.repository.ensembles import steps_of
from plansmith.triton.repository.repository import ModelRepository

_METRICS_PORTS = {"8000": "8002", "8001": "8002"}
"""The metrics port of a Triton on its default ports."""


@dataclass(frozen=True)
class ServerPlace:
    """A running Triton.

    Attributes:
        address: where it answers.
        metrics: `host:port` of its Prometheus metrics; that of the default ports when empty.
        group: the process group of a server that was started here; None otherwise.
        repository: has the releases of its models; None where they are unknown.
        release: of its only model, where that has another name on the server.
    """

    address: Address
    metrics: str = ""
    group: int | None = None
    repository: ModelRepository | None = None
    release: str = ""


@dataclass(frozen=True)
class PreparedTarget:
    """A target that is ready for its load test.

    Attributes:
        target: for the client processes.
        server: the server in words.
        inputs: of the requests to each model.
        monitor: monitors the server; None where nothing can.
        releases: "MODEL@VERSION" of each model, where known.
        notes: what a reader of the figures has to know.
    """

    target: LoadTarget
    server: str
    inputs: Mapping[str, ModelInputs]
    monitor: ServerMonitor | None
    releases: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@contextmanager
def prepare_target(
    models: Sequence[ModelShare], place: ServerPlace, options: RequestOptions, folder: Path
) -> Iterator[PreparedTarget]:
    """Ask a server for its models, and encode their requests, which go with the block.

    Args:
        models: the mix.
        place: the server.
        options: how requests are made and sent.
        folder: takes the encoded requests.

    Raises:
        ServedCheckError: the server does not have a model, or it is not ready.
        EnvironmentFault: the server is not reached, or the named metrics are not.
        RepositoryError: the repository does not have a model.
        UsageError: requests that the model does not take.
        SourceError: data that are not there.
    """
    address = place.address
    options = replace(options, protocol=address.protocol)
    with Connection(address, timeout_seconds=options.timeout_seconds, headers=options.headers) as connection:
        version = connection.server_version()
        known_models = [_known_model(connection, share, place) for share in models]
        members = [_members(connection, share.name, share.version) for share in models]
    metrics = _metrics(place)
    base = LoadTarget(
        place=address.place,
        secure=address.secure,
        protocol=address.protocol,
        encoding=options.encoding,
        headers=dict(options.headers),
        models=(),
    )
    with encoded_requests(base, list(zip(models, known_models, strict=True)), options, folder) as (target, inputs):
        known = dict(zip(target.names, known_models, strict=True))
        monitor = ServerMonitor(
            address,
            {name: {name, *parts} for name, parts in zip(target.names, members, strict=True)},
            metrics=metrics,
            group=place.group,
            headers=options.headers,
        )
        notes = (*locality_notes(address), *request_notes(known, inputs))
        yield PreparedTarget(target, f"Triton {version}", inputs, monitor, release_names(known), notes)


@contextmanager
def encoded_requests(
    target: LoadTarget, models: Sequence[tuple[ModelShare, KnownModel]], options: RequestOptions, folder: Path
) -> Iterator[tuple[LoadTarget, dict[str, ModelInputs]]]:
    """Choose and encode the requests to models; the files go with the block.

    Args:
        target: the server, without its models.
        models: the mix, and what is known of each.
        options: how requests are made and sent.
        folder: takes the encoded requests.

    Returns:
        The target with its models, and their inputs by name.

    Raises:
        UsageError: requests that a model does not take.
        SourceError: data that are not there.
    """
    inputs = [choose_inputs(share, model, options) for share, model in models]
    with scratch_folder("payloads", folder) as payloads:
        encoded = tuple(
            encode(share, chosen, model.signature, Path(payloads, str(number)), options, service=target.service)
            for number, ((share, model), chosen) in enumerate(zip(models, inputs, strict=True))
        )
        complete = target.model_copy(update={"models": encoded})
        yield complete, dict(zip(complete.names, inputs, strict=True))


def release_names(models: Mapping[str, KnownModel]) -> dict[str, str]:
    """The release of each model, as MODEL@VERSION, where known."""
    return {
        name: f"{model.manifest.name}@{model.manifest.version}"
        for name, model in models.items()
        if model.manifest is not None
    }


def locality_notes(address: Address) -> Iterator[str]:
    """Whether server and client shared a machine."""
    host = address.place.partition("/")[0].rpartition(":")[0]
    if host == "localhost" or host.startswith(("127.", "[::1]")):
        yield "server and client ran on one machine and shared its CPUs"


def request_notes(models: Mapping[str, KnownModel], inputs: Mapping[str, ModelInputs]) -> Iterator[str]:
    """What has to be known of the requests to each model."""
    for name, model in models.items():
        if inputs[name].is_random:
            yield f"requests to {name} have random values, which mean nothing to it"
        if model.signature.is_cached:
            yield f"{name} has a response cache: a repeated request may not reach the model"
        if model.signature.max_batch_size > 1 and inputs[name].shapes > 1:
            yield (
                f"requests to {name} have {inputs[name].shapes} shapes; Triton's dynamic batcher batches requests of"
                " one shape only, unless inputs are ragged"
            )


def _known_model(connection: Connection, share: ModelShare, place: ServerPlace) -> KnownModel:
    signature, repository = signature_from_config(connection.config(share.name, share.version)), place.repository
    if repository is None:
        return KnownModel(signature)
    name, version = repository.find(place.release or share.model)
    manifest = repository.manifest(name, version)
    package = manifest.package.model_copy(update={"max_batch_size": signature.max_batch_size})
    return KnownModel(signature, manifest, repository.release(name, version), package)


def _members(connection: Connection, model: str, version: str = "") -> set[str]:
    """The models that a model asks, and those that they ask."""
    steps = set(steps_of(connection.config(model, version)))
    return steps.union(*(_members(connection, step) for step in steps))


def default_metrics(address: Address) -> str:
    """`host:port` of the metrics of a Triton on its default ports; empty for one on others."""
    host, _, port = address.place.partition("/")[0].rpartition(":")
    return f"{host}:{_METRICS_PORTS[port]}" if port in _METRICS_PORTS else ""


def _metrics(place: ServerPlace) -> str:
    if place.metrics and read_gauges(place.metrics) is None:
        raise EnvironmentFault(
            f"no metrics of a Triton are read at {place.metrics}",
            remedy="write it like gpu-box:8002, as its --metrics-port says; or leave --metrics out",
        )
    return place.metrics or default_metrics(place.address)
