"""Sentence-transformers modules after an encoder: pooling, dense layers, normalization. Runs in the worker.

A directory lists its modules in modules.json: the encoder first, then what makes one vector of its token vectors. They
are rebuilt here from their configurations and weights, in operations that every exporter knows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.errors import SourceError
from plansmith.sources.directory import CONFIG_FILE, read_json
from plansmith.sources.huggingface.heads import MODES, MODULES_FILE, applies_modules, pool

if TYPE_CHECKING:
    import torch

    Tensors = dict[str, torch.Tensor]

EMBEDDING = "sentence_embedding"
TOKENS = "token_embeddings"

_WEIGHTS, _PICKLE = "model.safetensors", "pytorch_model.bin"
_FOLDER = re.compile(r"\d+_\w+")
_INSTEAD = "pass --task feature-extraction, which compiles the encoder alone"
# As old releases called them, in the order in which several are put together.
_OLD_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


def read_modules(folder: Path, task: str, *, allow_pickle: bool) -> torch.nn.Module | None:
    """Read the modules after a directory's encoder; None if there are none, or the task is another.

    Its forward takes the token vectors [batch, sequence, width] and the mask of padding [batch, sequence] or None, and
    gives new tensors by name: EMBEDDING [batch, width], or TOKENS where nothing pools.

    Raises:
        SourceError: a module is of a kind that is not known, or its files are not there or damaged.
    """
    if not applies_modules(folder, task):
        return None
    steps = []
    for kind, place, settings in _listed(folder):
        step = _BUILDERS[kind](settings)
        if any(True for _ in step.parameters()):
            step.load_state_dict(_weights(place, allow_pickle=allow_pickle))
        steps.append((step, settings.get("module_input_name"), settings.get("module_output_name")))
    return _chain(steps).eval()


def write_random_modules(folder: Path, out: Path, *, seed: int) -> None:
    """Write the modules after a directory's encoder, with random weights."""
    import torch
    from safetensors.torch import save_file

    from plansmith.sources.loaded_model import enliven

    if not applies_modules(folder, ""):
        return
    (out / MODULES_FILE).write_bytes((folder / MODULES_FILE).read_bytes())
    torch.manual_seed(seed)
    for kind, place, settings in _listed(folder):
        if not place.is_dir():
            continue
        (out / place.name).mkdir(exist_ok=True)
        if (place / CONFIG_FILE).is_file():
            (out / place.name / CONFIG_FILE).write_text(json.dumps(settings))
        step = _BUILDERS[kind](settings)
        enliven(step, seed)
        if step.state_dict():
            save_file(step.state_dict(), out / place.name / _WEIGHTS)


def _listed(folder: Path) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """Yield kind, folder and settings of each module after the encoder, in order."""
    for row in read_json(folder / MODULES_FILE)[1:]:
        kind = str(row["type"]).rpartition(".")[2]
        if kind not in _BUILDERS:
            raise SourceError(
                f"{folder.name} has a module of the kind {row['type']}, and only {', '.join(_BUILDERS)} are known",
                remedy=_INSTEAD,
            )
        name = str(row.get("path", ""))
        if not _FOLDER.fullmatch(name):
            raise SourceError(f"{folder.name}/{MODULES_FILE} names a folder {name!r}", remedy="save the model again")
        settings = read_json(folder / name / CONFIG_FILE) if (folder / name / CONFIG_FILE).is_file() else {}
        if settings.get("include_prompt") is False and _prompts(folder):
            raise SourceError(
                f"{folder.name} leaves the tokens of its prompts out of the pooling, which a graph cannot tell apart",
                remedy=_INSTEAD,
            )
        yield kind, folder / name, settings


def _prompts(folder: Path) -> bool:
    file = folder / "config_sentence_transformers.json"
    return file.is_file() and any((read_json(file).get("prompts") or {}).values())


