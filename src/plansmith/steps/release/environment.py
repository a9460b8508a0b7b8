"""Packed environments of a release: their inputs, their cache entry, and their configuration parameters."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.config.spec import ModelSpec
from plansmith.config.targets import Target
from plansmith.formatting import format_bytes
from plansmith.records.model import EngineKind
from plansmith.records.pipeline import MODEL_PART
from plansmith.records.release import PackedEnvironment
from plansmith.steps.artifacts import CompiledModel
from plansmith.steps.runner import StageRunner, StepResult
from plansmith.system.files import link_or_copy
from plansmith.triton.config.ensemble import part_name

if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from tritonclient.grpc import model_config_pb2 as pb

    from plansmith.compilers.python_backend.environment.wheels import Platform


ENVIRONMENT_FILE = "env.tar.gz"
"""The archive beside a model's config.pbtxt."""

PARAMETER = "EXECUTION_ENV_PATH"

_STEP = "environment"


@dataclass(frozen=True)
class WantedEnvironment:
    """Wanted environment, not packed yet.

    Args:
        requirements: what is asked for.
        platform: the Python and the machine that it is for.
        installed_versions: the versions of what the requirements bring along, as they are installed here.
    """

    requirements: Sequence[Requirement]
    platform: Platform
    installed_versions: Mapping[str, str]

    @property
    def parameters(self) -> dict[str, Any]:
        """The cache key inputs of the packing step, as JSON values."""
        from plansmith.compilers.python_backend.environment.wheels import own_digest

        return {
            "requirements": [str(requirement) for requirement in self.requirements],
            "python": self.platform.python,
            "machine": self.platform.machine,
            "glibc": self.platform.glibc,
            "held": dict(self.installed_versions),
            "own": own_digest() if "plansmith" in self.installed_versions else "",
        }

    def pack(self, stages: StageRunner) -> StepResult[PackedEnvironment]:
        """Fetch it from the cache, or pack and store it: as part of the current step.

        Returns:
            The record, whose `file` lies in the folder.

        Raises:
            EnvironmentFault: no packages that satisfy the requirements can be got.
        """
        from plansmith.compilers.python_backend.environment.archive import write_archive
        from plansmith.compilers.python_backend.environment.wheels import install_packages

        def build(out: Path) -> PackedEnvironment:
            archive = out / ENVIRONMENT_FILE
            with tempfile.TemporaryDirectory(dir=out) as place:
                stages.progress(f"getting packages for Python {self.platform.python}")
                site, distributions = install_packages(
                    self.requirements, self.platform, self.installed_versions, Path(place)
                )
                stages.progress(f"packing an environment of {len(distributions)} distributions")
                unpacked_bytes = write_archive(site, self.platform.python, archive)
            return PackedEnvironment(
                file=archive.name,
                python=self.platform.python,
                machine=self.platform.machine,
                glibc=f"2.{self.platform.glibc}",
                bytes=archive.stat().st_size,
                unpacked_bytes=unpacked_bytes,
                distributions=distributions,
            )

        result = stages.entry(_STEP, [], self.parameters, build)
        assert result is not None, "a release that is built is no look"
        entry, cached = result
        record = PackedEnvironment.model_validate(entry.record)
        stages.progress(f"the environment for Python {record.python} takes {format_bytes(record.bytes)}")
        return StepResult(record, entry.folder, entry.digest, cached)


def wanted_environment(requirements: str, target: Target) -> WantedEnvironment:
    """Return the environment for a model's requirements on a target's Triton.

    What requirements bring along comes in the versions that are installed here, where these fit.

    Args:
        requirements: the text of a requirements.txt.
        target: says which Python its Triton has; the one that runs here where it does not.

    Raises:
        EnvironmentFault: a requirement that nothing can be packed of.
    """
    from plansmith.compilers.python_backend.environment.wheels import installed_versions, platform_of, read_requirements

    requested, platform = read_requirements(requirements), platform_of(target)
    return WantedEnvironment(requested, platform, installed_versions(requested, platform))


class Packer:
    """Environment packer of a release: packs each environment once, and adds it to the models that need it.

    Args:
        stages: the compile's steps.
        environments: by the names of the parts.
    """

    def __init__(self, stages: StageRunner, environments: Mapping[str, WantedEnvironment]) -> None:
        self._stages = stages
        self._environments = environments
        self._packed: list[tuple[dict[str, Any], StepResult[PackedEnvironment]]] = []

    @property
    def parameters(self) -> dict[str, Any]:
        """The inputs of all environments, as JSON values."""
        return {part: environment.parameters for part, environment in self._environments.items()}

    def bring(self, part: str, config: pb.ModelConfig, folder: Path) -> PackedEnvironment | None:
        """Add a part's environment next to its configuration, and configure the part to run in it.

        Args:
            part: its name.
            config: of its model.
            folder: takes config.pbtxt.

        Returns:
            Its record, whose `file` is one of the model's `support_files`; None for a part that brings none.

        Raises:
            EnvironmentFault: no packages that satisfy the requirements can be got.
        """
        if part not in self._environments:
            return None
        packed = self._pack(self._environments[part])
        add_environment(config)
        place_environment(packed, folder)
        return packed.record

    def _pack(self, environment: WantedEnvironment) -> StepResult[PackedEnvironment]:
        """Pack an environment; parts with the same requirements share one, even without the cache (`--force`)."""
        parameters = environment.parameters
        for existing, packed in self._packed:
            if existing == parameters:
                return packed
        self._packed.append((parameters, environment.pack(self._stages)))
        return self._packed[-1][1]


def add_environment(config: pb.ModelConfig) -> None:
    """Configure a Python backend model to run in the archive next to its configuration (see `place_environment`)."""
    config.parameters[PARAMETER].string_value = f"$$TRITON_MODEL_DIRECTORY/{ENVIRONMENT_FILE}"


def place_environment(environment: StepResult[PackedEnvironment], folder: Path) -> str:
    """Write the archive next to a model's configuration.

    Args:
        environment: that was packed.
        folder: holds config.pbtxt.

    Returns:
        Its place there, for the model's `support_files`.
    """
    link_or_copy(environment.folder / environment.record.file, folder / ENVIRONMENT_FILE)
    return ENVIRONMENT_FILE


def environments_of(
    spec: ModelSpec, model: CompiledModel, beside: Mapping[str, CompiledModel], target: Target
) -> dict[str, WantedEnvironment]:
    """Return the environments of Python models, by part: PyTorch models, and pipeline parts of any model.

    Nothing where a spec leaves it to the image.

    Raises:
        EnvironmentFault: a requirement that nothing can be packed of.
    """
    if spec.python.environment == "image":
        return {}
    from plansmith.compilers.python_backend.model_folder import NUMPY, REQUIREMENTS_FILE
    from plansmith.triton.config.script import SCRIPT_PART

    folders: dict[str, Path] = {}
    for name, compiled in {"": model, **beside}.items():
        if compiled.engine.record.kind is EngineKind.PYTHON:
            folders[part_name(name, MODEL_PART)] = compiled.engine.folder
        if compiled.pipeline is not None:
            parts, place = compiled.pipeline.record, compiled.pipeline.folder
            own = [part.name for part in (*parts.before, *parts.after) if part.backend == "python"]
            folders |= {part_name(name, part): place / part for part in own}
    needed = {SCRIPT_PART: f"numpy=={NUMPY}\n"} if spec.pipeline is not None and spec.pipeline.script else {}
    texts = needed | {part: (folder / REQUIREMENTS_FILE).read_text() for part, folder in folders.items()}
    return {part: wanted_environment(text, target) for part, text in texts.items()}
