"""Outputs of a transformers model: flat tensors, named as in its documentation. Runs in the worker.

Caches, losses and what only training wants are left out. Tuples of tensors, such as hidden states, and answers inside
of answers are flattened with both names; they are kept where somebody asks for them or nothing else is there.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from plansmith.records.model import BATCH, AxisRange
from plansmith.sources.directory import read_config
from plansmith.sources.loaded_model import SEQUENCE

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


TEXT = ("text", "encoder")
TARGET = ("decoder", "text", "generator")
IMAGE = ("vision", "image", "backbone", "encoder")
SOUND = ("audio", "speech", "encoder")

_DEEPEST = 3

# Tensors that a server has no use for: the past of a decoder or of a recurrent model, and what training adds up.
_DROPPED = re.compile(
    r"^(past_key_values|cache_params|mems|state|past_buckets_states|rope_deltas)$|(^|_)(loss|losses|router_logits)$"
)
# What a loss in the middle of a decoder is taken of: given to whoever asks for it by name.
_FOR_LOSSES = re.compile(r"^(auxiliary_|intermediate_|init(ial)?_reference_points|enc_(outputs|topk)_|denoising_)")
_HIDDEN = "output_hidden_states"
_ON_REQUEST = {
    _HIDDEN: re.compile(r"hidden_states_\d+$"),
    "output_attentions": re.compile(r"attentions_\d+$"),
}
_QUIET = {"use_cache": False, _HIDDEN: False, "output_attentions": False, "return_dict": True}
ZERO_SHOT = "zero-shot-image-classification"
"""The task, by the name of its pipeline in transformers."""

SCORES = "logits_per_image"
"""The output: of every image, the score of each of its texts."""

TEXT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""The inputs [batch, texts, tokens], as far as a model has them."""

_ARCHITECTURES = {"chinese_clip": "ChineseCLIPModel", "clip": "CLIPModel", "metaclip_2": "MetaClip2Model"}
"""By the type that a configuration names: the class that has both an image's and a text's encoder."""

_BATCH = AxisRange(min=1, opt=2, max=8)
_USUAL_LENGTH = 16
"""Tokens of a label in its sentence."""


@dataclass(frozen=True)
class Fact:
    """Fact: a number in a configuration.

    Args:
        names: under any of which it may stand; the first that does counts.
        otherwise: what it is where it does not; None: then it is not known.
        place: of a list (height and width, say), the element that counts; of one number, itself.
        times: what it is multiplied by.
        more: what is added then.
    """

    names: tuple[str, ...]
    otherwise: int | None = None
    place: int = 0
    times: int = 1
    more: int = 0


CLIP_FRAMES = Fact(("num_frames", "frames_per_clip"))
"""How many images a video has, where the configuration says so: else the model takes none."""


def parts(config: Any, side: Sequence[str] = ()) -> Iterator[Any]:
    """Return a configuration's parts: those whose names begin with the given side, then itself, then the others."""
    nested = list(_nested(config, _DEEPEST))
    first = [part for word in side for name, part in nested if name.startswith(word)]
    yield from first
    yield config
    yield from (part for _, part in nested if not any(part is candidate for candidate in first))


def stated(config: Any, names: Sequence[str], side: Sequence[str] = ()) -> Any:
    """Return the first value that a configuration has under one of these names; None without one."""
    values = (getattr(part, name, None) for part in parts(config, side) for name in names)
    return next((value for value in values if value is not None), None)


def number(config: Any, fact: Fact, side: Sequence[str] = ()) -> int | None:
    """Return the number that a configuration gives for a fact."""
    value = stated(config, fact.names, side)
    if value is None:
        value = next((_DERIVED[name](config) for name in fact.names if name in _DERIVED), None)
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        value = value[min(fact.place, len(value) - 1)] if value else None
    usable = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    result = int(value) if usable else fact.otherwise
    return None if result is None else result * fact.times + fact.more


