"""Local mode: an endpoint's variants on SageMaker's front end of this machine's Triton, with no call to AWS.

Archives are unpacked, Triton is started by the environment of the container, multi-model variants load each archive,
and each model answers a request of its release: what SageMaker does with them, but for what AWS itself does.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from plansmith.config.targets import load_target
from plansmith.errors import PlansmithError, ServedCheckError
from plansmith.records.model import Record
from plansmith.sagemaker.archives import Archive
from plansmith.sagemaker.endpoint.desired import VariantArchives, container_environment
from plansmith.sagemaker.endpoint.spec import EndpointSpec, SmokeTest
from plansmith.sagemaker.endpoint.variant import VariantSpec
from plansmith.sagemaker.signatures import check_example, model_from_release
from plansmith.sagemaker.start_script import multi_model_start, single_model_start
from plansmith.triton.checker.archive import unpacked
from plansmith.triton.client.sagemaker.client import DEFAULT_TIMEOUT_SECONDS, EndpointConnection, SageMakerClient
from plansmith.triton.client.sagemaker.invocation import TARGET_MODEL, Invocation
from plansmith.triton.client.sagemaker.transports import FrontEndTransport
from plansmith.triton.repository.repository import ModelRepository
from plansmith.triton.server.installation import Installation
from plansmith.triton.server.needs import needs_of
from plansmith.triton.server.server import TritonServer

_READ_LOG = "read what Triton says in its log"

_START_SECONDS = 600
"""What SageMaker gives a container by default: ContainerStartupHealthCheckTimeoutInSeconds."""


class LocalResult(Record):
    """Result of an archive that was served locally and answered like its release.

    Attributes:
        variant: that serves it.
        archive: its file's name, which a request to a multi-model variant names.
        release: that was asked, MODEL@VERSION.
        load_seconds: until it was loaded; with the start of Triton, where it has one archive.
        request: what was sent.
        seconds: from the request to the answer.
        compared: whether the release holds the answer that it was compared with.
    """

    variant: str
    archive: str
    release: str
    load_seconds: float
    request: str
    seconds: float
    compared: bool


@dataclass(frozen=True)
class LocalMachine:
    """Local machine for serving endpoints.

    Attributes:
        installation: the Triton.
        logs: the folder that takes its log, one for each variant.
        progress: told what is being done.
    """

    installation: Installation
    logs: Path
    progress: Callable[[str], None]


def serve_locally(spec: EndpointSpec, archives: VariantArchives, machine: LocalMachine) -> list[LocalResult]:
    """Serve each variant of an endpoint locally in turn, and check that its models answer like their releases.

    Args:
        spec: the endpoint.
        archives: of each of its variants, which were written.
        machine: where.

    Raises:
        ServedCheckError: Triton or a model does not load, or answers wrongly; named by its variant.
        EnvironmentFault: this machine or its Triton lacks what the models need.
        UsageError: the start script would refuse a variable.
    """
    results: list[LocalResult] = []
    for variant in spec.all_variants:
        try:
            results += _serve_variant(spec, variant, archives[variant.name], machine)
        except PlansmithError as error:
            raise error.located(model=f"variant {variant.name}", log=_log(machine, spec, variant)) from error
    return results


@dataclass(frozen=True)
class _Running:
    """Running variant, with a responding front end.

    Attributes:
        variant: the variant.
        address: host and port.
        repository: has the releases.
        progress: told what is being done.
    """

    variant: VariantSpec
    address: str
    repository: ModelRepository
    progress: Callable[[str], None]

    def load(self, name: str, folder: Path) -> float:
        """Load an archive into a multi-model variant; return the seconds it took.

        Raises:
            ServedCheckError: it does not load.
        """
        self.progress(f"{self.variant.name}: loading {name}")
        began = time.monotonic()
        answer = _front_end(self.address).load(name, folder)
        if not answer.is_ok:
            raise ServedCheckError(f"{name} does not load: {answer.text} (status {answer.status})", remedy=_READ_LOG)
        return time.monotonic() - began

    def ask(self, archive: Archive, load_seconds: float) -> LocalResult:
        """Send a request of a model's release to it.

        Raises:
            ServedCheckError: the answer is not the release's.
        """
        release, name = archive.releases[0], _name(archive)
        self.progress(f"{self.variant.name}: asking {name}")
        model = model_from_release(self.repository, release)
        with SageMakerClient(
            self.variant.name,
            signature=model.signature,
            model=archive.default_model,
            url=f"http://{self.address}",
            target_model=name if self.variant.multi_model else "",
        ) as client:
            result = check_example(client, model)
        return LocalResult(
            variant=self.variant.name,
            archive=name,
            release=release,
            load_seconds=round(load_seconds, 3),
            request=result.request,
            seconds=result.seconds,
            compared=result.compared,
        )

    def send(self, smoke_test: SmokeTest, archive: Archive) -> None:
        """Send a model the request that the endpoint's file names.

        Raises:
            ServedCheckError: it is refused, or answered with nothing.
        """
        self.progress(f"{self.variant.name}: sending {smoke_test.body}")
        headers = {TARGET_MODEL: _name(archive)} if self.variant.multi_model else {}
        transport = FrontEndTransport(f"http://{self.address}", timeout_seconds=DEFAULT_TIMEOUT_SECONDS)
        with closing(EndpointConnection(transport, headers=headers)) as connection:
            invocation = Invocation(Path(smoke_test.body).read_bytes(), smoke_test.content_type, headers)
            answer = connection.send(invocation, archive.default_model)
        if not answer.body:
            raise ServedCheckError(
                f"{smoke_test.body} is answered with nothing", remedy="see that the file is a request of the model"
            )


def _serve_variant(
    spec: EndpointSpec, variant: VariantSpec, archives: Sequence[Archive], machine: LocalMachine
) -> list[LocalResult]:
    environment = container_environment(variant, archives)
    repository = ModelRepository(Path(spec.repository))
    manifests = [repository.manifest(*repository.find(release)) for item in archives for release in item.releases]
    needs = needs_of(machine.installation, load_target(manifests[0].target), manifests)
    with ExitStack() as stack:
        folders = {_name(archive): stack.enter_context(unpacked(Path(archive.file))) for archive in archives}
        if variant.multi_model:
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="plansmith-sagemaker-")))
            start = multi_model_start(environment)
        else:
            root = folders[_name(archives[0])]
            start = single_model_start(root, environment)
        machine.progress(f"{variant.name}: starting Triton")
        began = time.monotonic()
        server = stack.enter_context(
            TritonServer(
                root,
                machine.installation,
                _log(machine, spec, variant),
                site=needs.site,
                dali_site=needs.dali_site,
                models=(),
                deadline_seconds=variant.startup_seconds or _START_SECONDS,
                sagemaker_port=0,
                arguments=start.arguments,
                variables=start.variables,
                pythons=needs.pythons,
            )
        )
        running = _Running(variant, server.sagemaker_url, repository, machine.progress)
        _require_ping(running.address)
        seconds = dict.fromkeys(folders, time.monotonic() - began)
        if variant.multi_model:
            seconds = {name: running.load(name, folder) for name, folder in folders.items()}
        results = [running.ask(archive, seconds[_name(archive)]) for archive in archives]
        if spec.smoke_test and spec.smoke_test.body and variant in spec.variants:
            running.send(spec.smoke_test, archives[0])
        return results


def _require_ping(address: str) -> None:
    """Check that SageMaker's health check would pass for the container."""
    answer = _front_end(address).ping()
    if not answer.is_ok:
        raise ServedCheckError(f"/ping is answered with status {answer.status}: {answer.text}", remedy=_READ_LOG)


def _front_end(address: str) -> FrontEndTransport:
    return FrontEndTransport(f"http://{address}", timeout_seconds=_START_SECONDS)


def _name(archive: Archive) -> str:
    return Path(archive.file).name


def _log(machine: LocalMachine, spec: EndpointSpec, variant: VariantSpec) -> Path:
    return machine.logs / f"{spec.name}-{variant.name}.log"
