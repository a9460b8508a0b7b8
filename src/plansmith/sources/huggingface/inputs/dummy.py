"""Dummy input values by kind: sentences, drawn images, audio waveforms; deterministic for each shape.

Rows of a batch differ in content and, where padding is marked, in length.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from plansmith.data import synthetic
from plansmith.errors import UsageError
from plansmith.records.model import Tensor
from plansmith.sources.huggingface.inputs.kinds import TARGET_AXIS, Fill
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
class TokenIdSource:
    """Token id source.

    Args:
        vocabulary: ids are below it.
        special: ids that stand for no word.
        padding: the id behind the end of a row.
        start: the first id of a row; None: any.
        end: the last id of a row, which some models look for; None: any.
        tokenizer: makes ids of sentences; None: they are drawn.
    """

    vocabulary: int
    special: frozenset[int]
    padding: int = 0
    start: int | None = None
    end: int | None = None
    tokenizer: Any = None

    def rows(self, lengths: Sequence[int]) -> list[list[int]]:
        """Return one row of ids per length."""
        if self.tokenizer is None:
            return [self._framed(row) for row in self._drawn(lengths)]
        texts = synthetic.sample_texts(len(lengths), max(lengths), offset=sum(lengths))
        rows = self._tokenized(texts, max(8, *lengths))
        # The last token is the model's own end mark; a row is cut before it, never after.
        alone = slice(0, 1) if self.end is None else slice(-1, None)
        cut = [row[: n - 1] + row[-1:] if n > 1 else row[alone] for row, n in zip(rows, lengths, strict=True)]
        return [self._started(row) for row in cut]

    def _tokenized(self, texts: Sequence[str], longest: int) -> list[list[int]]:
        options: dict[str, Any] = {"text": list(texts)}
        if "boxes" in inspect.signature(self.tokenizer.__call__).parameters:
            # Tokenizers of pages take words, each with where it stands.
            word_lists = [text.split() for text in texts]
            options = {"text": word_lists, "boxes": [[[0] * 4] * len(row) for row in word_lists]}
        rows: list[list[int]] = self.tokenizer(**options, truncation=True, max_length=longest)["input_ids"]
        return rows

    def _drawn(self, lengths: Sequence[int]) -> list[list[int]]:
        import numpy as np

        rng = np.random.default_rng(sum(lengths))
        is_word = np.ones(self.vocabulary, dtype=bool)
        is_word[[number for number in self.special if number < self.vocabulary]] = False
        word_ids = np.flatnonzero(is_word) if is_word.any() else np.array([0])
        return [rng.choice(word_ids, n).tolist() for n in lengths]

    def _framed(self, row: list[int]) -> list[int]:
        return self._started(row if self.end is None else [*row[:-1], self.end])

    def _started(self, row: list[int]) -> list[int]:
        return row if self.start is None else [self.start, *row[1:]]


@dataclass(frozen=True)
class Contents:
    """Content of a model's input values.

    Args:
        token_sources: by input of token ids.
        bounds: by input of whole numbers, one more than the largest; those of several columns, column by column.
        images: makes an image of a size that nothing need change into the array of a model.
    """

    token_sources: Mapping[str, TokenIdSource] = field(default_factory=dict)
    bounds: Mapping[str, Sequence[int]] = field(default_factory=dict)
    images: Callable[[Sequence[Any]], Array | None] = lambda _: None


def filled(tensor: Tensor, kind: Fill, shape: tuple[int, ...], contents: Contents, led: Sequence[int] = ()) -> Array:
    """Return the values of one input.

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

    tokens = contents.token_sources[tensor.name]
    count, longest = int(np.prod(shape[:-1])), shape[-1]
    lengths = np.repeat(synthetic.sample_lengths(shape[0], longest), count // shape[0]).tolist()
    ids = np.full((count, longest), tokens.padding, dtype=np.int64)
    for place, row in enumerate(tokens.rows(lengths)):
        ids[place, : len(row)] = row
    return ids.reshape(shape)


def _mask(_: Tensor, shape: tuple[int, ...], contents: Contents) -> Array:
    del contents
    return synthetic.draw_mask(shape)


def _segments(tensor: Tensor, shape: tuple[int, ...], contents: Contents) -> Array:
    """Fill in a second segment if the model supports one: all zeros would not reveal an ignored input."""
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
    """Fill in left, top, right and bottom of words on a page, which is 1000 wide and high."""
    import numpy as np

    largest = min(_LARGEST_COORDINATE, contents.bounds.get(tensor.name, (_LARGEST_COORDINATE + 1,))[0] - 1)
    corners = _random(tensor, shape).integers(0, largest, (*shape[:-1], 2, 2), endpoint=True)
    return np.sort(corners, axis=-2).reshape(shape)


def _shares(tensor: Tensor, shape: tuple[int, ...], contents: Contents) -> NDArray[np.floating]:
    """Fill in such boxes as fractions of the page's sides."""
    import numpy as np

    return np.divide(_boxes(tensor, shape, contents), _LARGEST_COORDINATE)


def _points(tensor: Tensor, shape: tuple[int, ...], contents: Contents) -> NDArray[np.float64]:
    """Fill in points of an image, in pixels from its left and upper side."""
    return _random(tensor, shape).uniform(0, contents.bounds.get(tensor.name, (1,))[0], shape)


def _hidden(_: Tensor, shape: tuple[int, ...], contents: Contents) -> Array:
    """Mask half of every row, from a different start in each: models extract masked positions, in equal numbers."""
    import numpy as np

    del contents
    count, length = shape
    return (np.arange(length) + np.arange(count)[:, None]) % length < length // 2


def _images(_: Tensor, shape: tuple[int, ...], contents: Contents) -> Array:
    import numpy as np

    *before, channels, height, width = shape
    count = int(np.prod(before))
    batch = contents.images(synthetic.sample_images(count, height, width, seed=count))
    if batch is None or batch.shape != (count, channels, height, width):
        batch = _any_images((count, channels, height, width))
    return batch.reshape(shape)


def _any_images(shape: tuple[int, ...]) -> Array:
    """Return images with any number of channels, normalized as most models expect."""
    import numpy as np

    if shape[1] in synthetic.CHANNELS:
        return synthetic.draw_images(shape, channels_first=True, raw=False)
    coloured = synthetic.draw_images((shape[0], 3, *shape[2:]), channels_first=True, raw=False)
    return np.take(coloured, np.arange(shape[1]) % 3, axis=1)


def _sound(tensor: Tensor, shape: tuple[int, ...], contents: Contents) -> Array:
    """Return waves of a few tones with noise, along the last axis or, in a spectrogram, the longer of the last two."""
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
    """Return row and column, counted from 1, followed by the pixels."""
    import numpy as np

    values = _values(tensor, shape, contents)
    columns = max(1, int(np.sqrt(shape[1])))
    values[..., 0], values[..., 1] = 1 + np.arange(shape[1]) // columns, 1 + np.arange(shape[1]) % columns
    return values


def _observed(tensor: Tensor, shape: tuple[int, ...], contents: Contents) -> Array:
    del contents
    return _random(tensor, shape).random(shape) < _OBSERVED_SHARE


def _flags(tensor: Tensor, shape: tuple[int, ...], contents: Contents) -> Array:
    """Set the first flag of each row."""
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
