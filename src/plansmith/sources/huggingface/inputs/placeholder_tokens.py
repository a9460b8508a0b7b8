"""Texts that images or sounds are put into: a model fills the places of one token with what it made of an image.

As many tokens have to stand there as it makes vectors, which the model itself is asked for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from plansmith.sources.huggingface.config_values import stated

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from transformers import PreTrainedModel

    Arrays = Mapping[str, NDArray[np.generic]]


class Placeholders(NamedTuple):
    """How inputs of one kind get into a text."""

    name: str
    tokens: tuple[str, ...]
    method: str


# The input, the facts that say which token stands for it, and what the model is asked for its vectors by.
_PLACED = (
    Placeholders("pixel_values", ("image_token_id", "image_token_index"), "get_image_features"),
    Placeholders("input_features", ("audio_token_id", "audio_token_index"), "get_audio_features"),
)


def leading_tokens(model: PreTrainedModel, make: Callable[[], Arrays]) -> tuple[int, ...]:
    """The tokens of one text that an image or a sound goes into; none where none does.

    Args:
        model: in eval mode.
        make: makes inputs by name, of whole images and sounds.

    Raises:
        Exception: whatever the model raises where it cannot take them.
    """
    found: list[int] = []
    known = [(one, stated(model.config, one.tokens)) for one in _PLACED]
    feed = make() if any(type(token) is int for _, token in known) else {}
    for (name, _, method), token in known:
        asked = getattr(model, method, None) or getattr(model.base_model, method, None)
        if name in feed and "input_ids" in feed and type(token) is int and asked is not None:
            found += [token] * (_vectors(asked, feed) // len(feed[name]))
    return tuple(found)


def _vectors(method: Any, feed: Arrays) -> int:
    """How many vectors a model makes of all its images or sounds."""
    import torch

    takes = inspect.signature(method).parameters
    with torch.inference_mode():
        answer = method(**{name: torch.from_numpy(array) for name, array in feed.items() if name in takes})
    made = getattr(answer, "pooler_output", answer)
    return sum(part.numel() // part.shape[-1] for part in (made if isinstance(made, Sequence) else [made]))
