"""Servers of trials: a Triton that is started for each, or one that runs already and is sent each configuration."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from plansmith.config.target.targets import load_target
from plansmith.copies.sending import send, unload, unload_leftovers
from plansmith.errors import EnvironmentFault, in_one_line
from plansmith.loadtest.server.connect import ServerPlace
from plansmith.records.release import Member, Package
from plansmith.system.files import link_or_copy, storage_errors, write_file
from plansmith.system.temporary import scratch_folder
from plansmith.system.urls import Address, read_address
from plansmith.system.urls import Protocol as RequestProtocol
from plansmith.triton.server.control.client import ModelControlClient
from plansmith.triton.server.runtime import find_serving_runtime
from plansmith.triton.server.server import TritonServer
from plansmith.tuning.builds import CompiledBuild
from plansmith.tuning.configuration import Configuration
from plansmith.tuning.trials.history import FOLDER_OPTION
from plansmith.tuning.trials.staging import stage_release
from plansmith.tuning.tuned_model import TunedModel

LOGS_FOLDER = "logs"
LOAD_SECONDS = 300.0
"""How long a model may take to load: the machine may be busy."""

_NAME_FILE = "server-name"
"""In the folder of a search: what its models are called on servers that others use, too."""


@dataclass(frozen=True)
class ServedTrial:
    """A configuration that is served.

    Attributes:
        place: the server.
        model: its name there.
        measured: the model whose batches count: of an ensemble, the model itself.
        uses_gpu: whether the memory that is measured is that of this machine's GPUs.
    """

    place: ServerPlace
    model: str
    measured: str
    uses_gpu: bool = False


class TrialServer(Protocol):
    """Serves configurations, one at a time."""

    def serve(self, build: CompiledBuild, configuration: Configuration) -> AbstractContextManager[ServedTrial]:
        """Serve a build in a configuration until the block ends.

        Raises:
            ServedCheckError, EngineError, UsageError: the configuration cannot be served.
            PlansmithError: the machine or the server is at fault.
        """
        ...


@dataclass(frozen=True)
class LocalServer:
    """Starts a Triton of this machine for each trial.

    Args:
        folder: takes logs and temporary copies.
        tritonserver: program or folder of the server; empty for that of this machine.
        protocol: of the requests.
        announce: called with what is done.
    """

    folder: Path
    tritonserver: str = ""
    protocol: RequestProtocol = "http"
    announce: Callable[[str], None] = lambda _: None

    @contextmanager
    def serve(self, build: CompiledBuild, configuration: Configuration) -> Iterator[ServedTrial]:
        """See `TrialServer`."""
        manifest, target = build.manifest, load_target(build.manifest.target)
        package, logs = manifest.package, self.folder / LOGS_FOLDER
        runtime = find_serving_runtime(
            self.tritonserver, target, manifest.engine.kind, dali=package.has_dali, parts=bool(package.members)
        )
        self.announce("starting Triton")
        with scratch_folder("served", self.folder) as scratch:
            staged = stage_release(build, configuration, runtime.device)
            for model in staged.models:
                folder = Path(scratch, model.name)
                folder.mkdir()
                model.write(folder, link_or_copy)
            descriptor, log = tempfile.mkstemp(prefix=f"{package.model}-", suffix=".triton.log", dir=logs)
            os.close(descriptor)
            parts: list[Package | Member] = [package, *package.members]
            environments = [part.environment for part in parts if part.environment is not None]
            server = TritonServer(
                Path(scratch),
                runtime.installation,
                Path(log),
                site=runtime.site,
                dali_site=runtime.dali_site,
                models=[package.model],
                arguments=package.server_arguments,
                library_folders=runtime.library_folders,
                deadline_seconds=max(runtime.load_seconds, LOAD_SECONDS),
                pythons=[environment.python for environment in environments],
            )
            with server:
                address = Address(
                    server.http_url if self.protocol == "http" else server.grpc_url,
                    secure=False,
                    protocol=self.protocol,
                )
                place = ServerPlace(address, metrics=server.metrics_url, group=server.group)
                yield ServedTrial(place, staged.name, staged.measured, uses_gpu=target.device == "gpu")
            Path(log).unlink()  # of a trial that failed, the log stays


@dataclass(frozen=True)
class RemoteServer:
    """A Triton in explicit mode that runs already, and may serve others, too: nobody tells what memory a model takes.

    Args:
        url: where it answers, in the protocol of the requests.
        name: what a model is called there.
        announce: called with what is done.
    """

    url: str
    name: str
    announce: Callable[[str], None] = lambda _: None

    @contextmanager
    def serve(self, build: CompiledBuild, configuration: Configuration) -> Iterator[ServedTrial]:
        """See `TrialServer`; what a killed process left there is unloaded first."""
        control = ModelControlClient(self.url, load_seconds=LOAD_SECONDS)
        device = load_target(build.manifest.target).device
        staged = stage_release(build, configuration, device, self.name)
        names = [model.name for model in reversed(staged.models)]
        self.announce(f"sending {build.manifest.name} to {self.url}")
        try:
            unload_leftovers(control, names, timeout_seconds=LOAD_SECONDS)
            try:
                for model in staged.models:
                    send(control, model)
                yield ServedTrial(ServerPlace(read_address(self.url)), staged.name, staged.measured)
            finally:
                unload(control, names, timeout_seconds=LOAD_SECONDS)
        except EnvironmentFault as fault:
            raise EnvironmentFault(
                f"{in_one_line(fault.message)}; it had, or was to have, {configuration.label} as {names[0]}",
                remedy="see that it runs, and run the same command again, which unloads what is left there and goes on;"
                " if this configuration ended it, leave it out (--engines, --instances)",
                log=fault.log,
            ) from fault


def make_server(model: TunedModel, protocol: RequestProtocol, announce: Callable[[str], None]) -> TrialServer:
    """The server of a model's trials: the running one that it names, or one that is started.

    Raises:
        RepositoryError: the folder of the search cannot be written.
    """
    if model.url:
        return RemoteServer(model.url, _name_on_servers(model), announce)
    return LocalServer(model.folder, model.spec.tritonserver, protocol, announce)


def _name_on_servers(model: TunedModel) -> str:
    """What a model is called on servers that others use, too: each time the same, so that nothing is left there."""
    file = model.folder / _NAME_FILE
    with storage_errors(model.folder, other=FOLDER_OPTION):
        if not file.is_file():
            write_file(file, f"plansmith-tune-{model.name}-{secrets.token_hex(4)}", replace=False)
        return file.read_text()
