"""Axis ranges of a transformers model's inputs, and the limits of its position tables."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from plansmith.errors import SourceError
from plansmith.records.model import BATCH, BATCH_RANGE, AxisRange
from plansmith.sources.directory import read_json
from plansmith.sources.huggingface.inputs.kinds import (
    CHOICES,
    FRAMES,
    HEIGHT,
    SAMPLES,
    TARGET_AXIS,
    TEXTS,
    VIDEO_FRAMES,
    WIDTH,
)
from plansmith.sources.huggingface.outputs import CLIP_FRAMES, IMAGE, Fact, number, stated
from plansmith.sources.huggingface.processors import Preprocessors
from plansmith.sources.loaded_model import SEQUENCE

if TYPE_CHECKING:
    from transformers import PreTrainedModel

USUAL_LENGTH = 128
LONGEST_LENGTH = 512
_USUAL_TARGET, _LONGEST_TARGET = 32, 128
USUAL_FRAMES = 128
_FRAMES = AxisRange(min=16, opt=USUAL_FRAMES, max=512)
_CHOICES = AxisRange(min=2, opt=4, max=4)
_TEXTS = AxisRange(min=1, opt=8, max=64)
_OTHERS = AxisRange(min=1, opt=16, max=64)
_USUAL_RATE = 16_000
_LARGEST_ANSWER_BYTES = 1 << 30
_SECONDS = (0.1, 1, 5)

# Most networks for images halve the sides five times.
_COARSEST = 32
_SMALLEST = 64
_PATCH = Fact(("patch_size", "patch_stride"))

_LENGTHS = ("max_position_embeddings", "max_seq_len", "max_sequence_length")
_WRITTEN_LENGTHS = ("max_target_positions", "max_decoder_position_embeddings", *_LENGTHS)
_READ_LENGTHS = ("max_encoder_position_embeddings", *_LENGTHS)
# How position tables of one learned vector a place are called; of sines, too, where the table is that long only.
_TABLES = {
    "position_embeddings",
    "position_embedding",
    "embed_positions",
    "wpe",
    "positions_embed",
    "char_position_embeddings",
}
_NOT_TEXT = ("vision", "visual", "image", "audio", "speech", "pixel")
# Models that fill a sequence up to whole windows of this fact need positions for what they add.
_WINDOWS = ("attention_window",)


class RangeSource(Protocol):
    """Facts that ranges are derived from."""

    @property
    def config(self) -> Any:
        """The model's configuration."""

    @property
    def pre(self) -> Preprocessors:
        """The model's tokenizer and processors."""

    @property
    def folder(self) -> Path:
        """The model's directory."""

    @property
    def limits(self) -> Mapping[str, int]:
        """The largest sizes that the model has positions for."""


