"""Copy servers: the interface that the measurement needs, and a Triton server in explicit mode."""

from __future__ import annotations

import errno
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.capacity.results import CapacityPlan, Meter, ProcessMeter, memory_limit
from plansmith.config.targets import load_target
from plansmith.copies.release import CopiedRelease, ModelFolder, unload
from plansmith.errors import EnvironmentFault, PlansmithError
from plansmith.formatting import format_bytes
from plansmith.records.engine import Gpu
from plansmith.records.model import Device
from plansmith.sagemaker.signatures import ServedModel, check_example
from plansmith.system.files import scratch_folder
from plansmith.system.gpus import used_memory, visible_gpus
from plansmith.triton.client import Client
from plansmith.triton.server.control import ModelControlClient
from plansmith.triton.server.installation import Installation, serving_device
from plansmith.triton.server.needs import ServerNeeds, needs_of
from plansmith.triton.server.server import TritonServer

RESERVED_DISK_BYTES = 2**30
"""Of a disk, left to others."""

_CPU_NOTE = "the release is for GPUs, and ran on the CPU here: there are no figures of GPU memory"
_STANDIN_NOTE = "ONNX models answered through plansmith's stand-in backend: its memory and speed are not Triton's own"
_DEATH_SECONDS = 1


class DiskFull(Exception):
    """Disk full: the files of one more copy do not fit; the message says how much is left."""


