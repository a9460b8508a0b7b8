"""Load test targets: a Triton server started for the test, a running one, or a SageMaker endpoint."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.errors import RepositoryError, UsageError

if TYPE_CHECKING:
    from plansmith.cli.loadtest.plan import RequestedTest
    from plansmith.loadtest.connect import EndpointPlace, PreparedTarget, ServerPlace
    from plansmith.loadtest.payloads.source import KnownModel
    from plansmith.loadtest.runner.processes import RemoteWorkers
    from plansmith.sagemaker.signatures import ServedModel


_SCHEMES = ("http://", "https://", "grpc://", "grpcs://")
_SPEC_SUFFIXES = {".yaml", ".yml"}
_ENDPOINT_OPTIONS = ("target_models", "target_variant", "region", "profile", "interface")

# The paths of SageMaker's front end: github.com/triton-inference-server/server, src/sagemaker_server.cc.
_FRONT_END = re.compile(r"(https?://.+?)/(?:invocations|models/([^/]+)/invoke)/?")


@dataclass(frozen=True)
class RequestedTarget:
    """Requested target of a load test.

    Attributes:
        names: the models, each MODEL[@VERSION][=WEIGHT].
        url: of a running Triton; empty otherwise.
        endpoint: of SageMaker, or a front end; None otherwise.
        repository: has the releases.
    """

    names: tuple[str, ...]
    url: str
    endpoint: EndpointPlace | None
    repository: Path

    @property
    def label(self) -> str:
        """The server's label; empty if one is started."""
        if self.endpoint is None:
            return self.url
        if self.endpoint.url:
            return f"the front end at {self.endpoint.url}"
        return f"endpoint {self.endpoint.name}" + f" in {self.endpoint.region}" * bool(self.endpoint.region)


def read_target(models: Sequence[str], options: dict[str, Any]) -> RequestedTarget:
    """Read the requested target; values from a URL or endpoint file are added to the options.

    Raises:
        UsageError: two servers, options that contradict each other, or a file that cannot be read.
    """
    url, names = _url_and_models(options["url"], models)
    options["url"] = url
    front_end = _FRONT_END.fullmatch(url)
    if not (options["endpoint"] or front_end):
        wrong = [name for name in _ENDPOINT_OPTIONS if options[name]]
        if wrong:
            option = wrong[0].replace("_", "-").removesuffix("s")
            raise UsageError(f"--{option} goes with --endpoint", remedy="name the endpoint: --endpoint NAME")
        return RequestedTarget(names, url, None, options["repository"])
    if options["metrics"] or options["protocol"] == "grpc":
        option = "--metrics" if options["metrics"] else "--protocol grpc"
        raise UsageError(f"an endpoint of SageMaker has no {option[2:]}", remedy=f"leave {option} out")
    if front_end is not None:
        url, target_model = front_end[1], front_end[2]
        options["target_models"] = options["target_models"] or ((target_model,) if target_model else ())
    place = _endpoint_place(options, url)
    target = RequestedTarget(names, "", place, options["repository"])
    return _of_file(target, Path(options["endpoint"])) if _is_file(options["endpoint"]) else target


def known_models(target: RequestedTarget, test: RequestedTest, options: Mapping[str, Any]) -> list[KnownModel]:
    """Return known facts of the models behind an endpoint: from their releases, or from a file.

    Raises:
        UsageError: the file cannot be read, or stands for several models.
        RepositoryError: there is no such release.
    """
    from plansmith.loadtest.payloads.source import KnownModel

    if options["interface"] is not None and len(test.models) > 1:
        raise UsageError("--interface tells of one model", remedy="test one model, or name releases of --repository")
    served = [
        _served_model(options["interface"]) if options["interface"] is not None else _released(target, share.model)
        for share in test.models
    ]
    return [
        KnownModel(model.signature, model.manifest, model.folder, model.manifest.package if model.manifest else None)
        for model in served
    ]


@contextmanager
def prepared(
    target: RequestedTarget, test: RequestedTest, options: Mapping[str, Any], folder: Path, *, quiet: bool
) -> Iterator[PreparedTarget]:
    """Prepare the target for its test; a started server stops at the end of the block."""
    from plansmith.loadtest.connect import prepare_endpoint, prepare_target

    if target.endpoint is not None:
        models = list(zip(test.models, known_models(target, test, options), strict=True))
        with prepare_endpoint(models, target.endpoint, test.options, folder) as ready:
            yield ready
        return
    with (
        _server(target, test, options, quiet=quiet) as place,
        prepare_target(test.models, place, test.options, folder) as ready,
    ):
        yield ready


def opened_repository(target: RequestedTarget, test: RequestedTest, options: Mapping[str, Any]) -> Any:
    """Open the repository, which exposes all models of the test in their versions."""
    from plansmith.cli.serve.temporary import opened_model

    if options["metrics"]:
        raise UsageError("--metrics goes with --url", remedy="leave it out")
    manifests = []
    for share in test.models:
        opened, manifest = opened_model(target.repository, share.name, share.version)
        manifests.append(manifest)
    if None in manifests:
        name = test.models[manifests.index(None)].name
        raise RepositoryError(f"{name} is no release of plansmith", remedy="serve it, and pass --url")
    return opened


