"""What a Triton of this machine is started with for the shown versions of models."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plansmith.records.model import EngineKind
    from plansmith.records.release import Manifest
    from plansmith.triton.repository.repository import ModelRepository
    from plansmith.triton.server.follower import Needs
    from plansmith.triton.server.installation import Installation


@dataclass(frozen=True)
class ServerNeeds:
    """What a server is started with; as for `TritonServer`.

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


def needs_of(installation: Installation, repository: ModelRepository, models: Sequence[str]) -> ServerNeeds:
    """What the shown versions of models need.

    Raises:
        EnvironmentFault: this machine or its server lacks it.
        EngineError: nothing says which ONNX Runtime, or which DALI, the target has.
    """
    return ServerNeeds(
        stand_in_for(installation, repository, models),
        _dali_site(installation, repository, models),
        tuple(server_arguments(repository, models)),
        tuple(_pythons(repository, models)),
    )


def obstacles(installation: Installation, repository: ModelRepository, started: ServerNeeds) -> Needs:
    """Asks whether a model can be loaded by a server that was started with this, for this target."""
    from plansmith.triton.server.installation import RUNNING_PYTHON

    target = repository.load_target().name

    def obstacle(model: str) -> str | None:
        now = repository.load_target().name
        if now != target:
            return f"the repository is for target {now}, and this server was started for {target}: start it again"
        lacking = [one for one in server_arguments(repository, [model]) if one not in started.arguments]
        if lacking:
            return f"it needs a server that was started with {shlex.join(lacking)}: start it again"
        for python in _pythons(repository, [model]):
            if python not in started.pythons and installation.lends_python and python != RUNNING_PYTHON:
                return (
                    f"its environment is for Python {python}, which this server was started without: see that"
                    f" python{python} answers here, and start it again"
                )
        return None

    return obstacle


def stand_in_for(installation: Installation, repository: ModelRepository, models: Sequence[str]) -> Path | None:
    """The packages of the stand-in backend; None where the server has the real one, or nothing that it serves needs it.

    Raises:
        EnvironmentFault: this machine or its server lacks what the models need.
        EngineError: nothing says which ONNX Runtime the target has.
    """
    from plansmith.records.model import EngineKind
    from plansmith.triton.server.installation import require_device, require_python, require_tensorrt, stand_in_site

    target = repository.load_target()
    kinds = _engines(repository, models)
    if EngineKind.PYTHON in kinds or _has_python_parts(repository, models):
        require_python(installation, torch=EngineKind.PYTHON in kinds)
    if EngineKind.PYTHON in kinds:
        require_device(installation, target, EngineKind.PYTHON)
    if kinds and kinds <= {EngineKind.TENSORRT, EngineKind.PYTHON}:
        if EngineKind.TENSORRT in kinds:
            require_tensorrt(installation, target)
        return None
    require_device(installation, target)
    return stand_in_site(installation, target)


def _dali_site(installation: Installation, repository: ModelRepository, models: Sequence[str]) -> Path | None:
    """The packages of the stand-in for the DALI backend; None where the real one is here, or nothing needs it.

    Raises:
        EnvironmentFault: they are not installed.
        EngineError: nothing says which DALI the target has.
    """
    from plansmith.triton.server.installation import dali_site

    manifests = [manifest for model in models for manifest in _manifests(repository, model)]
    if not any(manifest is not None and manifest.package.has_dali for manifest in manifests):
        return None
    return dali_site(installation, repository.load_target())


def _engines(repository: ModelRepository, models: Sequence[str]) -> set[EngineKind | None]:
    """The engines of the shown versions of models; None among them where one is somebody else's or damaged."""
    shown = [_manifests(repository, model) for model in models]
    found = {manifest.engine.kind if manifest else None for manifests in shown for manifest in manifests}
    return found if all(shown) else {*found, None}


def _has_python_parts(repository: ModelRepository, models: Sequence[str]) -> bool:
    """Whether a shown version of a model is a script, or has a part, for Triton's Python backend."""
    from plansmith.triton.config.script import is_script

    packages = [one.package for model in models for one in _manifests(repository, model) if one]
    return any(is_script(one) or any(part.backend == "python" for part in one.members) for one in packages)


def server_arguments(repository: ModelRepository, models: Sequence[str]) -> list[str]:
    """What the shown versions of models need the server to be started with, each once."""
    manifests = [manifest for model in models for manifest in _manifests(repository, model)]
    return list(dict.fromkeys(one for manifest in manifests if manifest for one in manifest.package.server_arguments))


def _pythons(repository: ModelRepository, models: Sequence[str]) -> list[str]:
    """What the environments are for that the shown versions of models bring, each once."""
    packages = [manifest.package for model in models for manifest in _manifests(repository, model) if manifest]
    alone = [one for package in packages for one in (package, *(member.alone() for member in package.members))]
    return list(dict.fromkeys(one.environment.python for one in alone if one.environment))


def _manifests(repository: ModelRepository, model: str) -> list[Manifest | None]:
    """Of the shown versions of a model; None of one that is somebody else's or damaged."""
    return [repository.readable(model, number) for number in repository.views(model).shown()]