class CopyFolders:
    """Copy folders on a local disk.

    Args:
        root: holds them.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._folders: dict[int, list[Path]] = {}

    def write(self, number: int, models: tuple[ModelFolder, ...]) -> None:
        """Write the folders of a copy, unless they exist.

        Raises:
            DiskFull: they do not fit.
            EnvironmentFault: a folder of that name is there already, or cannot be written.
        """
        if number in self._folders:
            return
        size = sum(model.size for model in models)
        free = shutil.disk_usage(self.root).free
        if free - size < RESERVED_DISK_BYTES:
            raise DiskFull(
                f"{format_bytes(free)} are left in {self.root}, a copy takes {format_bytes(size)}, and"
                f" {format_bytes(RESERVED_DISK_BYTES)} are reserved"
            )
        self._folders[number] = []
        try:
            for model in models:
                folder = self.root / model.name
                folder.mkdir()
                self._folders[number].append(folder)
                model.write(folder)
        except OSError as error:
            self.remove(number)
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise DiskFull(f"{self.root}: {error.strerror}") from error
            raise EnvironmentFault(
                f"copies cannot be written to {self.root}: {error.strerror}",
                remedy="see that the folder can be written, and that nothing of that name is in it",
            ) from error

    def remove(self, number: int) -> None:
        """Remove the folders of a copy, if they exist."""
        for folder in self._folders.pop(number, []):
            shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class LocalSetup:
    """Local server setup, not started yet.

    Attributes:
        installation: the Triton.
        plan: how much memory it may use.
        releases: with the device on which it runs each.
        needs: of the releases.
        gpus: on which they run.
        gpu_bytes: of each GPU in use before the server starts.
        limit_bytes: of host memory for the server; None for no limit.
    """

    installation: Installation
    plan: CapacityPlan
    releases: tuple[CopiedRelease, ...]
    needs: ServerNeeds
    gpus: tuple[Gpu, ...]
    gpu_bytes: tuple[int, ...]
    limit_bytes: int | None

    def server(self, folder: Path, log: Path, **settings: Any) -> TritonServer:
        """Return the server, which starts with its block.

        Args:
            folder: its repository.
            log: takes what it prints.
            settings: further ones of `TritonServer`.
        """
        return TritonServer(
            folder,
            self.installation,
            log,
            site=self.needs.site,
            dali_site=self.needs.dali_site,
            models=(),
            deadline_seconds=self.plan.timeout_seconds,
            memory_bytes=self.limit_bytes,
            pythons=self.needs.pythons,
            **settings,
        )

    def meter(self, process: TritonServer) -> ProcessMeter:
        """Return the memory meter of the running server."""
        return ProcessMeter(process.group, self.gpus, self.plan.memory_bytes, self.gpu_bytes)

    @property
    def notes(self) -> list[str]:
        """Differences between the server and the one that the releases target."""
        standin = [_STANDIN_NOTE] if self.needs.site is not None else []
        is_moved = any(
            release.device == "cpu" and load_target(release.manifest.target).device == "gpu"
            for release in self.releases
        )
        return [*standin, *([_CPU_NOTE] if is_moved else [])]


def local_setup(models: Sequence[ServedModel], plan: CapacityPlan, installation: Installation) -> LocalSetup:
    """Set up a local server for copies of releases.

    Raises:
        EnvironmentFault: this machine or its Triton lacks what the releases need, or the kernel does not tell memory.
        UsageError: more memory is stated than there is.
        EngineError: nothing says which ONNX Runtime, or which DALI, the target has.
    """
    limit = memory_limit(plan.memory_bytes)
    releases = tuple(_on_device(model, installation) for model in models)
    manifests = [release.manifest for release in releases]
    needs = needs_of(installation, load_target(manifests[0].target), manifests)
    gpus = tuple(visible_gpus()) if any(release.device == "gpu" for release in releases) else ()
    return LocalSetup(installation, plan, releases, needs, gpus, tuple(used_memory(gpus)), limit)


def _on_device(model: ServedModel, installation: Installation) -> CopiedRelease:
    assert model.manifest is not None
    target = load_target(model.manifest.target)
    return CopiedRelease(model, serving_device(installation, target, model.manifest.engine.kind))


class CopyServer(ABC):
    """Copy server: takes copies of the releases in turn, numbered from 1.

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
        """Return the release that a copy was made of."""
        return self.releases[(number - 1) % len(self.releases)]

    @property
    def device(self) -> Device:
        """The device that the copies run on."""
        return "gpu" if any(release.device == "gpu" for release in self.releases) else "cpu"

    @property
    def is_started(self) -> bool:
        """Whether the server was started for the copies and stops with them."""
        return self._process is not None

    def death(self) -> PlansmithError | None:
        """Return why a server started here ended; None while it runs."""
        status = self._process.wait(_DEATH_SECONDS) if self._process is not None else None
        return None if status is None or self._process is None else self._process.obituary(status, "while it was asked")

    @abstractmethod
    def name(self, number: int) -> str:
        """Return the name of a copy on the server."""

    @abstractmethod
    def write(self, number: int) -> None:
        """Write the files of a copy to where the server reads them.

        Raises:
            DiskFull: they do not fit.
        """

    @abstractmethod
    def remove(self, number: int) -> None:
        """Remove the files of a copy that is not loaded."""

    @abstractmethod
    def load(self, number: int) -> None:
        """Load a copy and wait for it; raises PlansmithError if it does not load."""

    @abstractmethod
    def unload(self, number: int) -> None:
        """Unload a copy and wait until it is gone; raises PlansmithError if the server refuses."""

    @abstractmethod
    def invoke(self, number: int) -> float:
        """Invoke a loaded copy and return the seconds it took; raises PlansmithError if the answer is wrong."""


class ExplicitTriton(CopyServer):
    """Triton server in explicit model control mode.

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
    """Triton server that reads the folder of the copies.

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
        """See `CopyServer`; for a script, the companion models are loaded first."""
        *members, own = self.models[number]
        for model in (*(members if self.source(number).is_script else ()), own):
            self.control.change("load", model.name)


def invoke_triton(url: str, model: ServedModel, name: str, *, timeout_seconds: float) -> float:
    """Send the example request of a release to its copy and check the answer.

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
    """Start a Triton server for copies; it stops at the end of the block, and the files of the copies are deleted.

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
