"""Model directories: which files matter, and whether they can be trusted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from plansmith.errors import SourceError

CONFIG_FILE = "config.json"
CARD_FILE = "README.md"
GRAPH_SUFFIX = ".onnx"

# What a model needs to be built, run and fed; weights in other frameworks' formats stay behind.
FILE_PATTERNS = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
CODE_PATTERNS = ("*.py",)
PICKLE_PATTERNS = ("pytorch_model*.bin",)
_WEIGHTS = {".safetensors", ".bin"}
_SMALL_BYTES = 1 << 20
_LARGEST_JSON_BYTES = 256 << 20
_LARGEST_HEADER_BYTES = 100_000_000  # of a safetensors file, by its library (MAX_HEADER_SIZE)

# Beside the files themselves, the folders of a sentence-transformers model's modules: 1_Pooling, 2_Dense.
_MODULE_FOLDER = re.compile(r"\d+_\w+")

_LICENCE = re.compile(r"^license:\s*(\S.*)$", re.MULTILINE)


def model_files(folder: Path, *, trust_remote_code: bool, allow_pickle: bool) -> list[Path]:
    """Return the files that a model consists of.

    Raises:
        SourceError: the folder is empty, has no configuration, or no weights that may be read.
    """
    if not any(folder.iterdir()):
        raise SourceError(f"{folder} is empty", remedy="save the model there (save_pretrained), or name another folder")
    if not (folder / CONFIG_FILE).is_file():
        raise SourceError(
            f"{folder} has no {CONFIG_FILE}",
            remedy="name the folder that save_pretrained (transformers) or save_for_hf (timm) wrote",
        )
    patterns = (
        *FILE_PATTERNS,
        *(CODE_PATTERNS if trust_remote_code else ()),
        *(PICKLE_PATTERNS if allow_pickle else ()),
    )
    places = [folder, *(f for f in folder.iterdir() if f.is_dir() and _MODULE_FOLDER.fullmatch(f.name))]
    return sorted(path for place in places for path in place.iterdir() if _is_part(path, patterns))


def described(paths: list[Path]) -> list[Path]:
    """Return the files of a model without its weights, sufficient where random weights are drawn."""
    return [path for path in paths if path.suffix not in _WEIGHTS]


def require_weights(folder: Path, *, allow_pickle: bool) -> None:
    """Require weights that can be read without running code.

    Raises:
        SourceError: no weights, damaged ones, or pickled ones that were not allowed.
    """
    files = sorted(folder.glob("*.safetensors"))
    damaged = [path for path in files if not _is_whole(path)]
    if damaged:
        raise SourceError(f"{damaged[0]} is cut off or damaged", remedy="download or save the model again")
    if files:
        return
    if any(folder.glob("pytorch_model*.bin")):
        if allow_pickle:
            return
        raise SourceError(
            f"{folder} has pickled weights only, and reading a pickle can run any code",
            remedy="save the model as safetensors, or pass --allow-pickle if you trust whoever made it",
        )
    raise SourceError(
        f"{folder} has no weights (model.safetensors)",
        remedy="save them there, pass --allow-pickle if all it has are pickles, or --random-weights",
    )


def read_json(path: Path) -> Any:
    """Read a JSON file of a directory.

    Raises:
        SourceError: it is not JSON, or larger than any such file.
    """
    if path.stat().st_size > _LARGEST_JSON_BYTES:
        raise SourceError(
            f"{path} has more than {_LARGEST_JSON_BYTES >> 20} MiB, as no such file has", remedy="save the model again"
        )
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path} is not JSON: {error}", remedy="save the model again") from error


def require_json(paths: Iterable[Path]) -> None:
    """Require that small .json files are valid, before a library reads them without naming the bad one.

    Raises:
        SourceError: one is not.
    """
    for path in paths:
        if path.suffix == ".json" and path.stat().st_size <= _SMALL_BYTES:
            read_json(path)


def read_config(folder: Path) -> dict[str, Any]:
    """Read the model's configuration.

    Raises:
        SourceError: it is not JSON.
    """
    config = read_json(folder / CONFIG_FILE)
    if not isinstance(config, dict):
        raise SourceError(f"{folder / CONFIG_FILE} holds no configuration", remedy="save the model again")
    return config


def library_of(config: Mapping[str, Any]) -> Literal["hf", "timm"]:
    """Return the library of a model: timm's configuration names an architecture, that of transformers a type."""
    return "timm" if "architecture" in config and "model_type" not in config else "hf"


def graphs_of(names: Iterable[str]) -> tuple[str, ...] | None:
    """Return the ONNX files among a folder's files; None if those are a model with a configuration."""
    top = [name for name in names if "/" not in name]
    graphs = tuple(name for name in top if name.endswith(GRAPH_SUFFIX))
    has_weights = any(name.endswith(".safetensors") or name.startswith("pytorch_model") for name in top)
    return None if CONFIG_FILE in top and (has_weights or not graphs) else graphs


def require_kind(folder: Path, scheme: str) -> None:
    """Require that a configuration belongs to the library that will read it.

    Raises:
        SourceError: it is not JSON, or of the other library.
    """
    config = read_config(folder)
    library, other_library, sign = ("hf", "timm", "architecture") if scheme == "hf" else ("timm", "hf", "model_type")
    if sign in config and not {"architecture", "model_type"} <= config.keys():
        raise SourceError(
            f"{folder} is not a model of {library}: but of {other_library}:",
            remedy=f"write {other_library}: before its name",
        )


def read_licence(folder: Path) -> str | None:
    """Read the license in the model card, if any."""
    card = folder / CARD_FILE
    if not card.is_file():
        return None
    with card.open("rb") as stream:
        head = stream.read(_SMALL_BYTES).decode(errors="replace").split("\n---", 1)[0]
    match = _LICENCE.search(head)
    return match.group(1).strip().strip("'\"") if match else None


def _is_whole(weights: Path) -> bool:
    """Whether a safetensors file is as long as its header announces: 8 bytes of length, JSON, tensors."""
    size = weights.stat().st_size
    with weights.open("rb") as stream:
        start = 8 + int.from_bytes(stream.read(8), "little")
        if not 8 < start <= min(size, 8 + _LARGEST_HEADER_BYTES):
            return False
        try:
            header = json.loads(stream.read(start - 8))
            ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        except (ValueError, AttributeError, KeyError, TypeError, IndexError, RecursionError):
            return False
    return start + max(ends, default=0) == size


def _is_part(path: Path, patterns: tuple[str, ...]) -> bool:
    return path.is_file() and not path.name.startswith(".") and any(path.match(pattern) for pattern in patterns)
