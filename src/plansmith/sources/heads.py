"""What a model's directory says of its answers: the names of its classes, and how token vectors become one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from plansmith.data.labels import own_names
from plansmith.errors import SourceError
from plansmith.sources.directory import CONFIG_FILE, read_config

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


def pooling_of(folder: Path) -> Literal["none", "mean", "first"] | None:
    """How sentence-transformers pools this model's token vectors; None where nothing says it.

    "none" where it is a way that no single output can be compared by (the maximum, the last token, several).

    Raises:
        SourceError: the file that says it is no JSON.
    """
    path = folder / _POOLING_FILE
    if not path.is_file():
        return None
    try:
        config: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SourceError(f"{path} is not JSON: {error}", remedy="save the model again") from error
    mode = config.get("pooling_mode")
    if isinstance(mode, str):
        return _MODES.get(mode, "none")
    on = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    return _MODES.get(on[0], "none") if len(on) == 1 else "none"
