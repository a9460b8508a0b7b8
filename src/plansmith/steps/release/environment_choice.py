"""Which environments a release has to bring along."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from plansmith.compilers.python_backend.model_folder import NUMPY, REQUIREMENTS_FILE
from plansmith.config.spec import ModelSpec
from plansmith.config.target.targets import Target
from plansmith.records.model import EngineKind
from plansmith.records.pipeline import MODEL_PART
from plansmith.steps.artifacts import CompiledModel
from plansmith.steps.release.environment import WantedEnvironment, wanted_environment
from plansmith.triton.config.ensemble import part_name
from plansmith.triton.config.script import SCRIPT_PART


def environments_of(
    spec: ModelSpec, model: CompiledModel, beside: Mapping[str, CompiledModel], target: Target
) -> dict[str, WantedEnvironment]:
    """What Python models bring with them, by part: PyTorch models, and parts around any model.

    Nothing where a spec leaves it to the image.

    Raises:
        EnvironmentFault: a requirement that nothing can be packed of.
    """
    if spec.python.environment == "image":
        return {}
    folders: dict[str, Path] = {}
    for name, made in {"": model, **beside}.items():
        if made.engine.record.kind is EngineKind.PYTHON:
            folders[part_name(name, MODEL_PART)] = made.engine.folder
        if made.pipeline is not None:
            parts, place = made.pipeline.record, made.pipeline.folder
            own = [part.name for part in (*parts.before, *parts.after) if part.backend == "python"]
            folders |= {part_name(name, part): place / part for part in own}
    needed = {SCRIPT_PART: f"numpy=={NUMPY}\n"} if spec.pipeline is not None and spec.pipeline.script else {}
    texts = needed | {part: (folder / REQUIREMENTS_FILE).read_text() for part, folder in folders.items()}
    return {part: wanted_environment(text, target) for part, text in texts.items()}
