"""Releases of a script that asks two small Python models: every answer tells the number that its first part has."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plansmith.records.release import MODEL_FOLDER, Manifest, Member, PublishedVersion
from plansmith.system.digest import digest_of_files
from plansmith.triton.config.model_config import text_of
from plansmith.triton.config.script import Chain, ChainStep, write_script
from plansmith.triton.repository.repository import ModelRepository, Servers

from ..faults.packages import file_entries
from .pipelines import publish_draft, write_pipeline
from .versions import INTERFACE, MODEL

SCRIPT = """
def answer(inputs, models):
    if not models["number"](x=inputs["x"])["number"].all():
        raise ValueError("no number is 0")
    return models["main"](x=inputs["x"])
"""


def write_scripted(package: Path, number: int, *, model: str = MODEL, script: str = SCRIPT, **options: str) -> Manifest:
    """Lay out a release of a script, and draft its manifest.

    Args:
        package: takes its files.
        number: what every answer tells.
        model: its name.
        script: the program.
        options: of `write_pipeline`, for the parts.
    """
    draft = write_pipeline(package, number, model=model, **options)
    shutil.rmtree(package / MODEL_FOLDER)
    file = package.with_name(f"{package.name}.py")
    file.write_text(script)
    members = draft.package.members
    written = write_script(
        file,
        {"main": _chain(members, ("whole", "three")), "number": _chain(members[:1], ("number",))},
        INTERFACE,
        package / MODEL_FOLDER,
        model=model,
        max_batch_size=8,
        requirements={"numpy": "1.26.4"},
    )
    (package / "config.pbtxt").write_text(text_of(written.config))
    files = file_entries(package)
    changed: dict[str, Any] = {"package": draft.package.model_copy(update={"model_files": written.files})}
    return draft.model_copy(update=changed | {"files": files, "release_digest": digest_of_files(files)})


def publish_scripted(
    repository: ModelRepository,
    folder: Path,
    *,
    model: str = MODEL,
    script: str = SCRIPT,
    servers: Servers | None = None,
    **options: str,
) -> PublishedVersion:
    """Publish the next version of a script, which answers its number.

    Args:
        repository: takes it.
        folder: takes the files that it is made of.
        model: its name.
        script: the program.
        servers: have to load it.
        options: of `write_pipeline`, for the parts.
    """
    number = max([0, *repository.versions(model)]) + 1
    package = folder / f"{model}-{number}"
    draft = write_scripted(package, number, model=model, script=script, **options)
    return publish_draft(repository, package, draft, servers=servers)


def _chain(members: Sequence[Member], outputs: Sequence[str]) -> Chain:
    """Members whose tensors have the same names in all of them."""
    read = {*outputs, *(tensor.name for member in members for tensor in member.interface.inputs)}
    steps = [
        ChainStep(
            model=member.model,
            inputs={tensor.name: tensor.name for tensor in member.interface.inputs},
            outputs={tensor.name: tensor.name for tensor in member.interface.outputs if tensor.name in read},
        )
        for member in members
    ]
    return Chain(steps=tuple(steps), outputs=tuple(outputs))
