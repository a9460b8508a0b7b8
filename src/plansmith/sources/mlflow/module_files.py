"""Files of MLflow's pytorch flavor, as stored in the folder that a compile reads."""

from __future__ import annotations

import json
from pathlib import Path

from plansmith.config.yaml_loading import load_yaml
from plansmith.errors import SourceError
from plansmith.records.model import ANONYMOUS, Tensor

MODEL_FILE = "MLmodel"
PROGRAM = "model.pt2"
"""What torch.export saw of a module."""

PICKLE = "model.pth"
"""A module as torch.save writes it."""


def module_files(folder: Path) -> list[Path]:
    """Return the files of a module, and MLflow's facts on it."""
    return [folder / name for name in (MODEL_FILE, PROGRAM, PICKLE) if (folder / name).is_file()]


def signed_inputs(folder: Path) -> tuple[Tensor, ...]:
    """Return the inputs in the signature of an MLmodel file, with "?" for dynamic sizes; none without one of tensors.

    Raises:
        SourceError: the signature is damaged.
    """
    import yaml

    if not (folder / MODEL_FILE).is_file():
        return ()
    try:
        signature = load_yaml((folder / MODEL_FILE).read_bytes()).get("signature") or {}
        columns = json.loads(signature.get("inputs") or "[]")
        return tuple(
            Tensor(
                name=str(column.get("name") or f"input_{number}"),
                dtype=column["tensor-spec"]["dtype"],
                dims=tuple(ANONYMOUS if size < 0 else size for size in column["tensor-spec"]["shape"]),
            )
            for number, column in enumerate(columns)
            if column["type"] == "tensor"
        )
    except (yaml.YAMLError, RecursionError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise SourceError(
            f"{MODEL_FILE} is damaged: its signature cannot be read", remedy="log and register the model again"
        ) from error
