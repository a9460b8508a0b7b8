"""Trial servers: a Triton started per trial, or a running one that is sent each configuration."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from plansmith.config.targets import load_target
from plansmith.copies.release import ModelFolder, send, unload, unload_leftovers
from plansmith.errors import EnvironmentFault, UsageError, in_one_line
from plansmith.loadtest.connect import ServerPlace
from plansmith.records.model import Device
from plansmith.records.pipeline import MODEL_PART
from plansmith.records.release import CONFIG_FILE, Member, Package
from plansmith.system.files import link_or_copy, scratch_folder, storage_errors, write_file
from plansmith.system.urls import Address, read_address
from plansmith.system.urls import Protocol as RequestProtocol
from plansmith.triton.config.model_config import parse_config, text_of
from plansmith.triton.repository.renamed import Content
from plansmith.triton.server.control import ModelControlClient
from plansmith.triton.server.runtime import find_serving_runtime
from plansmith.triton.server.server import TritonServer
from plansmith.tuning.builds import CompiledBuild, TunedModel
from plansmith.tuning.configuration import Configuration
from plansmith.tuning.trials.history import FOLDER_OPTION

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

LOGS_FOLDER = "logs"
LOAD_SECONDS = 300.0
"""How long a model may take to load: the machine may be busy."""

_NAME_FILE = "server-name"
"""In the folder of a search: what its models are called on servers that others use, too."""


@dataclass(frozen=True)
class StagedRelease:
    """A release staged with another configuration.

    Attributes:
        models: members of an ensemble or script before itself.
        measured: the name of the model itself, which of an ensemble is a member: its batches count.
    """

    models: tuple[ModelFolder, ...]
    measured: str

    @property
    def name(self) -> str:
        """The name of the model that receives the requests."""
        return self.models[-1].name


def stage_release(build: CompiledBuild, configuration: Configuration, device: Device, name: str = "") -> StagedRelease:
    """Stage a release with another configuration.

    What asks the model in an ensemble takes no larger batches than the model does.

    Args:
        build: has the release.
        configuration: to serve it in.
        device: on which it is served.
        name: what to call it; as the release when empty.

    Raises:
        UsageError: the model does not take the batch size.
        RepositoryError: the release is damaged.
    """
    manifest = build.manifest
    models = build.copy(device, name)
    parts = [member.part for member in manifest.package.members]
    measured = models[parts.index(MODEL_PART) if MODEL_PART in parts else -1].name
    configs = {model.name: parse_config(model.files[CONFIG_FILE].read_text()) for model in models}
    own, config = configs[models[-1].name], configs[measured]
    largest = config.max_batch_size
    if configuration.max_batch_size > largest or (largest and not configuration.max_batch_size):
        raise UsageError(
            f"{manifest.name} was compiled for batches of up to {largest}, and cannot be served with"
            f" {configuration.max_batch_size}",
            remedy="compile it with larger shapes",
        )
    configuration.apply_to(config)
    drop_larger_batches(config)
    if config is not own and 0 < config.max_batch_size < own.max_batch_size:
        own.max_batch_size = config.max_batch_size
        drop_larger_batches(own)
    own.version_policy.latest.num_versions = 1
    return StagedRelease(tuple(_with_config(models, configs)), measured)


def drop_larger_batches(config: pb.ModelConfig) -> None:
    """Remove preferred batch sizes and warmup samples above the largest batch, which Triton refuses.

    Rule: ValidateModelConfig in core/src/model_config_utils.cc of Triton.
    """
    largest = config.max_batch_size
    if config.HasField("dynamic_batching"):
        preferred = [size for size in config.dynamic_batching.preferred_batch_size if size <= largest]
        config.dynamic_batching.preferred_batch_size[:] = preferred
    samples = [sample for sample in config.model_warmup if sample.batch_size <= max(largest, 1)]
    del config.model_warmup[:]
    config.model_warmup.extend(samples)


def _with_config(models: Sequence[ModelFolder], configs: dict[str, pb.ModelConfig]) -> list[ModelFolder]:
    return [
        replace(model, files={**model.files, CONFIG_FILE: Content.of(text_of(configs[model.name]).encode())})
        for model in models
    ]


@dataclass(frozen=True)
class ServedTrial:
    """A configuration that is being served.

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
    """Trial server: serves one configuration at a time."""

    def serve(self, build: CompiledBuild, configuration: Configuration) -> AbstractContextManager[ServedTrial]:
        """Serve a configuration of a build for the block.

        Raises:
            ServedCheckError, EngineError, UsageError: the configuration cannot be served.
            PlansmithError: the machine or the server is at fault.
        """
        ...


@dataclass(frozen=True)
class LocalServer:
    """Local server: starts a Triton on this machine for each trial.

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
    """Remote server: a running Triton in explicit mode, possibly shared, that does not report a model's memory.

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
        """See `TrialServer`; first unloads what a killed process left there."""
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
    """Return the server of a model's trials: the running one that it names, or a local one.

    Raises:
        RepositoryError: the folder of the search cannot be written.
    """
    if model.url:
        return RemoteServer(model.url, _name_on_servers(model), announce)
    return LocalServer(model.folder, model.spec.tritonserver, protocol, announce)


def _name_on_servers(model: TunedModel) -> str:
    """The model's name on shared servers: the same each time, so that no stale models remain there."""
    file = model.folder / _NAME_FILE
    with storage_errors(model.folder, alternative=FOLDER_OPTION):
        if not file.is_file():
            write_file(file, f"plansmith-tune-{model.name}-{secrets.token_hex(4)}", replace=False)
        return file.read_text()
