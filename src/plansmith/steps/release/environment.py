"""Environments as parts of a release: what decides them, the entry of the cache, and what a configuration says."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement

import plansmith
from plansmith.compilers.python_backend.environment.archive import write_archive
from plansmith.compilers.python_backend.environment.own_wheel import own_digest
from plansmith.compilers.python_backend.environment.platform import Platform, platform_of
from plansmith.compilers.python_backend.environment.requirements import installed_versions, read_requirements
from plansmith.compilers.python_backend.environment.wheels import Wheel, collect_wheels
from plansmith.config.target.targets import Target
from plansmith.formatting import format_bytes
from plansmith.records.environment import PackedDistribution, PackedEnvironment
from plansmith.steps.runner import StageRunner, StepResult
from plansmith.system.files import link_or_copy

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

ENVIRONMENT_FILE = "env.tar.gz"
"""The archive beside a model's config.pbtxt."""

PARAMETER = "EXECUTION_ENV_PATH"

_STEP = "environment"


@dataclass(frozen=True)
class WantedEnvironment:
    """An environment before it is packed.

    Args:
        requirements: what is asked for.
        platform: the Python and the machine that it is for.
        held: the versions of what the requirements bring along, as they are installed here.
    """

    requirements: Sequence[Requirement]
    platform: Platform
    held: Mapping[str, str]

    @property
    def parameters(self) -> dict[str, Any]:
        """All that decides it, as JSON values: for the key of the step that packs it."""
        return {
            "requirements": [str(one) for one in self.requirements],
            "python": self.platform.python,
            "machine": self.platform.machine,
            "glibc": self.platform.glibc,
            "held": dict(self.held),
            "own": own_digest() if plansmith.__name__ in self.held else "",
        }

    def pack(self, stages: StageRunner) -> StepResult[PackedEnvironment]:
        """Take it from the cache, or pack it and put it there: a part of the current step, within what that builds.

        Returns:
            The record, whose `file` lies in the folder.

        Raises:
            EnvironmentFault: a wheel cannot be got, or they do not go together.
        """

        def build(out: Path) -> PackedEnvironment:
            with tempfile.TemporaryDirectory(dir=out) as place:
                wheels = collect_wheels(self.requirements, self.platform, self.held, Path(place), stages.progress)
                stages.progress(f"packing an environment of {len(wheels)} distributions")
                unpacked_bytes = write_archive(wheels, self.platform.python, out / ENVIRONMENT_FILE)
                return self._record(wheels, out / ENVIRONMENT_FILE, unpacked_bytes)

        held = stages.entry(_STEP, [], self.parameters, build)
        assert held is not None, "a release that is built is no look"
        entry, cached = held
        record = PackedEnvironment.model_validate(entry.record)
        stages.progress(f"the environment for Python {record.python} takes {format_bytes(record.bytes)}")
        return StepResult(record, entry.folder, entry.digest, cached)

    def _record(self, wheels: Sequence[Wheel], archive: Path, unpacked_bytes: int) -> PackedEnvironment:
        return PackedEnvironment(
            file=archive.name,
            python=self.platform.python,
            machine=self.platform.machine,
            glibc=f"2.{self.platform.glibc}",
            bytes=archive.stat().st_size,
            unpacked_bytes=unpacked_bytes,
            distributions=tuple(
                PackedDistribution(name=one.name, version=one.version, wheel=one.path.name, sha256=one.sha256())
                for one in wheels
            ),
        )


def wanted_environment(requirements: str, target: Target) -> WantedEnvironment:
    """The environment of a model's requirements for a target's Triton.

    What requirements bring along comes in the versions that are installed here, where these fit.

    Args:
        requirements: the text of a requirements.txt.
        target: says which Python its Triton has; the one that runs here where it does not.

    Raises:
        EnvironmentFault: a requirement that nothing can be packed of.
    """
    asked, platform = read_requirements(requirements), platform_of(target)
    return WantedEnvironment(asked, platform, installed_versions(asked, platform))


class Packer:
    """Packs the environments of a release, each one once, and puts them beside the models that bring them.

    Args:
        stages: the compile's steps.
        wanted: by the names of the parts.
    """

    def __init__(self, stages: StageRunner, wanted: Mapping[str, WantedEnvironment]) -> None:
        self._stages = stages
        self._wanted = wanted
        self._packed: list[tuple[dict[str, Any], StepResult[PackedEnvironment]]] = []

    @property
    def parameters(self) -> dict[str, Any]:
        """All that decides them, as JSON values."""
        return {part: wanted.parameters for part, wanted in self._wanted.items()}

    def bring(self, part: str, config: pb.ModelConfig, folder: Path) -> PackedEnvironment | None:
        """Put a part's environment beside its configuration, and have it run in that.

        Args:
            part: its name.
            config: of its model.
            folder: takes config.pbtxt.

        Returns:
            Its record, whose `file` is one of the model's `support_files`; None for a part that brings none.

        Raises:
            EnvironmentFault: a wheel cannot be got, or they do not go together.
        """
        if part not in self._wanted:
            return None
        packed = self._pack(self._wanted[part])
        add_environment(config)
        place_environment(packed, folder)
        return packed.record

    def _pack(self, wanted: WantedEnvironment) -> StepResult[PackedEnvironment]:
        """Parts that need the same have one, even where the cache has no say (`--force`)."""
        parameters = wanted.parameters
        for known, packed in self._packed:
            if known == parameters:
                return packed
        self._packed.append((parameters, wanted.pack(self._stages)))
        return self._packed[-1][1]


def add_environment(config: pb.ModelConfig) -> None:
    """Have a model of the Python backend run in the archive beside its configuration (see `place_environment`)."""
    config.parameters[PARAMETER].string_value = f"$$TRITON_MODEL_DIRECTORY/{ENVIRONMENT_FILE}"


def place_environment(environment: StepResult[PackedEnvironment], folder: Path) -> str:
    """Put the archive beside a model's configuration.

    Args:
        environment: that was packed.
        folder: holds config.pbtxt.

    Returns:
        Its place there, for the model's `support_files`.
    """
    link_or_copy(environment.folder / environment.record.file, folder / ENVIRONMENT_FILE)
    return ENVIRONMENT_FILE
