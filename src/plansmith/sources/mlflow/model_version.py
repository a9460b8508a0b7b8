"""MLflow model versions: resolved on the server, and downloaded in the form that a compile reads."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from plansmith.config.source_reference import RegisteredName
from plansmith.config.yaml_loading import load_yaml
from plansmith.errors import SourceError
from plansmith.sources.bucket_objects import BucketObjects
from plansmith.sources.directory import CARD_FILE, CODE_PATTERNS, CONFIG_FILE, FILE_PATTERNS, PICKLE_PATTERNS
from plansmith.sources.mlflow.client import ServedFiles, Version, allowed_here, find_server, place_of
from plansmith.sources.mlflow.module_files import MODEL_FILE, PICKLE, PROGRAM
from plansmith.sources.remote_files import Progress, RemoteFile, RemoteFiles, download, read_small

MOST_BYTES = 4 << 20
"""The most that an MLmodel file holds; some have examples of inputs in their signature."""

_MODULE_FOLDER = re.compile(r"\d+_\w+")
_ABOUT_THE_MODEL = {
    *(MODEL_FILE, "conda.yaml", "python_env.yaml", "requirements.txt", "registered_model_meta"),
    *("input_example.json", "serving_input_example.json", CARD_FILE),
}
_TAKEN = "log it as transformers, sentence_transformers, onnx or pytorch, and register that"

_S3_ENDPOINT = "MLFLOW_S3_ENDPOINT_URL"
"""Says to MLflow's clients where S3 is, if it is not AWS's own."""


@dataclass(frozen=True)
class FlavorFiles:
    """Flavor files: what a compile takes of a version.

    Args:
        scheme: how it is read from then on.
        files: by the path that each gets in one folder.
        graph: the ONNX file among them; empty for a folder of transformers, and for one with a module.
    """

    scheme: Literal["hf", "onnx", "torch"]
    files: Mapping[str, RemoteFile]
    graph: str = ""


@dataclass(frozen=True)
class FlavorOptions:
    """Flavor options: what the spec allows a model to contain."""

    trust_remote_code: bool
    allow_pickle: bool

    @property
    def patterns(self) -> tuple[str, ...]:
        """The file name patterns of a model."""
        return (
            *FILE_PATTERNS,
            CARD_FILE,
            *(CODE_PATTERNS if self.trust_remote_code else ()),
            *(PICKLE_PATTERNS if self.allow_pickle else ()),
        )


def described_files(
    files: RemoteFiles, listed: Sequence[RemoteFile], wishes: FlavorOptions, of: str
) -> tuple[str, FlavorFiles]:
    """Return the digest of a model's MLmodel file, and the files that it describes.

    Args:
        files: of the model.
        listed: all of them.
        wishes: what may come along.
        of: the model, for errors.

    Raises:
        SourceError: it has none, or it names nothing that can be read.
    """
    described = next((file for file in listed if file.path == MODEL_FILE), None)
    if described is None:
        raise SourceError(
            f"{of} has no {MODEL_FILE}: its files are no model that MLflow logged",
            remedy="log it with one of MLflow's flavours, such as mlflow.transformers.log_model",
        )
    content = read_small(files, described, MOST_BYTES, of)
    return hashlib.sha256(content).hexdigest(), choose(read_model_file(content, of), listed, wishes, of)


def read_model_file(content: bytes, of: str) -> dict[str, Any]:
    """Read the flavors of an MLmodel file, by name.

    Raises:
        SourceError: it is none.
    """
    import yaml

    try:
        document = load_yaml(content)
        flavours = document["flavors"]
        return {str(name): dict(flavour) for name, flavour in flavours.items()}
    except (
        yaml.YAMLError,
        UnicodeDecodeError,
        RecursionError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
    ) as error:
        raise SourceError(
            f"{MODEL_FILE} of {of} is damaged: it names no flavours", remedy="log and register the model again"
        ) from error


def choose(flavours: Mapping[str, Any], files: Sequence[RemoteFile], wishes: FlavorOptions, of: str) -> FlavorFiles:
    """Choose the files of a version that form the model, in its first flavor that plansmith reads.

    Args:
        flavours: as MLmodel names them.
        files: all of the version.
        wishes: what may come along.
        of: the version, for errors.

    Raises:
        SourceError: no flavour is one that can be read, or what it consists of is not there.
    """
    readers: dict[str, Callable[[dict[str, Any], Sequence[RemoteFile], FlavorOptions, str], FlavorFiles]] = {
        "transformers": _transformers,
        "sentence_transformers": _sentence_transformers,
        "onnx": _onnx,
        "pytorch": _pytorch,
    }
    for name, read in readers.items():
        if name in flavours:
            return read(flavours[name], files, wishes, of)
    names = sorted(set(flavours) - {"python_function"}) or sorted(flavours) or ["none"]
    raise SourceError(f"{of} has the flavour {', '.join(names)[:200]}, which plansmith does not read", remedy=_TAKEN)


def _transformers(flavour: dict[str, Any], files: Sequence[RemoteFile], wishes: FlavorOptions, of: str) -> FlavorFiles:
    if flavour.get("peft_adaptor"):
        raise SourceError(
            f"{of} holds an adapter alone (PEFT), and its base model lies elsewhere",
            remedy="merge it (merge_and_unload), log the whole model, and register that",
        )
    root = str(flavour.get("model_binary") or "")
    if not root:
        raise SourceError(f"{of} holds no weights, only where they were taken from", remedy=_elsewhere(flavour))
    files_by_name: dict[str, RemoteFile] = {}
    for file in _matching(_below(root, files), wishes):
        files_by_name[file.path.removeprefix(f"{root}/")] = file
    components = [part for part in _below("components", files) if part.path.count("/") == 2]
    for file in _matching(components, wishes):
        # The model's own configuration lies with the model; a processor's copy of it says nothing else.
        files_by_name.setdefault(PurePosixPath(file.path).name, file)
    return _folder(files_by_name, root, of)


def _sentence_transformers(
    flavour: dict[str, Any], files: Sequence[RemoteFile], wishes: FlavorOptions, of: str
) -> FlavorFiles:
    root = _data_of(flavour, "model.sentence_transformer")
    files_by_name = {file.path.removeprefix(f"{root}/"): file for file in _matching(_below(root, files), wishes)}
    return _folder(files_by_name, root, of)


def plain_folder(files: Sequence[RemoteFile], wishes: FlavorOptions, of: str) -> FlavorFiles:
    """Return the model in a folder written by save_pretrained; errors as for `choose`."""
    return _folder({file.path: file for file in _matching(files, wishes)}, "", of)


def _folder(files_by_name: Mapping[str, RemoteFile], root: str, of: str) -> FlavorFiles:
    """Return a folder as written by save_pretrained, with the module folders of a sentence-transformers model."""
    chosen_files = {name: file for name, file in files_by_name.items() if "/" not in name or _is_in_module(name)}
    if CONFIG_FILE not in chosen_files:
        missing = f"{root}/{CONFIG_FILE}".lstrip("/")
        raise SourceError(f"{of} has no {missing}", remedy="log and register the model again")
    return FlavorFiles("hf", chosen_files)


def _onnx(flavour: dict[str, Any], files: Sequence[RemoteFile], wishes: FlavorOptions, of: str) -> FlavorFiles:
    del wishes
    return graph_alone(_data_of(flavour, "model.onnx"), files, of)


def graph_alone(graph: str, files: Sequence[RemoteFile], of: str) -> FlavorFiles:
    """Return an ONNX file with its possible external files; errors as for `choose`."""
    if graph not in {file.path for file in files}:
        raise SourceError(f"{of} has no {graph}", remedy="log and register the model again")
    # Tensors outside of the graph lie beside it or below; which of them it needs, the graph alone says.
    folder = graph.rpartition("/")[0]
    beside = _below(folder, files) if folder else files
    graph_files = {
        file.path.removeprefix(f"{folder}/") if folder else file.path: file
        for file in beside
        if file.path == graph or file.path not in _ABOUT_THE_MODEL
    }
    return FlavorFiles("onnx", graph_files, graph.rpartition("/")[2])


def _pytorch(flavour: dict[str, Any], files: Sequence[RemoteFile], wishes: FlavorOptions, of: str) -> FlavorFiles:
    """Return the torch.export program or, if the spec allows it, a pickle of the module."""
    root = str(flavour.get("model_data") or "data").strip("/")
    files_by_name = {file.path.removeprefix(f"{root}/"): file for file in _below(root, files)}
    about = {file.path: file for file in files if file.path == MODEL_FILE}
    if PROGRAM in files_by_name:
        return FlavorFiles("torch", {PROGRAM: files_by_name[PROGRAM], **about})
    if PICKLE not in files_by_name:
        raise SourceError(f"{of} has no {root}/{PROGRAM}", remedy="log and register the model again")
    if not wishes.allow_pickle:
        raise SourceError(
            f"{of} has the flavour pytorch with a pickle of the whole model: reading a pickle can run any code",
            remedy="log it with mlflow.pytorch.log_model(..., serialization_format='pt2') and register that, or, if you"
            " trust whoever logged it: --allow-pickle",
        )
    return FlavorFiles("torch", {PICKLE: files_by_name[PICKLE], **about})


def _elsewhere(flavour: Mapping[str, Any]) -> str:
    """Return the remedy for a model that was logged as a reference, without weights."""
    name, revision = flavour.get("source_model_name"), flavour.get("source_model_revision")
    if flavour.get("local_base_model_path") or not (isinstance(name, str) and re.fullmatch(r"[\w.-]+/[\w.-]+", name)):
        return "log the weights, too (save_pretrained=True), and register that"
    at = f"@{revision}" if isinstance(revision, str) and re.fullmatch(r"[0-9a-f]{40}", revision) else ""
    return f"write hf:{name}{at}, or log the weights, too (save_pretrained=True), and register that"


def _data_of(flavour: Mapping[str, Any], usual: str) -> str:
    return str(flavour.get("data") or flavour.get("model_data") or usual).strip("/")


def _below(folder: str, files: Iterable[RemoteFile]) -> list[RemoteFile]:
    return [file for file in files if file.path.startswith(f"{folder}/")]


def _matching(files: Iterable[RemoteFile], wishes: FlavorOptions) -> list[RemoteFile]:
    return [
        file
        for file in files
        if any(fnmatchcase(PurePosixPath(file.path).name, pattern) for pattern in wishes.patterns)
    ]


def _is_in_module(name: str) -> bool:
    folder, _, rest = name.partition("/")
    return bool(_MODULE_FOLDER.fullmatch(folder)) and "/" not in rest


@dataclass(frozen=True)
class RegisteredVersion:
    """Registered version and its remote files.

    Args:
        version: the number that was meant when it was asked for.
        server: that was asked, without secrets.
        place: where the files lie, in words.
        described: the digest of what the version says of itself.
        files: brings them.
        flavor_files: those that a compile takes, and how they are read.
    """

    version: Version
    server: str
    place: str
    described: str
    files: RemoteFiles
    flavor_files: FlavorFiles

    def identity(self) -> dict[str, Any]:
        """Return the identity of the download, as JSON values.

        A version keeps its files for good, and MLflow tells no digest of them; but a model that was deleted may be
        registered again under its name, and its first version is number 1 again: hence the time, what it says of itself
        (which has an id and a time of its own), and the sizes.
        """
        return {
            "server": self.server,
            "version": str(self.version),
            "made": self.version.creation_time,
            "place": self.place,
            "described": self.described,
            "files": [[name, file.path, file.bytes] for name, file in sorted(self.flavor_files.files.items())],
        }

    def download(self, folder: Path, progress: Progress) -> dict[str, str]:
        """Download what a compile reads into a folder; returns the `scheme`, and the `graph` of an ONNX model.

        Raises:
            SourceError: a file is not what was announced, or all are more than is allowed.
            EnvironmentFault: there is no room, or whoever has the files does not answer.
        """
        download(self.files, self.flavor_files.files, folder, of=str(self.version), progress=progress)
        return {"scheme": self.flavor_files.scheme, "graph": self.flavor_files.graph}


def find_version(model: RegisteredName, wishes: FlavorOptions) -> RegisteredVersion:
    """Query the environment's server for the selected version, its content, and the location of its files.

    Raises:
        SourceError: there is no such version, it cannot be read, or it lies where models may not come from.
        EnvironmentFault: no server is named, or it does not answer.
        UsageError: what is allowed is written wrongly.
    """
    server, allowed = find_server(), allowed_here()
    version = server.version(model)
    of = str(version)
    place = place_of(version.address, server=server.shown, allowed=allowed, of=of)
    files: RemoteFiles = (
        BucketObjects(str(place), of, endpoint_url=os.environ.get(_S3_ENDPOINT, ""))
        if place.kind == "s3"
        else ServedFiles(server.at(place.root), place.path, of)
    )
    described, selection = described_files(files, files.listed(), wishes, of)
    return RegisteredVersion(version, server.shown, str(place), described, files, selection)


def newest_version(location: str, version: str) -> str:
    """Return the number of the version that `models:/name` and `@alias`, `latest` or a number currently refer to.

    Raises:
        SourceError: there is none.
        EnvironmentFault: no server is named, or it does not answer.
    """
    model = RegisteredName.of(location, version)
    return model.selector if model.is_fixed else find_server().number(model)
