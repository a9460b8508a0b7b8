"""What lies in a repository, as Triton would take it: models, configurations, versions, and what serves them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from plansmith.errors import RepositoryError
from plansmith.records.release import CONFIG_FILE, MODEL_FOLDER, Manifest
from plansmith.triton.checker.autocomplete import complete, folders_of
from plansmith.triton.checker.model_folder import ModelFolder
from plansmith.triton.checker.versions import is_plain, version_of, versions_to_load
from plansmith.triton.config.model_config import parse_config
from plansmith.triton.repository.repository import ModelRepository

CONFIGS_FOLDER = "configs"
# Strings and comments are matched to be passed over.
_APART = re.compile(r""""(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\#[^\n]*|-([ \t]+)(?=\d)""")


def read_models(root: Path, config_name: str = "") -> Mapping[str, ModelFolder]:
    """Every model of a repository, by name, in the order in which Triton sees them.

    Args:
        root: the folder that Triton reads.
        config_name: what the server is given as --model-config-name; models that have such a configuration have it.

    Raises:
        RepositoryError: the folder has no name, and so no place beside it for plansmith's releases.
    """
    repository = ModelRepository(root)
    models = {}
    for folder in folders_of(root):
        named = folder / CONFIGS_FOLDER / f"{config_name}.pbtxt"
        file = str(named.relative_to(folder)) if config_name and named.is_file() else CONFIG_FILE
        models[folder.name] = _with_manifests(read_model(folder, file), repository)
    return models


def read_model(folder: Path, config_file: str = CONFIG_FILE) -> ModelFolder:
    """One model, of whatever its folder holds.

    Args:
        folder: of the model; its name is the model's.
        config_file: which file is its configuration, relative to the folder.
    """
    text = read_text(folder / config_file)
    config = _parsed(text)
    subfolders = folders_of(folder)
    taken = {version_of(one.name) for one in subfolders} - {None}
    versions = {int(one.name): one for one in subfolders if is_plain(one.name)}
    completed = complete(folder.name, folder, config)
    return ModelFolder(
        name=folder.name,
        path=folder,
        config=config,
        text=text,
        versions=dict(sorted(versions.items())),
        loaded=tuple(n for n in versions_to_load(config, (t for t in taken if t is not None)) if n in versions),
        manifests={},
        config_file=config_file,
        backend=completed.backend,
        platform=completed.platform,
        model_file=completed.model_file,
    )


def read_package(name: str, folder: Path) -> ModelFolder:
    """A model as a release will show it, of a release in the making: its first version lies in MODEL_FOLDER.

    Args:
        name: the model's.
        folder: of the release, or of one of its parts.
    """
    model = read_model(folder)
    completed = complete(name, folder, model.config)
    return replace(
        model,
        name=name,
        versions={1: folder / MODEL_FOLDER},
        loaded=(1,),
        backend=completed.backend,
        platform=completed.platform,
        model_file=completed.model_file,
    )


def variants_of(model: ModelFolder) -> list[ModelFolder]:
    """The model as it is with each of its other configurations, which --model-config-name chooses from."""
    try:
        files = sorted((model.path / CONFIGS_FOLDER).glob("*.pbtxt"))
    except OSError:
        return []
    names = [f"{CONFIGS_FOLDER}/{file.name}" for file in files]
    return [
        replace(read_model(model.path, name), manifests=model.manifests) for name in names if name != model.config_file
    ]


def read_text(file: Path) -> str:
    """The text of a file, with a mark for every byte that is no text; empty where it cannot be read."""
    try:
        return file.read_bytes().decode(errors="replace") if file.is_file() else ""
    except OSError:
        return ""


def as_python_reads(text: str) -> str:
    """A configuration with each sign beside its number, which Triton does not ask for and protobuf's Python does.

    Lines and columns of all else stay as they are.
    """
    return _APART.sub(lambda found: found[0] if found[1] is None else f"{found[1]}-", text)


def target_name(root: Path) -> str | None:
    """The name of the target that a repository of ours belongs to; None of any other."""
    return ModelRepository(root).target()


def _parsed(text: str) -> Any:
    """The configuration of a text; None where there is none, or Triton would not read it."""
    from google.protobuf.text_format import ParseError

    try:
        return parse_config(as_python_reads(text)) if text else None
    except (ParseError, ValueError):
        return None


def _with_manifests(model: ModelFolder, repository: ModelRepository) -> ModelFolder:
    """With what plansmith knows of the versions, where the model is a view of its own making."""
    if not model.path.is_symlink():
        return model
    try:
        repository.views(model.name).require_ours()
    except RepositoryError:
        return model
    found = {number: repository.readable(model.name, number) for number in model.versions}
    return replace(model, manifests={number: one for number, one in found.items() if isinstance(one, Manifest)})
