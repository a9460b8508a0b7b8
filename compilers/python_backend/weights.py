"""Pickled weights of PyTorch, written as safetensors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.errors import SourceError, first_line

if TYPE_CHECKING:
    import torch

_PICKLE, _INDEX = "pytorch_model*.bin", "pytorch_model.bin.index.json"


def is_pickled(file: Path) -> bool:
    """Whether a file of a model directory holds pickled weights, or says which of them holds what."""
    return file.match(_PICKLE) or file.name == _INDEX


def as_safetensors(source: Path, files: Sequence[Path], out: Path) -> list[Path]:
    """Write the weights of every pickled file of a model directory, under the name that its readers look for.

    What lies beside safetensors in the same folder is left out: those are read first.

    Args:
        source: the model directory.
        files: what it consists of.
        out: the folder that takes what is written, in folders as in the directory.

    Returns:
        The files that were written.

    Raises:
        SourceError: a file holds something else than tensors.
    """
    ready = {file.parent for file in files if file.suffix == ".safetensors"}
    written = []
    for file in files:
        if is_pickled(file) and file.parent not in ready:
            target = out / file.relative_to(source).with_name(_renamed(file.name))
            target.parent.mkdir(parents=True, exist_ok=True)
            if file.name == _INDEX:
                index = json.loads(file.read_text())
                index["weight_map"] = {name: _renamed(place) for name, place in index["weight_map"].items()}
                target.write_text(json.dumps(index))
            else:
                _convert(file, target)
            written.append(target)
    return written


def _renamed(name: str) -> str:
    return name.replace("pytorch_model", "model").replace(".bin", ".safetensors")


def _convert(file: Path, target: Path) -> None:
    import torch
    from safetensors.torch import save_file

    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
        weights = _apart({name: tensor for name, tensor in found.items() if isinstance(tensor, torch.Tensor)})
    except Exception as error:
        raise SourceError(
            f"{file.name} cannot be read as pickled weights: {first_line(error)}",
            remedy="save the model again, as safetensors",
        ) from error
    save_file(weights, target, metadata={"format": "pt"})


def _apart(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Every tensor with memory of its own: safetensors stores none twice, and none in part."""
    seen: set[int] = set()
    made = {}
    for name, tensor in weights.items():
        place = tensor.untyped_storage().data_ptr()
        made[name] = tensor.contiguous().clone() if place in seen else tensor.contiguous()
        seen.add(place)
    return made
