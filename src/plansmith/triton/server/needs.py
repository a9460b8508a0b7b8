"""Start requirements of a local Triton server for given releases."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from plansmith.config.targets import Target
from plansmith.records.model import EngineKind
from plansmith.records.release import Manifest
from plansmith.triton.config.script import is_script
from plansmith.triton.repository.repository import ModelRepository
from plansmith.triton.server.follower import Needs
from plansmith.triton.server.installation import (
    RUNNING_PYTHON,
    Installation,
    dali_site,
    require_device,
    require_python,
    require_tensorrt,
    stand_in_site,
)

Manifests = Sequence[Manifest | None]
"""Of releases; None stands for one that is somebody else's or damaged."""


@dataclass(frozen=True)
class ServerNeeds:
    """Server requirements: what a server is started with; as for `TritonServer`.

    Attributes:
        site: the packages of the stand-in backend; None where the server has the real one, or nothing needs it.
        dali_site: likewise for DALI.
        arguments: of the server, each once.
        pythons: what the environments that models bring are for, each once.
    """

    site: Path | None
    dali_site: Path | None
    arguments: tuple[str, ...]
    pythons: tuple[str, ...]


def needs_of(installation: Installation, target: Target, manifests: Manifests) -> ServerNeeds:
    """Return the server requirements of releases.

    Args:
        installation: the server.
        target: what the releases are for.
        manifests: of them, such as `shown_manifests`.

    Raises:
        EnvironmentFault: this machine or its server lacks it.
        EngineError: nothing says which ONNX Runtime, or which DALI, the target has.
    """
    has_dali = any(manifest is not None and manifest.package.has_dali for manifest in manifests)
    return ServerNeeds(
        stand_in_for(installation, target, manifests),
        dali_site(installation, target) if has_dali else None,
        tuple(server_arguments(manifests)),
        tuple(_pythons(manifests)),
    )


def shown_manifests(repository: ModelRepository, models: Sequence[str]) -> list[Manifest | None]:
    """Return the manifests of the shown versions of models; None for a model that shows none."""
    manifests: list[Manifest | None] = []
    for model in models:
        manifests += [repository.readable(model, number) for number in repository.views(model).shown()] or [None]
    return manifests


def obstacles(installation: Installation, repository: ModelRepository, started: ServerNeeds) -> Needs:
    """Return a check whether a server started with these settings can load a model for this target."""
    target = repository.load_target().name

    def obstacle(model: str) -> str | None:
        now = repository.load_target().name
        if now != target:
            return f"the repository is for target {now}, and this server was started for {target}: start it again"
        manifests = shown_manifests(repository, [model])
        lacking = [argument for argument in server_arguments(manifests) if argument not in started.arguments]
        if lacking:
            return f"it needs a server that was started with {shlex.join(lacking)}: start it again"
        for python in _pythons(manifests):
            if python not in started.pythons and installation.lends_python and python != RUNNING_PYTHON:
                return (
                    f"its environment is for Python {python}, which this server was started without: see that"
                    f" python{python} answers here, and start it again"
                )
        return None

    return obstacle


def stand_in_for(installation: Installation, target: Target, manifests: Manifests) -> Path | None:
    """Return the stand-in backend's site folder; None if the server has the real one or no model needs it.

    Raises:
        EnvironmentFault: this machine or its server lacks what the models need.
        EngineError: nothing says which ONNX Runtime the target has.
    """
    kinds: set[EngineKind | None] = {manifest.engine.kind if manifest else None for manifest in manifests}
    kinds |= {model.engine.kind for manifest in manifests if manifest for model in manifest.beside.values()}
    if EngineKind.PYTHON in kinds or _has_python_parts(manifests):
        require_python(installation, torch=EngineKind.PYTHON in kinds)
    if EngineKind.PYTHON in kinds:
        require_device(installation, target, EngineKind.PYTHON)
    if kinds and kinds <= {EngineKind.TENSORRT, EngineKind.PYTHON}:
        if EngineKind.TENSORRT in kinds:
            require_tensorrt(installation, target)
        return None
    require_device(installation, target)
    return stand_in_site(installation, target)


def server_arguments(manifests: Manifests) -> list[str]:
    """Return the server arguments that releases need, each once."""
    return list(
        dict.fromkeys(argument for manifest in manifests if manifest for argument in manifest.package.server_arguments)
    )


def _has_python_parts(manifests: Manifests) -> bool:
    """Whether a release is a script, or has a member, for Triton's Python backend."""
    packages = [manifest.package for manifest in manifests if manifest]
    return any(is_script(item) or any(part.backend == "python" for part in item.members) for item in packages)


def _pythons(manifests: Manifests) -> list[str]:
    """The distinct Python versions of the environments that releases ship."""
    packages = [manifest.package for manifest in manifests if manifest]
    alone = [item for package in packages for item in (package, *(member.alone() for member in package.members))]
    return list(dict.fromkeys(item.environment.python for item in alone if item.environment))
