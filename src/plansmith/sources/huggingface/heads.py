"""What a model's directory says of its answers: the names of its classes, and how token vectors become one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from plansmith.data.labels import own_names
from plansmith.sources.directory import CONFIG_FILE, read_config, read_json

MODULES_FILE = "modules.json"
SIMILARITY = "sentence-similarity"

_POOLING_FILE = Path("1_Pooling") / CONFIG_FILE
_MODES: dict[str, Literal["mean", "first"]] = {
    "mean": "mean",
    "pooling_mode_mean_tokens": "mean",
    "cls": "first",
    "pooling_mode_cls_token": "first",
}


def class_names(folder: Path) -> dict[str, int]:
    """Names of classes and their ids: of transformers (id2label) or timm (label_names); none where nobody chose any.

    Raises:
        SourceError: the configuration is no JSON.
    """
    config = read_config(folder)
    named = config.get("id2label")
    if isinstance(named, dict):
        return own_names({str(name): int(number) for number, name in named.items()})
    listed = config.get("label_names") or config.get("pretrained_cfg", {}).get("label_names")
    return {str(name): number for number, name in enumerate(listed)} if isinstance(listed, list) else {}


def applies_modules(folder: Path, task: str) -> bool:
    """Whether a directory is one of sentence-transformers whose modules behind the encoder are to be compiled with it.

    They are where no task is asked for, or that of comparing sentences; another task takes the encoder alone.

    Raises:
        SourceError: modules.json is no JSON.
    """
    path = folder / MODULES_FILE
    if task not in {"", SIMILARITY} or not path.is_file():
        return False
    listed = read_json(path)
    first = str(listed[0].get("type", "")) if isinstance(listed, list) and listed else ""
    return first.endswith(".Transformer") and len(listed) > 1


def pooling_of(folder: Path, task: str, outputs: Sequence[str]) -> Literal["none", "mean", "first"] | None:
    """How sentence-transformers pools this model's token vectors; None where nothing says it.

    "none" where the model itself gives what is pooled, and where it is a way that no single output can be compared by
    (the maximum, the last token, several).

    Args:
        folder: the model's.
        task: that was asked for; empty: none.
        outputs: those to keep; all when empty.

    Raises:
        SourceError: the file that says it is no JSON.
    """
    path = folder / _POOLING_FILE
    if applies_modules(folder, task) and (not outputs or "sentence_embedding" in outputs):
        return "none"
    if not path.is_file():
        return None
    config = read_json(path)
    mode = config.get("pooling_mode")
    if isinstance(mode, str):
        return _MODES.get(mode, "none")
    on = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    return _MODES.get(on[0], "none") if len(on) == 1 else "none"
