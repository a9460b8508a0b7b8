"""Preparation of a running Triton for a load test: queries its models, and chooses and encodes their requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from plansmith.errors import EnvironmentFault, PlansmithError, ServedCheckError, UsageError
from plansmith.loadtest.client.senders import TIMEOUT, GrpcSender, PlainSender, RequestFailed, invocation_headers
from plansmith.loadtest.monitor import ServerMonitor, read_gauges
from plansmith.loadtest.payloads.encoding import Payload, Payloads
from plansmith.loadtest.payloads.source import KnownModel, ModelInputs, RequestOptions, choose_inputs, encode
from plansmith.loadtest.plan_file import ModelShare
from plansmith.loadtest.target import Endpoint, LoadTarget, TargetModel
from plansmith.system.aws.sagemaker_runtime import SageMakerRuntime
from plansmith.system.files import scratch_folder
from plansmith.system.urls import Address, read_address
from plansmith.triton.client.connection import Connection
from plansmith.triton.client.sagemaker.client import EndpointConnection, Transport
from plansmith.triton.client.sagemaker.invocation import (
    TARGET_MODEL,
    TARGET_VARIANT,
    Invocation,
    require_headers,
    require_name,
)
from plansmith.triton.client.sagemaker.transports import FrontEndTransport, RuntimeTransport
from plansmith.triton.dtypes import signature_from_config
from plansmith.triton.repository.ensembles import steps_of
from plansmith.triton.repository.repository import ModelRepository

_METRICS_PORTS = {"8000": "8002", "8001": "8002"}
"""The metrics port of a Triton on its default ports."""

_NOTE = (
    "batches, queue and resources of the server are unknown: SageMaker does not tell them with its answers; CloudWatch"
    " has some, minutes later (plansmith sagemaker metrics)"
)
_CONFIG_SECONDS = 30
_UNKNOWN_MODEL = "unknown model"


@dataclass(frozen=True)
class ServerPlace:
    """Running Triton server and its options.

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
    """Prepared target of a load test.

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
    """Query a server for its models and encode their requests; the files are deleted after the block.

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
        models_by_name = dict(zip(target.names, known_models, strict=True))
        monitor = ServerMonitor(
            address,
            {name: {name, *parts} for name, parts in zip(target.names, members, strict=True)},
            metrics=metrics,
            group=place.group,
            headers=options.headers,
        )
        notes = (*locality_notes(address), *request_notes(models_by_name, inputs))
        yield PreparedTarget(target, f"Triton {version}", inputs, monitor, release_names(models_by_name), notes)