def axis_range(axis: str, source: RangeSource, sides: Mapping[str, int]) -> AxisRange:
    """Return the default range of an axis.

    Args:
        axis: its name.
        source: configuration, processors and limits.
        sides: the usual height and width of images.
    """
    if axis == BATCH:
        return BATCH_RANGE
    if axis in {HEIGHT, WIDTH}:
        return side_range(sides[axis], number(source.config, _PATCH, IMAGE) or 1)
    if axis == VIDEO_FRAMES:
        frames = number(source.config, CLIP_FRAMES, IMAGE) or 1
        return AxisRange(min=max(1, frames // 2), opt=frames, max=frames)
    if axis == SAMPLES:
        rate = getattr(source.pre.sound, "sampling_rate", None) or number(source.config, Fact(("sampling_rate",)))
        low, usual, high = (round((rate or _USUAL_RATE) * seconds) for seconds in _SECONDS)
        return AxisRange(min=low, opt=usual, max=high)
    usual, high, low = {
        SEQUENCE: (USUAL_LENGTH, _authors_length(source), 1),
        TARGET_AXIS: (_USUAL_TARGET, _LONGEST_TARGET, 1),
        FRAMES: (_FRAMES.opt, _FRAMES.max, _FRAMES.min),
        CHOICES: (_CHOICES.opt, _CHOICES.max, _CHOICES.min),
        TEXTS: (_TEXTS.opt, _TEXTS.max, _TEXTS.min),
    }.get(axis, (_OTHERS.opt, _OTHERS.max, _OTHERS.min))
    high = min(high, source.limits.get(axis) or high)
    return AxisRange(min=min(low, high), opt=min(usual, high), max=high)


def side_range(usual: int, patch: int) -> AxisRange:
    """Return the range from half the usual image height or width up to the usual one, which costs the most.

    Both are whole patches and, where the usual one is, multiples of 32. What is left of smaller images than 64 is a
    single pixel in the end, which some normalisations refuse: where half were less, larger ones are taken instead.
    """
    whole = (n for n in (max(_COARSEST, patch), patch) if n % patch == 0 and usual % n == 0 and usual > n)
    step = next(whole, 1)
    low = max(step, usual // 2 // step * step)
    if low < _SMALLEST <= usual:
        low = min(usual, -(-_SMALLEST // step) * step)
    high = usual if low < usual else (usual + usual // 2) // step * step
    return AxisRange(min=low, opt=usual, max=high)


def led_range(usual: AxisRange, led: int, limit: int | None) -> AxisRange:
    """Return the text sizes with leading image or audio tokens: those, and the usual sizes after them.

    Args:
        usual: of texts alone.
        led: the number of those tokens.
        limit: the longest text that the model has positions for.

    Raises:
        SourceError: it has none for a text behind those tokens.
    """
    if limit is not None and limit <= led:
        raise SourceError(
            f"{SEQUENCE} holds {led} image or sound tokens, and the model has positions for {limit}",
            remedy="correct its configuration: it has to have positions for these tokens and for a text",
        )
    high = min(usual.max + led, limit or usual.max + led)
    return AxisRange(min=min(led + 1, high), opt=min(usual.opt + led, high), max=high)


def affordable(
    axes: Mapping[str, AxisRange], sizes: Mapping[str, int], answers: Iterable[tuple[tuple[int, ...], int]]
) -> dict[str, AxisRange]:
    """Limit the ranges to a batch whose largest answer is not too large.

    A language model's scores of every word at every token are what is: 10 GB for 32 texts of 512 tokens and 150 000
    words.

    Args:
        axes: that were thought of.
        sizes: at which the model was asked.
        answers: shape and bytes of an element of every tensor that it gave.
    """
    if BATCH not in axes:
        return dict(axes)
    growth = {size: axes[axis].max / size for axis, size in sizes.items() if axis != BATCH}
    largest = max((width * math.prod(n * growth.get(n, 1) for n in shape[1:]) for shape, width in answers), default=1)
    high = axes[BATCH].max
    while high > 1 and high * largest > _LARGEST_ANSWER_BYTES:
        high //= 2
    usual = min(axes[BATCH].opt, max(1, high // 2) if high < axes[BATCH].max else high)
    return {**axes, BATCH: AxisRange(min=1, opt=usual, max=high)}


def position_limits(model: PreTrainedModel) -> dict[str, int]:
    """Return the longest sequence and target that a model has positions for; omits unlimited ones."""
    config, axis_limits = model.config, {}
    written = _WRITTEN_LENGTHS if _writes(model) else ()
    for axis, names, side in ((SEQUENCE, _READ_LENGTHS, ("text", "encoder")), (TARGET_AXIS, written, ("decoder",))):
        value = stated(config, names, side) if names else None
        limits = [value] if type(value) is int and value > 0 else []
        limits += [limit for place, limit in _tables(model) if place == axis]
        if limits:
            axis_limits[axis] = min(limits)
    window = stated(config, _WINDOWS)
    widest = max(window) if isinstance(window, list) else window
    if widest and SEQUENCE in axis_limits:
        axis_limits[SEQUENCE] = axis_limits[SEQUENCE] // widest * widest
    return axis_limits


def _tables(model: PreTrainedModel) -> Iterator[tuple[str, int]]:
    """Yield axis and length of each position embedding table for text."""
    from torch import nn

    for path, table in model.named_modules():
        *above, name = path.split(".")
        if name not in _TABLES or not isinstance(table, nn.Embedding) or _is_other(above):
            continue
        # RoBERTa and its kin count positions from the padding index on, and so lose the first ones; BART keeps two.
        lost = getattr(table, "offset", None)
        lost = lost if type(lost) is int else 0 if table.padding_idx is None else table.padding_idx + 1
        is_target = _writes(model) and any(part.endswith("decoder") for part in above)
        yield TARGET_AXIS if is_target else SEQUENCE, table.num_embeddings - lost


def _writes(model: PreTrainedModel) -> bool:
    return "decoder_input_ids" in inspect.signature(model.forward).parameters


def _is_other(above: list[str]) -> bool:
    return any(word in part for part in above for word in _NOT_TEXT)


def _authors_length(source: RangeSource) -> int:
    """Return the default maximum sequence length: the authors' own choice, if there is one."""
    chosen = source.folder / "sentence_bert_config.json"
    length = read_json(chosen).get("max_seq_length") if chosen.is_file() else None
    return int(length or min(LONGEST_LENGTH, getattr(source.pre.tokenizer, "model_max_length", LONGEST_LENGTH)))
