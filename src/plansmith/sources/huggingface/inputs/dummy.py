"""The values of inputs whose kind is known: sentences, drawn images, waves of sound; the same ones for the same shape.

Rows of a batch differ in content and, where padding is marked, in length.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from plansmith.data import synthetic
from plansmith.errors import UsageError
from plansmith.records.model import Tensor
from plansmith.sources.huggingface.inputs.kinds import TARGET_AXIS, Fill
from plansmith.sources.huggingface.inputs.token_ids import TokenIdSource
from plansmith.sources.loaded_model import SEQUENCE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic]

_LARGEST_COORDINATE = 1000
# What stands at the tokens of a text.
_BESIDE_TEXT = {Fill.IDS, Fill.MASK, Fill.SEGMENTS}
_OBSERVED_SHARE = 0.9
_LOUDNESS = 0.3


@dataclass(frozen=True)
class Contents:
    """What the values of a model's inputs are made of.

    Args:
        words: by input of token ids.
        bounds: by input of whole numbers, one more than the largest; those of several columns, column by column.
        images: makes an image of a size that nothing need change into the array of a model.
    """

    words: Mapping[str, TokenIdSource] = field(default_factory=dict)
    bounds: Mapping[str, Sequence[int]] = field(default_factory=dict)
    images: Callable[[Sequence[Any]], Array | None] = lambda _: None


def filled(tensor: Tensor, kind: Fill, shape: tuple[int, ...], contents: Contents, led: Sequence[int] = ()) -> Array:
    """The values of one input.

    Args:
        tensor: its name, dtype and dims.
        kind: what it holds.
        shape: its sizes, the batch first.
        contents: what they are made of.
        led: ids of tokens that every text begins with, for images or sounds that are put into it; these are whole.

    Raises:
        UsageError: no text fits behind these tokens.
    """
    import numpy as np

    if led and kind in _BESIDE_TEXT and tensor.dims[-1] == SEQUENCE:
        if shape[-1] <= len(led):
            raise UsageError(
                f"{SEQUENCE} holds {len(led)} image or sound tokens: give {len(led) + 1} or more",
                remedy="make the smallest shape larger (--shapes)",
            )
        rest = _FILLS[kind](tensor, (*shape[:-1], shape[-1] - len(led)), contents)
        first = np.broadcast_to(led if kind is Fill.IDS else [1] * len(led), (*shape[:-1], len(led)))
        return np.concatenate([first, rest], axis=-1).astype(tensor.dtype)
    if led and kind is Fill.MASK and tensor.dims[-1] != TARGET_AXIS:
        kind = Fill.ONES
    return np.ascontiguousarray(_FILLS[kind](tensor, shape, contents), dtype=tensor.dtype)


def _ids(tensor: Tensor, shape: tuple[int, ...], contents: Contents) -> Array:
    import numpy as np

    words = contents.words[tensor.name]
    count, longest = int(np.prod(shape[:-1])), shape[-1]
    lengths = np.repeat(synthetic.sample_lengths(shape[0], longest), count // shape[0]).tolist()
    ids = np.full((count, longest), words.padding, dtype=np.int64)
    for place, row in enumerate(words.rows(lengths)):
        ids[place, : len(row)] = row
    return ids.reshape(shape)


def _mask(_: Tensor, shape: tuple[int, ...], contents: Contents) -> Array:
    del contents
    return synthetic.draw_mask(shape)


def _segments(tensor: Tensor, shape: tuple[int, ...], contents: Contents) -> Array:
    """A second segment, where the model knows one: all zeros would not show that the input is ignored."""
    import numpy as np

    bounds = contents.bounds.get(tensor.name, (1,))
    longest = shape[1] if len(bounds) > 1 else shape[-1]
    content = synthetic.draw_mask((shape[0], longest))
    late = np.where(np.arange(longest) >= longest // 2, content, 0)
    if len(bounds) > 1:
        return np.stack([late * (bound > 1) for bound in bounds], axis=-1)
    late = late * (bounds[0] > 1)
    return np.broadcast_to(late.reshape(shape[0], *(1,) * (len(shape) - 2), longest), shape)


def _positions(_: Tensor, shape: tuple[int, ...], contents: Contents) -> Array:
    import numpy as np

    del contents
    return np.broadcast_to(np.arange(shape[-1]), shape)


def _steps(tensor: Tensor, shape: tuple[int, ...], contents: Contents) -> Array:
    import numpy as np

    bound = contents.bounds.get(tensor.name, (shape[-1],))[0]
    return (np.arange(shape[-1]) + np.arange(shape[0])[:, None]) % bound


def _boxes(tensor: Tensor, shape: tuple[int, ...], contents: Contents) -> NDArray[np.int64]:
    """Left, top, right and bottom of words on a page, which is 1000 wide and high."""
    import numpy as np

    largest = min(_LARGEST_COORDINATE, contents.bounds.get(tensor.name, (_LARGEST_COORDINATE + 1,))[0] - 1)
    corners = _random(tensor, shape).integers(0, largest, (*shape[:-1], 2, 2), endpoint=True)
    return np.sort(corners, axis=-2).reshape(shape)


def _shares(tensor: Tensor, shape: tuple[int, ...], contents: Contents) -> NDArray[np.floating]:
    """Such boxes in shares of the page's sides."""
    import numpy as np

    return np.divide(_boxes(tensor, shape, contents), _LARGEST_COORDINATE)


