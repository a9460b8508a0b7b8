"""What a version's MLmodel file says that it is, and which of its files a compile takes.

MLflow writes a model of transformers into several folders; save_pretrained and everybody who reads what it wrote know
one. So weights and configuration (`model/`) and what makes the inputs (`components/*/`) are brought into one folder.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any, Literal

from plansmith.errors import SourceError
from plansmith.sources.directory import CARD_FILE, CODE_PATTERNS, CONFIG_FILE, FILE_PATTERNS, PICKLE_PATTERNS
from plansmith.sources.mlflow.module_files import MODEL_FILE, PICKLE, PROGRAM
from plansmith.sources.remote_files import RemoteFile, RemoteFiles, read_small

MOST_BYTES = 4 << 20
"""The most that an MLmodel file holds; some have examples of inputs in their signature."""

_MODULE_FOLDER = re.compile(r"\d+_\w+")
_ABOUT_THE_MODEL = {
    *(MODEL_FILE, "conda.yaml", "python_env.yaml", "requirements.txt", "registered_model_meta"),
    *("input_example.json", "serving_input_example.json", CARD_FILE),
}
_TAKEN = "log it as transformers, sentence_transformers, onnx or pytorch, and register that"


@dataclass(frozen=True)
class FlavorFiles:
    """What a compile takes of a version.

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
    """What the spec lets a model bring."""

    trust_remote_code: bool
    allow_pickle: bool

    @property
    def patterns(self) -> tuple[str, ...]:
        """Names of the files that are a model's."""
        return (
            *FILE_PATTERNS,
            CARD_FILE,
            *(CODE_PATTERNS if self.trust_remote_code else ()),
            *(PICKLE_PATTERNS if self.allow_pickle else ()),
        )


def described_files(
    files: RemoteFiles, listed: Sequence[RemoteFile], wishes: FlavorOptions, of: str
) -> tuple[str, FlavorFiles]:
    """The digest of a model's MLmodel file, and which of its files are kept by it.

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
    """The flavours of an MLmodel file, by name.

    Raises:
        SourceError: it is none.
    """
    import yaml

    try:
        found = yaml.safe_load(content)
        flavours = found["flavors"]
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
    """Which files of a version are the model, in the first of its flavours that plansmith reads.

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
    found = sorted(set(flavours) - {"python_function"}) or sorted(flavours) or ["none"]
    raise SourceError(f"{of} has the flavour {', '.join(found)[:200]}, which plansmith does not read", remedy=_TAKEN)


def _transformers(flavour: dict[str, Any], files: Sequence[RemoteFile], wishes: FlavorOptions, of: str) -> FlavorFiles:
    if flavour.get("peft_adaptor"):
        raise SourceError(
            f"{of} holds an adapter alone (PEFT), and its base model lies elsewhere",
            remedy="merge it (merge_and_unload), log the whole model, and register that",
        )
    root = str(flavour.get("model_binary") or "")
    if not root:
        raise SourceError(f"{of} holds no weights, only where they were taken from", remedy=_elsewhere(flavour))
    found: dict[str, RemoteFile] = {}
    for file in _matching(_below(root, files), wishes):
        found[file.path.removeprefix(f"{root}/")] = file
    components = [part for part in _below("components", files) if part.path.count("/") == 2]
    for file in _matching(components, wishes):
        # The model's own configuration lies with the model; a processor's copy of it says nothing else.
        found.setdefault(PurePosixPath(file.path).name, file)
    return _folder(found, root, of)


def _sentence_transformers(
    flavour: dict[str, Any], files: Sequence[RemoteFile], wishes: FlavorOptions, of: str
) -> FlavorFiles:
    root = _data_of(flavour, "model.sentence_transformer")
    found = {file.path.removeprefix(f"{root}/"): file for file in _matching(_below(root, files), wishes)}
    return _folder(found, root, of)


def plain_folder(files: Sequence[RemoteFile], wishes: FlavorOptions, of: str) -> FlavorFiles:
    """The model that a folder holds as save_pretrained wrote it; errors as for `choose`."""
    return _folder({file.path: file for file in _matching(files, wishes)}, "", of)


def _folder(found: Mapping[str, RemoteFile], root: str, of: str) -> FlavorFiles:
    """A folder as save_pretrained writes it, with the folders of a sentence-transformers model's modules."""
    kept = {name: file for name, file in found.items() if "/" not in name or _is_in_module(name)}
    if CONFIG_FILE not in kept:
        missing = f"{root}/{CONFIG_FILE}".lstrip("/")
        raise SourceError(f"{of} has no {missing}", remedy="log and register the model again")
    return FlavorFiles("hf", kept)


def _onnx(flavour: dict[str, Any], files: Sequence[RemoteFile], wishes: FlavorOptions, of: str) -> FlavorFiles:
    del wishes
    return graph_alone(_data_of(flavour, "model.onnx"), files, of)


def graph_alone(graph: str, files: Sequence[RemoteFile], of: str) -> FlavorFiles:
    """An ONNX file with what may belong to it; errors as for `choose`."""
    if graph not in {file.path for file in files}:
        raise SourceError(f"{of} has no {graph}", remedy="log and register the model again")
    # Tensors outside of the graph lie beside it or below; which of them it needs, the graph alone says.
    folder = graph.rpartition("/")[0]
    beside = _below(folder, files) if folder else files
    found = {
        file.path.removeprefix(f"{folder}/") if folder else file.path: file
        for file in beside
        if file.path == graph or file.path not in _ABOUT_THE_MODEL
    }
    return FlavorFiles("onnx", found, graph.rpartition("/")[2])


def _pytorch(flavour: dict[str, Any], files: Sequence[RemoteFile], wishes: FlavorOptions, of: str) -> FlavorFiles:
    """The program that torch.export saw, or where the spec allows it, a pickle of the module."""
    root = str(flavour.get("model_data") or "data").strip("/")
    found = {file.path.removeprefix(f"{root}/"): file for file in _below(root, files)}
    about = {file.path: file for file in files if file.path == MODEL_FILE}
    if PROGRAM in found:
        return FlavorFiles("torch", {PROGRAM: found[PROGRAM], **about})
    if PICKLE not in found:
        raise SourceError(f"{of} has no {root}/{PROGRAM}", remedy="log and register the model again")
    if not wishes.allow_pickle:
        raise SourceError(
            f"{of} has the flavour pytorch with a pickle of the whole model: reading a pickle can run any code",
            remedy="log it with mlflow.pytorch.log_model(..., serialization_format='pt2') and register that, or, if you"
            " trust whoever logged it: --allow-pickle",
        )
    return FlavorFiles("torch", {PICKLE: found[PICKLE], **about})


def _elsewhere(flavour: Mapping[str, Any]) -> str:
    """What to do about a model that was logged as a pointer."""
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
    return [file for file in files if any(fnmatchcase(PurePosixPath(file.path).name, one) for one in wishes.patterns)]


def _is_in_module(name: str) -> bool:
    folder, _, rest = name.partition("/")
    return bool(_MODULE_FOLDER.fullmatch(folder)) and "/" not in rest
