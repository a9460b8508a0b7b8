"""A Triton of this machine that is started for copies: what it needs, and how its memory is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.capacity.memory import ProcessMeter, memory_limit
from plansmith.capacity.plan import CapacityPlan
from plansmith.config.target.targets import load_target
from plansmith.copies.release import CopiedRelease
from plansmith.records.engine import Gpu
from plansmith.sagemaker.signatures import ServedModel
from plansmith.system.gpus import used_memory, visible_gpus
from plansmith.triton.server.installation import Installation, serving_device
from plansmith.triton.server.needs import ServerNeeds, needs_of
from plansmith.triton.server.server import TritonServer

_CPU_NOTE = "the release is for GPUs, and ran on the CPU here: there are no figures of GPU memory"
_STANDIN_NOTE = "ONNX models answered through plansmith's stand-in backend: its memory and speed are not Triton's own"


@dataclass(frozen=True)
class LocalSetup:
    """A server that has not started.

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
        """The server, which starts with its block.

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
        """Reads the memory of the server, once it runs."""
        return ProcessMeter(process.group, self.gpus, self.plan.memory_bytes, self.gpu_bytes)

    @property
    def notes(self) -> list[str]:
        """In what the server differs from what the releases are for."""
        standin = [_STANDIN_NOTE] if self.needs.site is not None else []
        is_moved = any(
            release.device == "cpu" and load_target(release.manifest.target).device == "gpu"
            for release in self.releases
        )
        return [*standin, *([_CPU_NOTE] if is_moved else [])]


def local_setup(models: Sequence[ServedModel], plan: CapacityPlan, installation: Installation) -> LocalSetup:
    """What a server of this machine needs for copies of releases.

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
