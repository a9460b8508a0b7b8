"""Repository reader: models, configurations, versions and backends, as Triton would read them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.errors import RepositoryError
from plansmith.records.release import CONFIG_FILE, MODEL_FOLDER, Manifest
from plansmith.triton.checker.model_folder import ModelFolder
from plansmith.triton.config.model_config import parse_config
from plansmith.triton.repository.repository import ModelRepository

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb


NO_VERSIONS = frozenset({"configs", "initial_state", "warmup"})
"""Folders beside the versions that Triton knows."""

LARGEST = 2**63 - 1
_NUMBER = re.compile(r"\s*([+-]?\d+)", re.ASCII)

ENSEMBLE = "ensemble"
_PYTHON_RUNTIME = "model.py"
CONFIGS_FOLDER = "configs"
# Strings and comments are matched to be passed over.
_APART = re.compile(r""""(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\#[^\n]*|-([ \t]+)(?=\d)""")

_MOST_BYTES = 4 * 2**20

_LIKE_A_VERSION = re.compile(r"0\d+|v\.?\d.*|version.*|latest|current|newest", re.IGNORECASE)
_LIKE_A_CONFIG = re.compile(r"config\.(pbtxt?|pb\.?txt|prototxt|textproto)(\.\w+)?|model_config\.pbtxt", re.IGNORECASE)
_MODEL_FILES = re.compile(r"model\.(plan|onnx|py|pt|pt2|xml|dali|savedmodel|graphdef)|dali\.py")


def version_of(name: str) -> int | None:
    """Return the version that Triton parses from the leading digits of a folder name; None if there are none.

    A number above `LARGEST` ends the server.
    """
    if name in NO_VERSIONS or (len(name) > 1 and name.startswith("0")):
        return None
    result = _NUMBER.match(name)
    return int(result[1]) if result else None


def is_plain(name: str) -> bool:
    """Whether a version folder's name is exactly the number that Triton parses from it."""
    number = version_of(name)
    return number is not None and 0 <= number <= LARGEST and str(number) == name


def versions_to_load(config: pb.ModelConfig | None, numbers: Iterable[int]) -> tuple[int, ...]:
    """Return the versions that the version policy selects, ascending; without a policy only the newest."""
    present = sorted(set(numbers))
    policy = config.version_policy if config is not None else None
    choice = policy.WhichOneof("policy_choice") if policy is not None else None
    if policy is not None and choice == "specific":
        return tuple(number for number in present if number in policy.specific.versions)
    if choice == "all" or (config is not None and config.HasField("version_policy") and choice is None):
        return tuple(present)
    count = policy.latest.num_versions if policy is not None and choice == "latest" else 1
    return tuple(present[-count:]) if count else ()


@dataclass(frozen=True)
class _BackendFile:
    """A backend that Triton recognizes by its files: name, file, platform, and whether the file may be a folder."""

    backend: str
    file: str
    platform: str = ""
    may_be_folder: bool = True


# In the order in which Triton tries them.
_KNOWN = (
    _BackendFile("tensorflow", "model.savedmodel", "tensorflow_savedmodel"),
    _BackendFile("tensorflow", "model.graphdef", "tensorflow_graphdef", may_be_folder=False),
    _BackendFile("tensorrt", "model.plan", "tensorrt_plan", may_be_folder=False),
    _BackendFile("onnxruntime", "model.onnx", "onnxruntime_onnx"),
    _BackendFile("openvino", "model.xml"),
    _BackendFile("pytorch", "model.pt", "pytorch_libtorch", may_be_folder=False),
    _BackendFile("pytorch", "model.pt", "libtorch", may_be_folder=False),
    _BackendFile("pytorch", "model.pt2", "torch_aoti", may_be_folder=False),
    _BackendFile("python", "model.py"),
)
PLATFORMS = {known.platform: known.backend for known in _KNOWN if known.platform}
"""The platforms that Triton knows beside "ensemble", and the backend of each."""


@dataclass(frozen=True)
class Completed:
    """`backend`, `platform` and `default_model_filename` as auto-completed by Triton; empty if it cannot."""

    backend: str
    platform: str
    model_file: str


def complete(name: str, folder: Path, config: pb.ModelConfig | None) -> Completed:
    """Auto-complete the unset fields of a configuration.

    Args:
        name: of the model.
        folder: of the model.
        config: what it says; None where there is none.
    """
    backend, platform, file = (
        (config.backend, config.platform, config.default_model_filename) if config is not None else ("", "", "")
    )
    if platform == ENSEMBLE:
        return Completed(backend, platform, file)
    if not backend:
        entry = _told_by(platform, file) or (_found_in(folder) if not platform and not file else None)
        backend = entry.backend if entry is not None else ""
        if entry is not None and entry.platform:
            platform = platform or entry.platform
    if not (backend or platform or file):
        _, dot, backend = name.partition(".")
        return Completed(backend, "", f"model.{backend}" if dot else "")
    defaults = [entry for entry in _KNOWN if entry.backend == backend]
    matches = [entry for entry in defaults if entry.platform == platform]
    fitting = matches or [entry for entry in defaults if entry.file == file] or defaults
    if not fitting:
        return Completed(backend, platform, file)
    if config is not None and config.runtime == _PYTHON_RUNTIME and backend == "pytorch":
        return Completed(backend, platform or fitting[0].platform, file)
    return Completed(backend, platform or fitting[0].platform, file or fitting[0].file)