def _weights(place: Path, *, allow_pickle: bool) -> Tensors:
    if (place / _WEIGHTS).is_file():
        from safetensors.torch import load_file

        return dict(load_file(place / _WEIGHTS))
    if allow_pickle and (place / _PICKLE).is_file():
        import torch

        tensors: Tensors = torch.load(place / _PICKLE, map_location="cpu", weights_only=True)
        return tensors
    raise SourceError(
        f"{place.name} has no weights ({_WEIGHTS})",
        remedy="save the model again, or pass --allow-pickle if all it has is a pickle that you trust",
    )


def _chain(steps: list[tuple[torch.nn.Module, str | None, str | None]]) -> torch.nn.Module:
    import torch

    class Chain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = torch.nn.ModuleList(step for step, _, _ in steps)

        def forward(self, tokens: torch.Tensor, mask: torch.Tensor | None) -> Tensors:
            tensors = {TOKENS: tokens}
            for step, (_, source_name, target_name) in zip(self.steps, steps, strict=True):
                if getattr(step, "pools", False):
                    tensors[EMBEDDING] = step(tensors[TOKENS], mask)
                else:
                    source = source_name or EMBEDDING
                    tensors[target_name or source] = step(tensors[source])
            return {EMBEDDING: tensors[EMBEDDING]} if EMBEDDING in tensors else {TOKENS: tensors[TOKENS]}

    return Chain()


def _pooling(settings: Mapping[str, Any]) -> torch.nn.Module:
    import torch

    setting = settings.get("pooling_mode")
    modes = [setting] if isinstance(setting, str) else list(setting or [])
    modes = modes or [mode for key, mode in _OLD_MODES.items() if settings.get(key)] or ["mean"]
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown:
        raise SourceError(f"sentence-transformers pools by {', '.join(unknown)}, which is not known", remedy=_INSTEAD)

    class Pooling(torch.nn.Module):
        pools = True

        def forward(self, tokens: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
            pooled = [pool(mode, tokens, mask) for mode in modes]
            return pooled[0] if len(pooled) == 1 else torch.cat(pooled, dim=-1)

    return Pooling()


def _dense(settings: Mapping[str, Any]) -> torch.nn.Module:
    import torch

    width, size = int(settings["in_features"]), int(settings["out_features"])
    activation = _activation(settings.get("activation_function", "torch.nn.modules.activation.Tanh"))
    adds = bool(settings.get("use_residual"))

    class Dense(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(width, size, bias=bool(settings.get("bias", True)))
            if adds and width != size:
                self.residual = torch.nn.Linear(width, size, bias=False)

        def forward(self, vectors: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = activation(self.linear(vectors))
            return output + (vectors if width == size else self.residual(vectors)) if adds else output

    return Dense()


def _activation(name: str | None) -> Any:
    """Return a torch.nn class by its full name, and nothing else: a configuration must not name code."""
    import torch

    activation = getattr(torch.nn, str(name).rpartition(".")[2], None) if name else torch.nn.Identity
    if (
        activation is None
        or (name and not str(name).startswith("torch.nn."))
        or not issubclass(activation, torch.nn.Module)
    ):
        raise SourceError(f"a dense layer's activation is {name}, which torch.nn does not have", remedy=_INSTEAD)
    return activation()


def _normalize(settings: Mapping[str, Any]) -> torch.nn.Module:
    import torch

    del settings

    class Normalize(torch.nn.Module):
        def forward(self, vectors: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.normalize(vectors, p=2.0, dim=-1)

    return Normalize()


def _layer_norm(settings: Mapping[str, Any]) -> torch.nn.Module:
    import torch

    class LayerNorm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(int(settings["dimension"]))

        def forward(self, vectors: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.norm(vectors)
            return output

    return LayerNorm()


def _nothing(settings: Mapping[str, Any]) -> torch.nn.Module:
    """Return an identity for dropout, which only applies in training."""
    import torch

    del settings
    return torch.nn.Identity()


_BUILDERS: dict[str, Callable[[Mapping[str, Any]], torch.nn.Module]] = {
    "Pooling": _pooling,
    "Dense": _dense,
    "Normalize": _normalize,
    "LayerNorm": _layer_norm,
    "Dropout": _nothing,
}
