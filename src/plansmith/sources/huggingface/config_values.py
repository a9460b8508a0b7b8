"""Numbers that a configuration of transformers states, wherever in its nested parts they stand."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

TEXT = ("text", "encoder")
TARGET = ("decoder", "text", "generator")
IMAGE = ("vision", "image", "backbone", "encoder")
SOUND = ("audio", "speech", "encoder")

_DEEPEST = 3


@dataclass(frozen=True)
class Fact:
    """A number of a configuration.

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
    """A configuration's parts: first those whose names begin as the side says, then itself, then the others."""
    nested = list(_nested(config, _DEEPEST))
    first = [part for word in side for name, part in nested if name.startswith(word)]
    yield from first
    yield config
    yield from (part for _, part in nested if not any(part is one for one in first))


def stated(config: Any, names: Sequence[str], side: Sequence[str] = ()) -> Any:
    """The first value that a configuration has under one of these names; None where it has none."""
    found = (getattr(part, name, None) for part in parts(config, side) for name in names)
    return next((value for value in found if value is not None), None)


def number(config: Any, fact: Fact, side: Sequence[str] = ()) -> int | None:
    """What a configuration says a fact is."""
    value = stated(config, fact.names, side)
    if value is None:
        value = next((_DERIVED[name](config) for name in fact.names if name in _DERIVED), None)
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        value = value[min(fact.place, len(value) - 1)] if value else None
    usable = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    known = int(value) if usable else fact.otherwise
    return None if known is None else known * fact.times + fact.more


def special_ids(config: Any) -> set[int]:
    """Ids that stand for no word: padding, ends, and the places that images or sounds are put into."""
    found: set[int] = set()
    for part in parts(config):
        for name, value in vars(part).items():
            if name.endswith(("token_id", "token_index", "token_ids")):
                found.update(v for v in (value if isinstance(value, list | tuple) else [value]) if type(v) is int)
    return {value for value in found if value >= 0}


def _past_length(config: Any) -> int | None:
    """How much of a series a forecaster reads that looks back beyond its context, by lags."""
    lags, context = stated(config, ("lags_sequence",)), stated(config, ("context_length",))
    return context + max(lags) if lags and context else None


def _codepoints(config: Any) -> int | None:
    """How many ids a model tells apart that hashes them, and so counts no words: all characters."""
    return sys.maxunicode + 1 if stated(config, ("num_hash_buckets",)) else None


def _grid_patches(config: Any) -> int | None:
    """Into how many patches an image or, where the configuration counts its images, a video is cut."""
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
