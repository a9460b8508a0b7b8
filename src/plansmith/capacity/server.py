"""Servers that take copies: what the measurement needs of them, and a Triton in explicit mode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from plansmith.capacity.folders import CopyFolders
from plansmith.capacity.local import local_setup
from plansmith.capacity.memory import Meter
from plansmith.capacity.plan import CapacityPlan
from plansmith.copies.release import CopiedRelease, ModelFolder
from plansmith.copies.sending import unload
from plansmith.errors import PlansmithError
from plansmith.records.model import Device
from plansmith.sagemaker.examples import check_example
from plansmith.sagemaker.signatures import ServedModel
from plansmith.system.temporary import scratch_folder
from plansmith.triton.client import Client
from plansmith.triton.server.control.client import ModelControlClient
from plansmith.triton.server.installation import Installation
from plansmith.triton.server.server import TritonServer

_DEATH_SECONDS = 1


class CopyServer(ABC):
    """A server that takes copies of releases in turn, numbered from 1.

    Args:
        releases: that are copied.
        meter: reads its memory.
        process: the server, where it was started here; None for a running one.

    Attributes:
        description: of the server.
        notes: what a reader of its figures has to know.
    """

    def __init__(self, releases: Sequence[CopiedRelease], meter: Meter, process: TritonServer | None) -> None:
        self.releases = tuple(releases)
        self.meter = meter
        self.description = ""
        self.notes: list[str] = []
        self._process = process

    def source(self, number: int) -> CopiedRelease:
        """The release of which a copy is one."""
        return self.releases[(number - 1) % len(self.releases)]

    @property
    def device(self) -> Device:
        """On which the copies run."""
        return "gpu" if any(release.device == "gpu" for release in self.releases) else "cpu"

    @property
    def is_started(self) -> bool:
        """Whether it was started for the copies, and ends with them."""
        return self._process is not None

    def death(self) -> PlansmithError | None:
        """Why a server that was started here ended; None while it runs."""
        status = self._process.wait(_DEATH_SECONDS) if self._process is not None else None
        return None if status is None or self._process is None else self._process.obituary(status, "while it was asked")

    @abstractmethod
    def name(self, number: int) -> str:
        """Of a copy on the server."""

    @abstractmethod
    def write(self, number: int) -> None:
        """Put the files of a copy where the server reads them.

        Raises:
            DiskFull: they do not fit.
        """

    @abstractmethod
    def remove(self, number: int) -> None:
        """Remove the files of a copy that is not loaded."""

    @abstractmethod
    def load(self, number: int) -> None:
        """Load a copy, and wait for that; raises PlansmithError where it does not load."""

    @abstractmethod
    def unload(self, number: int) -> None:
        """Unload a copy, and wait until it is gone; raises PlansmithError where the server refuses."""

    @abstractmethod
    def invoke(self, number: int) -> float:
        """Seconds until a loaded copy has answered; raises PlansmithError where the answer is wrong."""


class ExplicitTriton(CopyServer):
    """A Triton in explicit mode.

    Args:
        releases: that are copied.
        meter: reads its memory.
        process: as for `CopyServer`.
        url: where it answers.
        timeout_seconds: how long each load, unload and answer may take.
    """

    def __init__(
        self,
        releases: Sequence[CopiedRelease],
        meter: Meter,
        process: TritonServer | None,
        *,
        url: str,
        timeout_seconds: float,
    ) -> None:
        super().__init__(releases, meter, process)
        self.control = ModelControlClient(url, load_seconds=timeout_seconds)
        self.models: dict[int, tuple[ModelFolder, ...]] = {}
        self._timeout_seconds = timeout_seconds

    def name(self, number: int) -> str:
        """See `CopyServer`."""
        return f"{self.source(number).manifest.name}-copy{number}"

    def write(self, number: int) -> None:
        """See `CopyServer`."""
        self.models[number] = self.source(number).copy(self.name(number))

    def unload(self, number: int) -> None:
        """See `CopyServer`."""
        names = [model.name for model in reversed(self.models[number])]
        unload(self.control, names, timeout_seconds=self._timeout_seconds)

    def invoke(self, number: int) -> float:
        """See `CopyServer`."""
        model = self.source(number).model
        return invoke_triton(self.control.url, model, self.name(number), timeout_seconds=self._timeout_seconds)


class FolderTriton(ExplicitTriton):
    """A Triton that reads the folder of the copies.

    Args:
        releases: that are copied.
        meter: reads its memory.
        process: the server.
        url: where it answers.
        folder: of the copies, its repository.
        timeout_seconds: how long each load, unload and answer may take.
    """

    def __init__(
        self,
        releases: Sequence[CopiedRelease],
        meter: Meter,
        process: TritonServer,
        *,
        url: str,
        folder: Path,
        timeout_seconds: float,
    ) -> None:
        super().__init__(releases, meter, process, url=url, timeout_seconds=timeout_seconds)
        self._folders = CopyFolders(folder)

    def write(self, number: int) -> None:
        """See `CopyServer`."""
        super().write(number)
        self._folders.write(number, self.models[number])

    def remove(self, number: int) -> None:
        """See `CopyServer`."""
        self._folders.remove(number)

    def load(self, number: int) -> None:
        """See `CopyServer`; of a script the models that it asks are loaded first."""
        *members, own = self.models[number]
        for model in (*(members if self.source(number).is_script else ()), own):
            self.control.change("load", model.name)


def invoke_triton(url: str, model: ServedModel, name: str, *, timeout_seconds: float) -> float:
    """Send the example of a release to its copy, and check the answer.

    Args:
        url: of the server.
        model: of the release.
        name: of the copy.
        timeout_seconds: how long it may take.

    Returns:
        The seconds until the answer.

    Raises:
        ServedCheckError: it is wrong, or refused.
        EnvironmentFault: the server is not reached, or not in time.
    """
    assert model.manifest is not None
    package = model.manifest.package
    with Client(
        url,
        model=name,
        protocol="http" if url.startswith("http") else "grpc",
        interface=package.interface,
        max_batch_size=package.max_batch_size,
        decoupled=package.decoupled,
        timeout_seconds=timeout_seconds,
    ) as client:
        return check_example(client, model).seconds


@contextmanager
def start_triton(
    models: Sequence[ServedModel], plan: CapacityPlan, installation: Installation, log: Path
) -> Iterator[FolderTriton]:
    """Start a Triton for copies; it ends with the block, and their files go with it.

    Args:
        models: of releases.
        plan: how much memory it may use.
        installation: the Triton.
        log: takes what it prints.

    Raises:
        EnvironmentFault, UsageError, EngineError: as of `local_setup`.
    """
    setup = local_setup(models, plan, installation)
    with (
        scratch_folder("capacity") as scratch,
        setup.server(Path(scratch), log, arguments=setup.needs.arguments) as process,
    ):
        server = FolderTriton(
            setup.releases,
            setup.meter(process),
            process,
            url=f"grpc://{process.grpc_url}",
            folder=Path(scratch),
            timeout_seconds=plan.timeout_seconds,
        )
        server.description = f"Triton {process.version} on this machine"
        server.notes += setup.notes
        yield server
