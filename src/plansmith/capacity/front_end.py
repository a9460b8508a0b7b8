"""Copies behind SageMaker's Triton front end on this machine, loaded as by a multi-model endpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from plansmith.capacity.results import CapacityPlan, Meter
from plansmith.capacity.server import CopyFolders, CopyServer, local_setup
from plansmith.copies.release import CopiedRelease, ModelFolder
from plansmith.errors import ServedCheckError
from plansmith.records.release import CONFIG_FILE
from plansmith.sagemaker.archives import ArchivePlan, plan_archives
from plansmith.sagemaker.selection import PackageRequest
from plansmith.sagemaker.signatures import ServedModel, check_example
from plansmith.sagemaker.start_script import multi_model_start
from plansmith.system.files import scratch_folder
from plansmith.triton.client.sagemaker.client import SageMakerClient
from plansmith.triton.client.sagemaker.transports import FrontEndResponse, FrontEndTransport
from plansmith.triton.config.model_config import with_cpu_instances
from plansmith.triton.repository.renamed import Content
from plansmith.triton.repository.repository import ModelRepository
from plansmith.triton.server.installation import Installation
from plansmith.triton.server.server import TritonServer


class FrontEnd(CopyServer):
    """SageMaker's front end with no model loaded, as a copy server.

    Args:
        releases: that are copied.
        meter: reads its memory.
        process: the server.
        archives: of the releases, in their order.
        folder: takes what the archives of copies unpack to.
        timeout_seconds: how long each load, unload and answer may take.
    """

    def __init__(
        self,
        releases: Sequence[CopiedRelease],
        meter: Meter,
        process: TritonServer,
        *,
        archives: Sequence[ArchivePlan],
        folder: Path,
        timeout_seconds: float,
    ) -> None:
        super().__init__(releases, meter, process)
        self.description = f"SageMaker's front end of Triton {process.version} on this machine"
        self._archives = tuple(archives)
        self._folders = CopyFolders(folder)
        self._url = f"http://{process.sagemaker_url}"
        self._timeout_seconds = timeout_seconds
        self._front_end = FrontEndTransport(self._url, timeout_seconds=timeout_seconds)

    def name(self, number: int) -> str:
        """See `CopyServer`; the name by which a request names an archive (TargetModel)."""
        return f"{self.source(number).manifest.name}-copy{number}.tar.gz"

    def write(self, number: int) -> None:
        """See `CopyServer`."""
        archive, device = self._archives[(number - 1) % len(self._archives)], self.source(number).device
        entries = {path: _on_device(path, content, device) for path, content in archive.entries.items()}
        self._folders.write(number, (ModelFolder(self.name(number), entries, archive.folders),))

    def remove(self, number: int) -> None:
        """See `CopyServer`."""
        self._folders.remove(number)

    def load(self, number: int) -> None:
        """See `CopyServer`."""
        name = self.name(number)
        _require_ok(self._front_end.load(name, self._folders.root / name), f"the load of {name}")

    def unload(self, number: int) -> None:
        """See `CopyServer`."""
        name = self.name(number)
        _require_ok(self._front_end.unload(name), f"the unload of {name}")

    def invoke(self, number: int) -> float:
        """See `CopyServer`."""
        model = self.source(number).model
        with SageMakerClient(
            "capacity",
            signature=model.signature,
            model=model.name,
            url=self._url,
            target_model=self.name(number),
            timeout_seconds=self._timeout_seconds,
        ) as client:
            return check_example(client, model).seconds


def _require_ok(response: FrontEndResponse, request: str) -> None:
    if not response.is_ok:
        raise ServedCheckError(
            f"{request} is answered with status {response.status}: {response.text}", remedy="read the log"
        )


@contextmanager
def start_front_end(
    models: Sequence[ServedModel],
    repository: ModelRepository,
    plan: CapacityPlan,
    installation: Installation,
    log: Path,
) -> Iterator[FrontEnd]:
    """Start SageMaker's front end for copies.

    It stops at the end of the block, and the files of the copies are deleted.

    Args:
        models: of releases.
        repository: has them.
        plan: how much memory it may use.
        installation: the Triton.
        log: takes what it prints.

    Raises:
        EnvironmentFault, UsageError: as of `local_setup`.
        EngineError: a release was compiled for no image of SageMaker.
        RepositoryError: a multi-model endpoint cannot serve it.
    """
    setup = local_setup(models, plan, installation)
    request = PackageRequest([release.release for release in setup.releases], multi_model=True)
    with scratch_folder("capacity") as scratch, scratch_folder("capacity-root") as root:
        archives = plan_archives(repository, request, Path(scratch))
        environment = {name: text for archive in archives for name, text in archive.archive.environment.items()}
        start = multi_model_start(environment)
        settings = {"sagemaker_port": 0, "arguments": start.arguments, "variables": start.variables}
        with setup.server(Path(root), log, **settings) as process:
            server = FrontEnd(
                setup.releases,
                setup.meter(process),
                process,
                archives=archives,
                folder=Path(scratch),
                timeout_seconds=plan.timeout_seconds,
            )
            server.notes += setup.notes
            yield server


def _on_device(path: str, content: Content, device: str) -> Content:
    """Return the model configuration with its instance groups set to the CPU if the copies run there."""
    if device != "cpu" or Path(path).name != CONFIG_FILE:
        return content
    return Content.of(with_cpu_instances(content.read_text()).encode())
