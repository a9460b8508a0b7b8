"""The step that packs an environment, and what a configuration says of one."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import plansmith
from plansmith.durable import link_or_copy
from plansmith.environments.archive import write_archive
from plansmith.environments.own_wheel import own_digest
from plansmith.environments.platforms import Platform, platform_of
from plansmith.environments.requirements import installed_versions, read_requirements
from plansmith.environments.wheels import collect_wheels
from plansmith.packed import PackedDistribution, PackedEnvironment
from plansmith.stages import Finished, StageRunner
from plansmith.targets import Target

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

ENVIRONMENT_FILE = "env.tar.gz"
"""The archive beside a model's config.pbtxt."""

PARAMETER = "EXECUTION_ENV_PATH"

_STEP = "environment"


def pack_environment(stages: StageRunner, requirements: str, target: Target) -> Finished[PackedEnvironment]:
    """The environment of a model's requirements for a target's Triton, from the cache where it was packed before.

    What requirements bring along comes in the versions that are installed here, where these fit.

    Args:
        stages: the compile's steps; this is a part of the current one.
        requirements: the text of a requirements.txt.
        target: says which Python its Triton has; the one that runs here where it does not.

    Returns:
        The record, whose `file` lies in the folder.

    Raises:
        EnvironmentFault: a wheel cannot be got, or they do not go together.
    """
    asked, platform = read_requirements(requirements), platform_of(target)
    held = installed_versions(asked, platform)
    parameters = {
        "requirements": [str(one) for one in asked],
        "python": platform.python,
        "machine": platform.machine,
        "glibc": platform.glibc,
        "held": held,
        "own": own_digest() if plansmith.__name__ in held else "",
    }

    def build(out: Path) -> Any:
        with tempfile.TemporaryDirectory(dir=out) as wheels:
            got = collect_wheels(asked, platform, held, Path(wheels), stages.progress)
            stages.progress(f"packing the environment of {len(got)} distributions")
            unpacked_bytes = write_archive(got, platform.python, out / ENVIRONMENT_FILE)
            packed = tuple(
                PackedDistribution(name=one.name, version=one.version, wheel=one.path.name, sha256=one.sha256())
                for one in got
            )
        record = _record(platform, out / ENVIRONMENT_FILE, unpacked_bytes, packed)
        return record.model_dump(mode="json")

    entry, cached = stages.entry(_STEP, [], parameters, build)
    return Finished(PackedEnvironment.model_validate(entry.record), entry.folder, entry.digest, cached)


def _record(
    platform: Platform, archive: Path, unpacked_bytes: int, packed: tuple[PackedDistribution, ...]
) -> PackedEnvironment:
    return PackedEnvironment(
        file=archive.name,
        python=platform.python,
        machine=platform.machine,
        glibc=f"2.{platform.glibc}",
        bytes=archive.stat().st_size,
        unpacked_bytes=unpacked_bytes,
        distributions=packed,
    )


def add_environment(config: pb.ModelConfig) -> None:
    """Have a model of the Python backend run in the archive beside its configuration (see `place_environment`)."""
    config.parameters[PARAMETER].string_value = f"$$TRITON_MODEL_DIRECTORY/{ENVIRONMENT_FILE}"


def place_environment(environment: Finished[PackedEnvironment], folder: Path) -> str:
    """Put the archive beside a model's configuration.

    Args:
        environment: that was packed.
        folder: holds config.pbtxt.

    Returns:
        Its place there, for the model's `support_files`.
    """
    link_or_copy(environment.folder / environment.record.file, folder / ENVIRONMENT_FILE)
    return ENVIRONMENT_FILE