def special_ids(config: Any) -> set[int]:
    """Return ids that stand for no word: padding, ends, and image or audio placeholders."""
    ids: set[int] = set()
    for part in parts(config):
        for name, value in vars(part).items():
            if name.endswith(("token_id", "token_index", "token_ids")):
                ids.update(v for v in (value if isinstance(value, list | tuple) else [value]) if type(v) is int)
    return {value for value in ids if value >= 0}


def _past_length(config: Any) -> int | None:
    """Return the past length that a forecaster reads, including lags beyond its context."""
    lags, context = stated(config, ("lags_sequence",)), stated(config, ("context_length",))
    return context + max(lags) if lags and context else None


def _codepoints(config: Any) -> int | None:
    """Return the number of ids of a model that hashes characters and has no vocabulary: all code points."""
    return sys.maxunicode + 1 if stated(config, ("num_hash_buckets",)) else None


def _grid_patches(config: Any) -> int | None:
    """Return the number of patches of an image or, if the configuration counts its frames, of a video."""
    patch = [number(config, Fact(("patch_size",), place=place), IMAGE) for place in (0, 1)]
    sides = [number(config, Fact(("image_size",), place=place), IMAGE) for place in (0, 1)]
    if None in patch or None in sides:
        return None
    frames = number(config, CLIP_FRAMES, IMAGE) or 1
    tubes = frames // (number(config, Fact(("tubelet_size",)), IMAGE) or 1)
    return tubes * math.prod(side // part for side, part in zip(sides, patch, strict=True) if side and part)


_DERIVED: dict[str, Callable[[Any], int | None]] = {
    "past_length": _past_length,
    "codepoints": _codepoints,
    "grid_patches": _grid_patches,
}


def _nested(config: Any, depth: int) -> Iterator[tuple[str, Any]]:
    from transformers import PretrainedConfig

    for name, part in vars(config).items():
        if isinstance(part, PretrainedConfig):
            yield name, part
            if depth > 1:
                yield from _nested(part, depth - 1)


# Kept for whoever asks by name: a model gives them only when it is told to.
_TOKENS, _POOLED = "last_hidden_state", "pooler_output"


class Answering:
    """Answering wrapper: calls a model with named tensors and returns named tensors.

    Args:
        model: in eval mode. Its configuration is changed: no caches, no hidden states that nobody asked for.
        names: names of outputs to keep, in order; all that a server can give when empty.
        behind: what a directory of sentence-transformers puts behind the encoder (`sentence_transformers`).
    """

    def __init__(self, model: PreTrainedModel, names: Sequence[str], behind: torch.nn.Module | None = None) -> None:
        self.model, self.behind = model, behind
        self._names = tuple(names)
        flags = _QUIET | {flag: any(map(name.search, names)) for flag, name in _ON_REQUEST.items()}
        for part in parts(model.config):
            for flag, value in flags.items():
                if getattr(part, flag, None) not in (None, value):
                    setattr(part, flag, value)
        arguments = inspect.signature(model.forward).parameters
        self._constants = {flag: value for flag, value in flags.items() if flag in arguments and flag != "return_dict"}

    def __call__(self, feed: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the wanted outputs; missing ones are omitted."""
        everything = self.everything(feed)
        if self._names:  # nothing but names: exporters, too, come by here
            return {name: everything[name].tensor for name in self._names if name in everything}
        # What a directory pools itself, its encoder's own pooling is not trained for.
        left = {_POOLED} if self.behind is not None else set()
        return {name: everything[name].tensor for name in usual(everything) if name not in left}

    def everything(self, feed: Mapping[str, torch.Tensor]) -> dict[str, OutputTensor]:
        """Return all available outputs."""
        try:
            answer = self.model(**feed, **self._constants)
        except ValueError as error:
            if f"{_HIDDEN}=True" not in str(error):
                raise
            self._constants[_HIDDEN] = True  # a part of the model reads what another part has to give then
            answer = self.model(**feed, **self._constants)
        everything = {output.name: output for output in flat(answer)}
        if self.behind is not None:
            embeddings = self.behind(everything[_TOKENS].tensor, feed.get("attention_mask"))
            everything |= {name: OutputTensor(name, tensor, nested=False) for name, tensor in embeddings.items()}
        return everything


class OutputTensor(NamedTuple):
    """Output tensor of an answer; `nested` if it is within another part of it."""

    name: str
    tensor: torch.Tensor
    nested: bool


def flat(answer: Any) -> Iterator[OutputTensor]:
    """Return every tensor in a model's return value, except losses and caches."""
    import torch

    if isinstance(answer, torch.Tensor):
        yield OutputTensor("output_0", answer, nested=False)
        return
    yield from _flat(answer.items() if isinstance(answer, Mapping) else _numbered(answer, "output_"))


def usual(outputs: Mapping[str, OutputTensor]) -> Iterator[str]:
    """Return the default outputs: no tensor twice, no scalars, nested ones only if necessary."""
    several = [output for output in outputs.values() if output.tensor.ndim > 0 and output.tensor.numel()]
    top = [output for output in several if not output.nested and not _FOR_LOSSES.search(output.name)]
    places: set[tuple[object, ...]] = set()
    for name, tensor, _ in top or several:
        place = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if place not in places:
            places.add(place)
            yield name


def _flat(named: Iterable[tuple[str, Any]], before: str = "") -> Iterator[OutputTensor]:
    import torch

    for name, value in named:
        if _DROPPED.search(name):
            continue
        if isinstance(value, torch.Tensor):
            yield OutputTensor(f"{before}{name}", value, nested=bool(before))
        elif isinstance(value, Mapping):
            yield from _flat(value.items(), f"{before}{name}_")
        elif isinstance(value, list | tuple):
            yield from _flat(_numbered(value), f"{before}{name}_")


def _numbered(values: Iterable[Any], word: str = "") -> Iterator[tuple[str, Any]]:
    return ((f"{word}{i}", value) for i, value in enumerate(values))


def is_zero_shot(folder: Path, task: str) -> bool:
    """Whether a directory's model scores candidate texts of an image.

    Args:
        folder: the model's.
        task: that was asked for; empty: none.

    Raises:
        SourceError: the configuration is no JSON.
    """
    config = read_config(folder)
    both = _ARCHITECTURES.get(str(config.get("model_type")))
    return both is not None and task in {"", ZERO_SHOT} and (config.get("architectures") or [both])[0] == both


def usual_axes(axes: Mapping[str, AxisRange]) -> dict[str, AxisRange]:
    """Return the axis ranges of a zero-shot model: fewer images, and texts as short as labels."""
    length = axes[SEQUENCE]
    return {**axes, BATCH: _BATCH, SEQUENCE: length.model_copy(update={"opt": min(_USUAL_LENGTH, length.opt)})}


class ZeroShotAnswering(Answering):
    """Zero-shot wrapper: calls a model with images and the texts of each: `logits_per_image` is [batch, texts]."""

    def everything(self, feed: Mapping[str, torch.Tensor]) -> dict[str, OutputTensor]:
        """Return the scores.

        Raises:
            ValueError: the texts have no axis of their own.
        """
        import torch

        texts = {name: tensor for name, tensor in feed.items() if name in TEXT_INPUTS}
        if any(tensor.ndim != 3 for tensor in texts.values()):
            raise ValueError("every image has texts of its own")
        batch, count = texts[TEXT_INPUTS[0]].shape[:2]
        flat = {name: tensor.flatten(0, 1) for name, tensor in texts.items()}
        scores = super().everything({**feed, **flat})[SCORES].tensor
        rows = torch.arange(batch, device=scores.device)
        return {SCORES: OutputTensor(SCORES, scores.reshape(batch, batch, count)[rows, rows], nested=False)}
