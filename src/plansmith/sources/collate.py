"""Collation of samples into batch arrays: texts by a tokenizer, images by a processor, arrays unchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.config.data import IMAGE, TEXT, TEXT_PAIR
from plansmith.data.labels import END, IGNORED, START, TAGS, Span
from plansmith.data.sample import Sample
from plansmith.errors import SourceError, UsageError
from plansmith.records.model import AxisRange, Dim, Tensor
from plansmith.sources.loaded_model import Align, Encoded

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from plansmith.records.arrays import Arrays


_CROP = "save the model with a processor that crops to its size"

# Below this a tokenizer has no room for its marks around a word or two: such rows are cut afterwards.
_SHORTEST_TRUNCATION = 8


def encode_arrays(
    tensors: Sequence[Tensor], mask_input: str | None, samples: Sequence[Sample], axes: Mapping[str, AxisRange]
) -> Encoded:
    """Collate values that are already inputs. Pads rows of different lengths with zeros, and creates missing masks.

    Args:
        tensors: the model's inputs; those that the samples do not have stay out, but for the mask.
        mask_input: the one that marks padding.
        samples: of one batch.
        axes: the sizes that the axes may have; a row is filled up to the least.

    Raises:
        UsageError: values of another rank, size or dtype than the input.
    """
    import numpy as np

    rows: dict[str, list[NDArray[np.generic]]] = {
        t.name: [_row(t, s, axes) for s in samples] for t in tensors if t.name in samples[0].values
    }
    sizes: dict[str, int] = {}
    for tensor in tensors:
        for array in rows.get(tensor.name, []):
            for dim, size in zip(tensor.dims[1:], array.shape, strict=True):
                if isinstance(dim, str):
                    sizes[dim] = max(size, sizes.get(dim, axes[dim].min))
    mask = next((t for t in tensors if t.name == mask_input and t.name not in rows), None)
    if mask is not None:
        like = next((t for t in tensors if t.name in rows and t.dims == mask.dims), None)
        if like is None:
            raise UsageError(
                f"data: the values of {mask.name!r} are missing", remedy="give them a column of the input's name"
            )
        rows[mask.name] = [np.ones(row.shape, mask.dtype) for row in rows[like.name]]
    feed = {t.name: np.stack([_filled(r, t, sizes) for r in rows[t.name]]) for t in tensors if t.name in rows}
    return Encoded(feed, {})


def encode_texts(
    tokenizer: Any, names: Sequence[str], samples: Sequence[Sample], lengths: AxisRange, align: Align
) -> Encoded:
    """Tokenize texts, pairs, or word lists: truncated to the maximum length, padded to the longest of the batch.

    Args:
        tokenizer: the model's own, of transformers.
        names: the model's inputs.
        samples: of one batch.
        lengths: the sizes that the sequence may have.
        align: which labels stand at tokens: "tags" for a list of class ids a sample, "answer" for a Span.

    Raises:
        SourceError: the tokenizer cannot tell which word or letter a token stands for.
        UsageError: a list of tags that does not fit its words.
    """
    import numpy as np

    if align and not tokenizer.is_fast:
        raise SourceError(
            "the model's tokenizer does not tell where its tokens stand in the text, which labels need",
            remedy="save a fast one with the model (tokenizer.json), or set metric: none under `data`",
        )
    texts = [s.values[TEXT] for s in samples]
    pairs = [s.values[TEXT_PAIR] for s in samples] if TEXT_PAIR in samples[0].values else None
    encoded = tokenizer(
        texts,
        pairs,
        truncation="longest_first" if pairs else True,
        max_length=max(_SHORTEST_TRUNCATION, lengths.max),
        padding=False,
        is_split_into_words=isinstance(texts[0], list),
        return_token_type_ids="token_type_ids" in names,
        return_attention_mask=True,
    )
    counts = [min(len(row), lengths.max) for row in encoded["input_ids"]]
    longest = max(lengths.min, *counts)
    left = tokenizer.padding_side == "left"

    def filled(rows: Sequence[Sequence[int]], padding: int) -> NDArray[np.int64]:
        array = np.full((len(rows), longest), padding, np.int64)
        for place, (row, count) in enumerate(zip(rows, counts, strict=True)):
            # The last token is the model's own end mark: a row is cut before it, never after.
            row_tokens = [*row[: count - 1], row[-1]]
            array[place, longest - count if left else 0 : longest if left else count] = row_tokens
        return array

    paddings = {
        "input_ids": tokenizer.pad_token_id or 0,
        "attention_mask": 0,
        "token_type_ids": tokenizer.pad_token_type_id,
    }
    feed: dict[str, NDArray[np.generic]] = {name: filled(encoded[name], paddings[name]) for name in names}
    if align == "tags":
        return Encoded(feed, {TAGS: filled([_tags(encoded, i, s) for i, s in enumerate(samples)], IGNORED)})
    if align == "answer":
        begins = [longest - count if left else 0 for count in counts]
        spans = [_tokens_of(encoded, i, s, counts[i]) for i, s in enumerate(samples)]
        shifted = [
            tuple(t + begin if t != IGNORED else t for t in pair) for pair, begin in zip(spans, begins, strict=True)
        ]
        starts, ends = (np.array([pair[side] for pair in shifted], np.int64) for side in (0, 1))
        return Encoded(feed, {START: starts, END: ends})
    return Encoded(feed, {})


def encode_images(
    tensor: Tensor,
    samples: Sequence[Sample],
    to_array: Callable[[Any, str], NDArray[np.generic]],
    axes: Mapping[str, AxisRange],
) -> Encoded:
    """Preprocess images, each separately.

    Args:
        tensor: the model's input.
        samples: of one batch.
        to_array: makes an array of an image; its second argument is the sample's place, for errors.
        axes: the sizes that the axes may have.

    Raises:
        SourceError: an image cannot be read, or comes out in another size than the model, or the batch, takes.
    """
    import numpy as np

    arrays: list[NDArray[np.generic]] = []
    for sample in samples:
        where = _where(sample)
        array = to_array(sample.values[IMAGE], where)
        if not _takes(tensor, array.shape, axes) or (arrays and array.shape != arrays[0].shape):
            takes = list(arrays[0].shape) if arrays else [_dim_text(dim, axes) for dim in tensor.dims[1:]]
            raise SourceError(
                f"{where} becomes {list(array.shape)}, and the {'batch' if arrays else 'model'} takes"
                f" [{', '.join(map(str, takes))}]",
                remedy=_CROP,
            )
        arrays.append(array.astype(tensor.dtype))
    return Encoded({tensor.name: np.stack(arrays)}, {})


def require_one_size(tensors: Sequence[Tensor], samples: Sequence[Sample], feed: Arrays) -> None:
    """Require that dims with the same name have the same size in a batch.

    Args:
        tensors: the model's inputs.
        samples: of the batch, which were encoded with a name for each dim.
        feed: what became of them.

    Raises:
        SourceError: they have not; a processor that keeps the shape of images makes such.
    """
    sizes: dict[str, int] = {}
    for tensor in (tensor for tensor in tensors if tensor.name in feed):
        shape = feed[tensor.name].shape
        for dim, size in zip(tensor.dims, shape, strict=True):
            if isinstance(dim, str) and sizes.setdefault(dim, size) != size:
                raise SourceError(
                    f"{_where(samples[0])} becomes {list(shape[1:])}, and the model takes"
                    f" [{', '.join(map(str, tensor.dims[1:]))}], {dim!r} always of one size",
                    remedy=_CROP,
                )


def _where(sample: Sample) -> str:
    value = sample.values.get(IMAGE)
    if value is None:
        return f"row {sample.row}"
    return str(value) if isinstance(value, Path) else f"the image of row {sample.row}"


def _takes(tensor: Tensor, shape: tuple[int, ...], axes: Mapping[str, AxisRange]) -> bool:
    """Whether a sample has sizes that an input accepts."""
    return len(shape) == len(tensor.dims) - 1 and all(
        axes[dim].min <= size <= axes[dim].max if isinstance(dim, str) else size == dim
        for dim, size in zip(tensor.dims[1:], shape, strict=True)
    )


def _dim_text(dim: Dim, axes: Mapping[str, AxisRange]) -> str:
    return f"{axes[dim].min} to {axes[dim].max}" if isinstance(dim, str) else str(dim)


def _row(tensor: Tensor, sample: Sample, axes: Mapping[str, AxisRange]) -> NDArray[np.generic]:
    """Return one sample's values for one input."""
    import numpy as np

    array = np.asarray(sample.values[tensor.name])
    form = f"[{', '.join(map(str, tensor.dims[1:]))}]"
    message = f"data: row {sample.row}: {tensor.name} is {array.dtype} {list(array.shape)}, and the input takes"
    fits = array.ndim == len(tensor.dims) - 1 and all(
        isinstance(dim, str) or dim == size for dim, size in zip(tensor.dims[1:], array.shape, strict=True)
    )
    if not fits:
        raise UsageError(f"{message} {form}", remedy="give one array of that form a sample")
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise UsageError(
            f"data: row {sample.row}: {tensor.name} holds {int(np.isnan(array).sum())} NaN, and so would every answer",
            remedy="take that row out, or fill in what is missing",
        )
    if not np.can_cast(array.dtype, tensor.dtype, "same_kind"):
        raise UsageError(f"{message} {tensor.dtype}", remedy=f"store it as {tensor.dtype}")
    for dim, size in zip(tensor.dims[1:], array.shape, strict=True):
        if isinstance(dim, str) and size > axes[dim].max:
            raise UsageError(
                f"{message} at most {axes[dim].max} for {dim!r}", remedy="shorten it, or set `shapes` in the spec"
            )
    return array.astype(tensor.dtype)