def _points(tensor: Tensor, shape: tuple[int, ...], contents: Contents) -> NDArray[np.float64]:
    """Places in an image, in pixels from its left and upper side."""
    return _random(tensor, shape).uniform(0, contents.bounds.get(tensor.name, (1,))[0], shape)


def _hidden(_: Tensor, shape: tuple[int, ...], contents: Contents) -> Array:
    """Half of every row, from another place on in each: models cut what is hidden out, and so count on one number."""
    import numpy as np

    del contents
    count, length = shape
    return (np.arange(length) + np.arange(count)[:, None]) % length < length // 2


def _images(_: Tensor, shape: tuple[int, ...], contents: Contents) -> Array:
    import numpy as np

    *before, channels, height, width = shape
    count = int(np.prod(before))
    made = contents.images(synthetic.sample_images(count, height, width, seed=count))
    if made is None or made.shape != (count, channels, height, width):
        made = _any_images((count, channels, height, width))
    return made.reshape(shape)


def _any_images(shape: tuple[int, ...]) -> Array:
    """Images of any number of channels, normalised as most models want them."""
    import numpy as np

    if shape[1] in synthetic.CHANNELS:
        return synthetic.draw_images(shape, channels_first=True, raw=False)
    coloured = synthetic.draw_images((shape[0], 3, *shape[2:]), channels_first=True, raw=False)
    return np.take(coloured, np.arange(shape[1]) % 3, axis=1)


def _sound(tensor: Tensor, shape: tuple[int, ...], contents: Contents) -> Array:
    """Waves of a few tones with noise, along the last axis or, in a spectrogram, the longer of the last two."""
    import numpy as np

    del contents
    rng = _random(tensor, shape)
    along = len(shape) - 1 if len(shape) < 3 or shape[-1] >= shape[-2] else len(shape) - 2
    time = np.linspace(0, 1, shape[along]).reshape([-1 if i == along else 1 for i in range(len(shape))])
    tones = [1 if i == along else n for i, n in enumerate(shape)]
    waves = sum(np.sin(2 * np.pi * rng.uniform(2, 60, tones) * time + rng.uniform(0, 6, tones)) for _ in range(3))
    return _LOUDNESS * waves + 0.1 * rng.standard_normal(shape)


def _values(tensor: Tensor, shape: tuple[int, ...], contents: Contents) -> NDArray[np.float64]:
    del contents
    return _random(tensor, shape).standard_normal(shape)


def _patches(tensor: Tensor, shape: tuple[int, ...], contents: Contents) -> Array:
    """Row and column, from 1 on, then the pixels."""
    import numpy as np

    values = _values(tensor, shape, contents)
    columns = max(1, int(np.sqrt(shape[1])))
    values[..., 0], values[..., 1] = 1 + np.arange(shape[1]) // columns, 1 + np.arange(shape[1]) % columns
    return values


def _observed(tensor: Tensor, shape: tuple[int, ...], contents: Contents) -> Array:
    del contents
    return _random(tensor, shape).random(shape) < _OBSERVED_SHARE


def _flags(tensor: Tensor, shape: tuple[int, ...], contents: Contents) -> Array:
    """The first of every row is set."""
    import numpy as np

    del tensor, contents
    return np.broadcast_to(np.arange(shape[-1]) == 0, shape)


def _labels(tensor: Tensor, shape: tuple[int, ...], contents: Contents) -> Array:
    import numpy as np

    bounds = contents.bounds.get(tensor.name, (2,))
    largest = np.array(bounds if len(bounds) == shape[-1] else bounds[:1])
    return _random(tensor, shape).integers(0, largest, shape)


def _ones(_: Tensor, shape: tuple[int, ...], contents: Contents) -> Array:
    import numpy as np

    del contents
    return np.ones(shape)


def _random(tensor: Tensor, shape: tuple[int, ...]) -> np.random.Generator:
    import numpy as np

    return np.random.default_rng([zlib.crc32(tensor.name.encode()), *shape])


_FILLS: dict[Fill, Callable[[Tensor, tuple[int, ...], Contents], Array]] = {
    Fill.IDS: _ids,
    Fill.MASK: _mask,
    Fill.SEGMENTS: _segments,
    Fill.POSITIONS: _positions,
    Fill.BOXES: _boxes,
    Fill.SHARES: _shares,
    Fill.POINTS: _points,
    Fill.IMAGES: _images,
    Fill.PATCHES: _patches,
    Fill.VIDEO: _images,
    Fill.SOUND: _sound,
    Fill.VALUES: _values,
    Fill.OBSERVED: _observed,
    Fill.STEPS: _steps,
    Fill.FLAGS: _flags,
    Fill.LABELS: _labels,
    Fill.HIDDEN: _hidden,
    Fill.ONES: _ones,
}