@contextmanager
def encoded_requests(
    target: LoadTarget, models: Sequence[tuple[ModelShare, KnownModel]], options: RequestOptions, folder: Path
) -> Iterator[tuple[LoadTarget, dict[str, ModelInputs]]]:
    """Choose and encode the requests to models; the files are deleted after the block.

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
    """Return the release of each model, as MODEL@VERSION, where known."""
    return {
        name: f"{model.manifest.name}@{model.manifest.version}"
        for name, model in models.items()
        if model.manifest is not None
    }


def locality_notes(address: Address) -> Iterator[str]:
    """Note whether server and client shared a machine."""
    host = address.place.partition("/")[0].rpartition(":")[0]
    if host == "localhost" or host.startswith(("127.", "[::1]")):
        yield "server and client ran on one machine and shared its CPUs"


def request_notes(models: Mapping[str, KnownModel], inputs: Mapping[str, ModelInputs]) -> Iterator[str]:
    """Yield notes on the requests to each model."""
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
    """Return the models that a model calls, directly or indirectly."""
    steps = set(steps_of(connection.config(model, version)))
    return steps.union(*(_members(connection, step) for step in steps))


def default_metrics(address: Address) -> str:
    """Return `host:port` of the metrics of a Triton on default ports; empty for other ports."""
    host, _, port = address.place.partition("/")[0].rpartition(":")
    return f"{host}:{_METRICS_PORTS[port]}" if port in _METRICS_PORTS else ""


def _metrics(place: ServerPlace) -> str:
    if place.metrics and read_gauges(place.metrics) is None:
        raise EnvironmentFault(
            f"no metrics of a Triton are read at {place.metrics}",
            remedy="write it like gpu-box:8002, as its --metrics-port says; or leave --metrics out",
        )
    return place.metrics or default_metrics(place.address)


@dataclass(frozen=True)
class EndpointPlace:
    """Endpoint in AWS, or a front end without AWS.

    Attributes:
        name: of the endpoint.
        region: where it is; that of the environment and the AWS configuration when empty.
        profile: of the AWS configuration files; empty for what the environment says.
        variant: the production variant that answers; empty for each by its weight.
        url: of a front end that answers instead of AWS; empty for AWS.
    """

    name: str = ""
    region: str = ""
    profile: str = ""
    variant: str = ""
    url: str = ""


@contextmanager
def prepare_endpoint(
    models: Sequence[tuple[ModelShare, KnownModel]], place: EndpointPlace, options: RequestOptions, folder: Path
) -> Iterator[PreparedTarget]:
    """Encode the requests to an endpoint's models; the files are deleted after the block. Makes no call to AWS.

    Args:
        models: the mix, and what is known of each: SageMaker does not tell what a model takes.
        place: the endpoint.
        options: how requests are made and sent.
        folder: takes the encoded requests.

    Raises:
        UsageError: names that cannot be, headers, or requests that the model or an endpoint does not take.
        SourceError: data that are not there.
        EnvironmentFault: botocore is not installed.
    """
    for share, _ in models:
        require_headers({TARGET_MODEL: share.target_model} | ({TARGET_VARIANT: place.variant} if place.variant else {}))
    options = replace(options, protocol="http")
    base = _front_end(place, options) if place.url else _endpoint(place, options)
    with encoded_requests(base, models, options, folder) as (target, inputs):
        models_by_name = {name: model for name, (_, model) in zip(target.names, models, strict=True)}
        notes = (*locality_notes(target.address), *request_notes(models_by_name, inputs), _NOTE)
        server = f"SageMaker {target.label}" if target.endpoint is not None else f"SageMaker front end {place.url}"
        yield PreparedTarget(target, server, inputs, None, release_names(models_by_name), notes)


def _front_end(place: EndpointPlace, options: RequestOptions) -> LoadTarget:
    address = read_address(place.url, "http")
    if place.region or place.profile or place.variant:
        raise UsageError(
            "a front end that is reached by its address has no region, no profile and no variants",
            remedy="leave them out",
        )
    return LoadTarget(
        place=address.place,
        secure=address.secure,
        encoding=options.encoding,
        headers=dict(options.headers),
        models=(),
        service="front-end",
    )


def _endpoint(place: EndpointPlace, options: RequestOptions) -> LoadTarget:
    if options.headers:
        raise UsageError("an endpoint of SageMaker takes no headers of its callers", remedy="leave --header out")
    require_name(place.name, "an endpoint")
    runtime = SageMakerRuntime(
        place.name, region=place.region, profile=place.profile, timeout_seconds=options.timeout_seconds
    )
    address = read_address(runtime.url(), "http")
    return LoadTarget(
        place=address.place,
        secure=address.secure,
        encoding=options.encoding,
        models=(),
        service="endpoint",
        endpoint=Endpoint(name=place.name, region=runtime.region, profile=place.profile, variant=place.variant),
    )


def check_target(target: LoadTarget, timeout_seconds: float) -> dict[str, str]:
    """Send one request to each model.

    Args:
        target: the models.
        timeout_seconds: how long an answer may take.

    Returns:
        The configuration of each model as text, where the server tells it.

    Raises:
        ServedCheckError: a model is not ready, or refuses its request; with its whole message.
        EnvironmentFault: the server is not reached, or does not answer in time.
    """
    send = _send if target.service == "triton" else _invoke
    for model in target.models:
        try:
            send(target, model, Payloads(Path(model.payloads))[0], timeout_seconds)
        except PlansmithError as error:
            raise error.located(step="loadtest") from error
    return _configurations(target) if target.service == "triton" else {}


def _invoke(target: LoadTarget, model: TargetModel, payload: Payload, timeout_seconds: float) -> None:
    """Send one invocation to an endpoint or a front end, whose errors have their own message format."""
    transport: Transport
    if target.endpoint is not None:
        endpoint = target.endpoint
        transport = RuntimeTransport(
            endpoint.name, region=endpoint.region, profile=endpoint.profile, timeout_seconds=timeout_seconds
        )
    else:
        transport = FrontEndTransport(str(target.address), timeout_seconds=timeout_seconds)
    headers = {**target.headers, **invocation_headers(target, model)}
    invocation = Invocation(payload.body, payload.headers["Content-Type"], headers)
    with closing(EndpointConnection(transport, headers=headers, attempts=1)) as connection:
        connection.send(invocation, model.model)


def _send(target: LoadTarget, model: TargetModel, payload: Payload, timeout_seconds: float) -> None:
    sender = GrpcSender(target, timeout_seconds) if target.protocol == "grpc" else PlainSender(target, timeout_seconds)
    try:
        sender.send(payload, model)
    except RequestFailed as failure:
        raise _error(target, model, failure, timeout_seconds) from failure
    finally:
        sender.close()


def _error(target: LoadTarget, model: TargetModel, failure: RequestFailed, timeout_seconds: float) -> PlansmithError:
    """Return the error of a failed request; the client's own if it is more specific, as for an unknown model."""
    if failure.kind == TIMEOUT:
        return EnvironmentFault(
            f"{model.model} at {target.address} did not answer within {timeout_seconds:g} s",
            remedy="give it more time (--timeout), or send less at once",
            transient=True,
        )
    try:
        with _connection(target, min(timeout_seconds, _CONFIG_SECONDS)) as connection:
            connection.config(model.model, model.version)
    except PlansmithError as error:
        if not failure.is_answer or _UNKNOWN_MODEL in error.message:
            return error
    kind = f"{failure.kind}: " * failure.is_answer
    return ServedCheckError(
        f"Triton at {target.address} refused a request to {model.model}: {kind}{failure.text}",
        remedy="correct what it names, or read the log of the server",
        transient=not failure.is_answer,
    )


def _configurations(target: LoadTarget) -> dict[str, str]:
    """Return the model configurations; none for a server other than Triton."""
    from google.protobuf import text_format

    configurations = {}
    with _connection(target, _CONFIG_SECONDS) as connection:
        for name, model in zip(target.names, target.models, strict=True):
            try:
                configurations[name] = text_format.MessageToString(connection.config(model.model, model.version))
            except PlansmithError:
                continue
    return configurations


def _connection(target: LoadTarget, timeout_seconds: float) -> Connection:
    return Connection(target.address, timeout_seconds=timeout_seconds, headers=target.headers)