def _filled(array: NDArray[np.generic], tensor: Tensor, sizes: Mapping[str, int]) -> NDArray[np.generic]:
    """Return an array padded with zeros to the sizes of the batch."""
    import numpy as np

    ends = [
        (0, sizes[dim] - size if isinstance(dim, str) else 0)
        for dim, size in zip(tensor.dims[1:], array.shape, strict=True)
    ]
    return np.pad(array, ends) if ends else array


def _tags(encoded: Any, place: int, sample: Sample) -> list[int]:
    """Return the tag of each token: its word's tag at the first token of the word, else none."""
    word_indices, tags = encoded.word_ids(place), sample.label
    if not isinstance(sample.values[TEXT], list) or len(tags) != len(sample.values[TEXT]):
        word_count = len(sample.values[TEXT]) if isinstance(sample.values[TEXT], list) else "one text, not"
        raise UsageError(
            f"data: row {sample.row} has {len(tags)} tags for {word_count} words",
            remedy="give the words as a list, and one tag a word",
        )
    return [
        tags[word] if word is not None and (i == 0 or word_indices[i - 1] != word) else IGNORED
        for i, word in enumerate(word_indices)
    ]


def _tokens_of(encoded: Any, place: int, sample: Sample, count: int) -> tuple[int, int]:
    """Return the first and last token of an answer."""
    span: Span = sample.label
    if span.begin == span.end:
        return 0, 0
    side = 1 if TEXT_PAIR in sample.values else 0
    first = encoded.char_to_token(place, span.begin, side)
    last = encoded.char_to_token(place, span.end - 1, side)
    if first is None or last is None or max(first, last) >= count:
        return IGNORED, IGNORED
    return first, last