def folders_of(folder: Path) -> list[Path]:
    """Return the subfolders in Triton's order, by the bytes of their names; none if unreadable."""
    try:
        return sorted(
            (entry for entry in folder.iterdir() if entry.is_dir()), key=lambda entry: os.fsencode(entry.name)
        )
    except OSError:
        return []


def _told_by(platform: str, file: str) -> _BackendFile | None:
    return next((k for k in _KNOWN if (k.platform and k.platform == platform) or k.file == file), None)


def _found_in(folder: Path) -> _BackendFile | None:
    """The backend found in a model's first version folder; Triton reads no other."""
    folders = folders_of(folder)
    if not folders:
        return None
    for entry in _KNOWN:
        file = folders[0] / entry.file
        if os.path.lexists(file) and (entry.may_be_folder or not file.is_dir()):
            return entry
    return None


def read_models(root: Path, config_name: str = "") -> Mapping[str, ModelFolder]:
    """Read every model of a repository, by name, in Triton's order.

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
    """Read one model, whatever its folder contains.

    Args:
        folder: of the model; its name is the model's.
        config_file: which file is its configuration, relative to the folder.
    """
    text = read_text(folder / config_file)
    config = _parsed(text)
    subfolders = folders_of(folder)
    numbers = {version_of(subfolder.name) for subfolder in subfolders} - {None}
    versions = {int(subfolder.name): subfolder for subfolder in subfolders if is_plain(subfolder.name)}
    completed = complete(folder.name, folder, config)
    return ModelFolder(
        name=folder.name,
        path=folder,
        config=config,
        text=text,
        versions=dict(sorted(versions.items())),
        loaded=tuple(n for n in versions_to_load(config, (t for t in numbers if t is not None)) if n in versions),
        manifests={},
        config_file=config_file,
        backend=completed.backend,
        platform=completed.platform,
        model_file=completed.model_file,
    )


def read_package(name: str, folder: Path) -> ModelFolder:
    """Read a model from a release that is being built, as it will be shown: its first version is in MODEL_FOLDER.

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
    """Return the model with each of its alternative configurations, which --model-config-name selects."""
    try:
        files = sorted((model.path / CONFIGS_FOLDER).glob("*.pbtxt"))
    except OSError:
        return []
    names = [f"{CONFIGS_FOLDER}/{file.name}" for file in files]
    return [
        replace(read_model(model.path, name), manifests=model.manifests) for name in names if name != model.config_file
    ]


def read_text(file: Path) -> str:
    """Read a configuration, with a mark for every undecodable byte; empty if it cannot be read."""
    try:
        return read_bytes(file).decode(errors="replace") if file.is_file() else ""
    except OSError:
        return ""


def read_bytes(file: Path) -> bytes:
    """Read a configuration, and of a larger file as much as the largest has: where that ends, the syntax is wrong."""
    with file.open("rb") as stream:
        return stream.read(_MOST_BYTES)


def as_python_reads(text: str) -> str:
    """Return a configuration with each sign next to its number, as protobuf's Python parser requires.

    Lines and columns of all else stay as they are.
    """
    return _APART.sub(lambda match: match[0] if match[1] is None else f"{match[1]}-", text)


def target_name(root: Path) -> str | None:
    """Return the target name of a plansmith repository; None for any other."""
    return ModelRepository(root).target()


def _parsed(text: str) -> Any:
    """Parse a configuration; None where there is none, or Triton would not read it."""
    from google.protobuf.text_format import ParseError

    try:
        return parse_config(as_python_reads(text)) if text else None
    except (ParseError, ValueError):
        return None


def _with_manifests(model: ModelFolder, repository: ModelRepository) -> ModelFolder:
    """Add the manifests of the versions, where the model is a view created by plansmith."""
    if not model.path.is_symlink():
        return model
    try:
        repository.views(model.name).require_ours()
    except RepositoryError:
        return model
    records = {number: repository.readable(model.name, number) for number in model.versions}
    return replace(
        model, manifests={number: record for number, record in records.items() if isinstance(record, Manifest)}
    )


def is_model_file(name: str) -> bool:
    """Whether a file name is one that a backend opens."""
    return _MODEL_FILES.fullmatch(name) is not None


def is_like_a_config(name: str) -> bool:
    """Whether a file name is that of a model configuration, or similar."""
    return _LIKE_A_CONFIG.fullmatch(name) is not None


def hides_model_file(model: ModelFolder) -> bool:
    """Whether Triton cannot detect the backend because it looks into a folder that is not a version."""
    if model.backend or model.platform or not model.versions or (model.config is None and model.text):
        return False
    if folders_of(model.path)[0] in model.versions.values():
        return False
    return any(is_model_file(name) for path in model.versions.values() for name in files_of(path))


def is_foreign(model: ModelFolder) -> bool:
    """Whether a folder contains nothing that suggests a model."""
    names = files_of(model.path)
    has_model_files = any(is_like_a_config(name) or is_model_file(name) for name in names)
    folders = folders_of(model.path)
    return not has_model_files and not any(version_of(f.name) is not None or looks_like_version(f) for f in folders)


def looks_like_version(folder: Path) -> bool:
    """Whether a folder appears to be meant as a version, however Triton parses its name."""
    if folder.name in NO_VERSIONS:
        return False
    return bool(_LIKE_A_VERSION.fullmatch(folder.name) or any(is_model_file(name) for name in files_of(folder)))


def files_of(folder: Path) -> list[str]:
    """Return the names of a folder's files and subfolders; none if it cannot be read."""
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError:
        return []
