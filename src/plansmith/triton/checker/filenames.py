"""What names of files and folders say of what they were meant for."""

from __future__ import annotations

import re
from pathlib import Path

from plansmith.triton.checker.autocomplete import folders_of
from plansmith.triton.checker.model_folder import ModelFolder
from plansmith.triton.checker.versions import NO_VERSIONS, version_of

_LIKE_A_VERSION = re.compile(r"0\d+|v\.?\d.*|version.*|latest|current|newest", re.IGNORECASE)
_LIKE_A_CONFIG = re.compile(r"config\.(pbtxt?|pb\.?txt|prototxt|textproto)(\.\w+)?|model_config\.pbtxt", re.IGNORECASE)
_MODEL_FILES = re.compile(r"model\.(plan|onnx|py|pt|pt2|xml|dali|savedmodel|graphdef)|dali\.py")


def is_model_file(name: str) -> bool:
    """Whether a file is called as one that a backend opens."""
    return _MODEL_FILES.fullmatch(name) is not None


def is_like_a_config(name: str) -> bool:
    """Whether a file is called as a model's configuration, or nearly so."""
    return _LIKE_A_CONFIG.fullmatch(name) is not None


def hides_model_file(model: ModelFolder) -> bool:
    """Whether Triton does not find out what serves a model because it looks into another folder than a version's."""
    if model.backend or model.platform or not model.versions or (model.config is None and model.text):
        return False
    if folders_of(model.path)[0] in model.versions.values():
        return False
    return any(is_model_file(name) for path in model.versions.values() for name in files_of(path))


def is_foreign(model: ModelFolder) -> bool:
    """Whether nothing in a folder says that it was meant for a model."""
    names = files_of(model.path)
    said = any(is_like_a_config(name) or is_model_file(name) for name in names)
    folders = folders_of(model.path)
    return not said and not any(version_of(f.name) is not None or looks_like_version(f) for f in folders)


def looks_like_version(folder: Path) -> bool:
    """Whether a folder was meant for a version, whatever Triton takes it for."""
    if folder.name in NO_VERSIONS:
        return False
    return bool(_LIKE_A_VERSION.fullmatch(folder.name) or any(is_model_file(name) for name in files_of(folder)))


def files_of(folder: Path) -> list[str]:
    """The names of what lies in a folder; none where it cannot be read."""
    try:
        return [one.name for one in folder.iterdir()]
    except OSError:
        return []