def _url_and_models(url: str | None, models: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return the server URL, empty if a server is to be started, and the models; one URL may name both."""
    urls = [model for model in models if model.startswith(_SCHEMES)]
    if not urls:
        return url or "", tuple(models)
    if url or len(urls) > 1:
        raise UsageError(f"{urls[-1]} and {url or urls[0]} are two servers", remedy="name one")
    address, separator, rest = urls[0].partition("/v2/models/")
    named = [rest.strip("/").replace("/versions/", "@")] if separator else []
    return address, (*named, *(model for model in models if model not in urls))


def _endpoint_place(options: Mapping[str, Any], url: str) -> EndpointPlace:
    from plansmith.loadtest.connect import EndpointPlace

    return EndpointPlace(
        name=options["endpoint"] or "",
        region=options["region"],
        profile=options["profile"],
        variant=options["target_variant"],
        url=url,
    )


def _is_file(endpoint: str | None) -> bool:
    return endpoint is not None and Path(endpoint).suffix in _SPEC_SUFFIXES


def _of_file(target: RequestedTarget, path: Path) -> RequestedTarget:
    """Return the target with name, region and repository of the endpoint file, and its models if none is named."""
    from plansmith.sagemaker.endpoint.loader import read_endpoint

    assert target.endpoint is not None
    spec = read_endpoint(path)
    region = target.endpoint.region or ("" if target.endpoint.url else spec.region)
    releases = dict.fromkeys(model for variant in spec.variants for model in variant.models)
    return replace(
        target,
        names=target.names or tuple(releases),
        endpoint=replace(target.endpoint, name=spec.name, region=region),
        repository=target.repository if _is_typed("repository") else Path(spec.repository),
    )


def _served_model(path: Path) -> ServedModel:
    from plansmith.sagemaker.signatures import model_from_archive, model_from_file

    return model_from_archive(path) if path.name.endswith(".tar.gz") else model_from_file(path)


def _released(target: RequestedTarget, release: str) -> ServedModel:
    from plansmith.sagemaker.signatures import model_from_release
    from plansmith.triton.repository.repository import ModelRepository

    return model_from_release(ModelRepository(target.repository), release)


@contextmanager
def _server(
    target: RequestedTarget, test: RequestedTest, options: Mapping[str, Any], *, quiet: bool
) -> Iterator[ServerPlace]:
    """Yield the running server, or one that is started for the test."""
    from plansmith.cli.serve.temporary import served
    from plansmith.loadtest.connect import ServerPlace
    from plansmith.system.urls import Address, read_address
    from plansmith.triton.repository.repository import ModelRepository

    if target.url:
        address = read_address(target.url, test.options.protocol)
        repository = ModelRepository(target.repository) if _is_typed("repository") else None
        yield ServerPlace(address, metrics=options["metrics"], repository=repository)
        return
    opened = opened_repository(target, test, options)
    protocol = test.options.protocol or "http"
    with served(opened, [share.name for share in test.models], purpose="the load test", quiet=quiet) as server:
        place = server.http_url if protocol == "http" else server.grpc_url
        address = Address(place, secure=False, protocol=protocol)
        yield ServerPlace(address, metrics=server.metrics_url, group=server.group, repository=opened)


def _is_typed(name: str) -> bool:
    """Whether an option was given explicitly rather than left at its default."""
    source = click.get_current_context().get_parameter_source(name)
    return source is not click.core.ParameterSource.DEFAULT


def read_workers(target: RequestedTarget, test: RequestedTest, options: Mapping[str, Any]) -> RemoteWorkers | None:
    """Read the remote workers that the test waits for; None for none.

    Raises:
        UsageError: options that contradict each other, or a server that workers cannot reach.
    """
    from plansmith.loadtest.runner.processes import RemoteWorkers, read_place

    count = options["expect_workers"]
    if count is None:
        if options["listen"]:
            raise UsageError("--listen goes with --expect-workers", remedy="say how many: --expect-workers 3")
        return None
    if not target.label:
        raise UsageError(
            "a Triton that is started for the test answers on this machine alone, and workers are on others",
            remedy="serve the model where they reach it (plansmith serve), and name its --url",
        )
    if test.plan.processes > 1:
        raise UsageError(
            "the load comes from the workers, and --processes from this machine",
            remedy="leave it out here, and pass it to the workers: plansmith loadtest --worker HOST:PORT --processes 4",
        )
    if not options["listen"]:
        return RemoteWorkers(count=count)
    host, port = read_place(options["listen"], "--listen")
    return RemoteWorkers(count=count, host=host, port=port)


def show_workers(workers: RemoteWorkers | None, *, quiet: bool) -> None:
    """Report the remote workers that the test waits for, and the command to run there."""
    if workers is not None and not quiet:
        click.echo(
            f"waiting for {workers.count} worker{'s' * (workers.count > 1)} at {workers.host}:{workers.port}; on the"
            f" other machines: plansmith loadtest --worker HOST:{workers.port}",
            err=True,
        )


def run_worker(models: tuple[str, ...], options: Mapping[str, Any]) -> None:
    """Run as a worker of another machine's test until it ends.

    Raises:
        UsageError: models, or no address.
        EnvironmentFault: the driver is not reached, or is lost.
    """
    from plansmith.loadtest.runner.load_runner import require_locust
    from plansmith.loadtest.runner.processes import read_place, run_workers

    if models or options["expect_workers"] or options["plan"] is not None:
        raise UsageError(
            "a worker gets models and load from the machine that leads the test", remedy="pass --worker alone"
        )
    require_locust()
    host, port = read_place(options["worker"], "--worker")
    quiet = options["quiet"]
    with terminable():
        run_workers(
            host, port, options["processes"] or 1, progress=lambda line: None if quiet else click.echo(line, err=True)
        )


@contextmanager
def terminable() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C within the block: measured results are still reported."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
