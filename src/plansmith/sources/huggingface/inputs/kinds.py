"""Input kinds of transformers models, by the argument names of their forward methods: one table.

A kind says what fills an input, and which forms it can have. A dim is a name where the axis may move, a number, or a
fact of the configuration. The first form whose facts are known counts; of a main input, the first that the model
answers to. Where families differ under one name, they differ in their configuration, which decides here as well.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from plansmith.config.spec import InputSpec
from plansmith.errors import SourceError, UsageError
from plansmith.records.model import BATCH, AxisRange, Tensor
from plansmith.sources.huggingface.outputs import CLIP_FRAMES, IMAGE, SOUND, TARGET, TEXT, Fact, number
from plansmith.sources.loaded_model import SEQUENCE, InputPlan

if TYPE_CHECKING:
    from transformers import PreTrainedModel


# Axes that may move.
TARGET_AXIS, HEIGHT, WIDTH, FRAMES, SAMPLES = "target", "height", "width", "frames", "samples"
VIDEO_FRAMES = "video_frames"
PATCHES, POINTS, REGIONS, CHOICES, QUESTION = "patches", "points", "regions", "choices", "question"
TEXTS = "texts"

SIDE = Fact(("image_size", "crop_size", "img_size", "max_img_size"))
"""The height and width of images, where the configuration states one; `place` 1 is the width."""

_CHANNELS = Fact(("num_channels", "in_channels", "in_chans"), otherwise=3)
_MELS = Fact(("num_mel_bins", "n_mels", "feature_size"))
_SERIES_LENGTH = Fact(("context_length",))
_SERIES_CHANNELS = Fact(("num_input_channels", "input_size"))

VOCABULARY = Fact(("vocab_size", "codepoints"))

Dim = str | int | Fact
_MARKUP = ("xpath_tags_seq", "xpath_subs_seq")
# Models of sound whose first layer normalises over groups were trained without masks, their authors say: padding with
# zeros is what they know. (A processor says the same with return_attention_mask.)
WITHOUT_MASK = {"feat_extract_norm": "group"}
_DIMS = ("batch", 32)
_LISTED = 8
# How documentations of forward methods say what a tensor is.
_DOCUMENTED = re.compile(r"^ *(\w+) \(`(?:torch\.)?(\w+)`(.*?)(?=^ *\w+ \(`|\Z)", re.MULTILINE | re.DOTALL)
_SHAPE = re.compile(r"shape `\(([^`]*)\)`")
_DTYPES = {"LongTensor": "int64", "IntTensor": "int64", "BoolTensor": "bool"}
_AXES = {"batch_size": BATCH, "sequence_length": SEQUENCE, "target_sequence_length": TARGET_AXIS}
# Arguments that are no tensors, and those that only training or the model itself gives.
_FLAGS = {"output_attentions", "output_hidden_states", "return_dict", "use_cache", "interpolate_pos_encoding", "kwargs"}
_INSIDE = re.compile(r"^output_|labels|loss|past_key|cache|embeds$|head_mask|outputs$|logits_to_keep|^position_ids$")


class Fill(StrEnum):
    """Fill of an input: the kind of its values."""

    IDS = "token ids"
    MASK = "padding masks"
    SEGMENTS = "segments"
    POSITIONS = "positions"
    BOXES = "boxes"
    POINTS = "points in images"
    SHARES = "boxes in shares of a page"
    IMAGES = "images"
    PATCHES = "patches of images"
    VIDEO = "video"
    SOUND = "sound"
    VALUES = "values"
    OBSERVED = "marks of what was observed"
    STEPS = "time steps"
    ONES = "ones"
    FLAGS = "flags"
    LABELS = "labels"
    HIDDEN = "marks of what is hidden"


@dataclass(frozen=True)
class Form:
    """Form: one possible form of an input.

    Args:
        dims: the batch first.
        needs: facts that this form goes by, besides those in its dims.
        length: where the axis stands that a mask of this input has; None where padding is not marked.
    """

    dims: tuple[Dim, ...]
    needs: tuple[Fact, ...] = ()
    length: int | None = 1


@dataclass(frozen=True)
class Kind:
    """Kind of an input: its known facts.

    Args:
        name: of the argument.
        fill: what it holds.
        forms: that it can have; none: that of the input that it marks the padding of, or is beside.
        side: which parts of the configuration speak of it.
        dtype: NumPy's name.
        bound: for whole numbers, one more than the largest.
        companions: other arguments worth giving where the model takes them.
        like: for what has no form of its own: the input that it stands beside; empty: the main one.
    """

    name: str
    fill: Fill
    forms: tuple[Form, ...] = ()
    side: tuple[str, ...] = ()
    dtype: str = "float32"
    bound: Fact | None = None
    companions: tuple[str, ...] = ()
    like: str = ""


def _ids(name: str, *forms: Form, side: tuple[str, ...] = TEXT, companions: tuple[str, ...] = ()) -> Kind:
    return Kind(name, Fill.IDS, forms, side, "int64", VOCABULARY, companions)


_TEXT = Form((BATCH, SEQUENCE))
# Texts that one image is compared with.
_COMPARED = Form((BATCH, TEXTS, SEQUENCE), needs=(Fact(("logit_scale_init_value",)),), length=2)
_WRITTEN = Form((BATCH, TARGET_AXIS))
_STILL = Form((BATCH, _CHANNELS, HEIGHT, WIDTH), length=None)
_CLIP = Form((BATCH, VIDEO_FRAMES, _CHANNELS, HEIGHT, WIDTH), needs=(CLIP_FRAMES,), length=None)
_SEVERAL = Form((BATCH, Fact(("num_images",)), _CHANNELS, HEIGHT, WIDTH), length=None)
# One image beside a text that there could be several beside.
_ALONE = Form((BATCH, 1, _CHANNELS, HEIGHT, WIDTH), length=None)
_NAMED = Form((BATCH, 2))
# Two images that are compared.
_PAIR = Form((BATCH, 2, _CHANNELS, HEIGHT, WIDTH), length=None)

_KINDS = (
    # Texts
    # Nystromformer cuts texts into landmarks of one size, for which they have one length.
    _ids(
        "input_ids",
        _TEXT,
        Form((BATCH, Fact(("segment_means_seq_len",)))),
        _COMPARED,
        companions=("attention_mask", "token_type_ids", "bbox", "visual_embeds", *_MARKUP),
    ),
    # Several choices, of which one is right, are one sample: [batch, choices, sequence].
    _ids("input_ids", Form((BATCH, CHOICES, SEQUENCE), length=2), companions=("attention_mask", "token_type_ids")),
    Kind("attention_mask", Fill.MASK, dtype="int64"),
    Kind("padding_mask", Fill.MASK, dtype="int64"),
    Kind("input_features_mask", Fill.MASK, dtype="int64", like="input_features"),
    # TAPAS knows seven segments at once: rows, columns, ranks.
    Kind(
        "token_type_ids",
        Fill.SEGMENTS,
        (Form((BATCH, SEQUENCE, 7), needs=(Fact(("type_vocab_sizes",)),)),),
        TEXT,
        "int64",
        Fact(("type_vocab_size", "type_vocab_sizes")),
        like="input_ids",
    ),
    Kind("position_ids", Fill.POSITIONS, (_TEXT,), TEXT, "int64", Fact(("max_position_embeddings",))),
    # BROS measures pages as shares of their sides.
    Kind("bbox", Fill.SHARES, (Form((BATCH, SEQUENCE, 4), needs=(Fact(("bbox_scale",)),)),), TEXT),
    Kind("bbox", Fill.BOXES, (Form((BATCH, SEQUENCE, 4)),), TEXT, "int64", Fact(("max_2d_position_embeddings",), 1024)),
    Kind("global_attention_mask", Fill.FLAGS, (_TEXT,), TEXT, "int64"),
    # Where words stand in a page's tree of tags.
    Kind(
        "xpath_tags_seq",
        Fill.LABELS,
        (Form((BATCH, SEQUENCE, Fact(("max_depth",)))),),
        TEXT,
        "int64",
        Fact(("max_xpath_tag_unit_embeddings",)),
    ),
    Kind(
        "xpath_subs_seq",
        Fill.LABELS,
        (Form((BATCH, SEQUENCE, Fact(("max_depth",)))),),
        TEXT,
        "int64",
        Fact(("max_xpath_subs_unit_embeddings",)),
    ),
    # Names in a text: two, as pairs of them are compared.
    Kind("entity_ids", Fill.LABELS, (_NAMED,), TEXT, "int64", Fact(("entity_vocab_size",))),
    Kind("entity_attention_mask", Fill.ONES, (_NAMED,), TEXT, "int64"),
    Kind("entity_position_ids", Fill.POSITIONS, (Form((BATCH, 2, Fact(("max_mention_length",), 30))),), TEXT, "int64"),
    Kind("langs", Fill.LABELS, (_TEXT,), TEXT, "int64", Fact(("n_langs",))),
    _ids("decoder_input_ids", _WRITTEN, side=TARGET, companions=("decoder_attention_mask",)),
    Kind("decoder_attention_mask", Fill.MASK, dtype="int64", like="decoder_input_ids"),
    # The question once more, for what looks at the image.
    _ids("qformer_input_ids", Form((BATCH, QUESTION)), side=("qformer",), companions=("qformer_attention_mask",)),
    Kind("qformer_attention_mask", Fill.MASK, dtype="int64", like="qformer_input_ids"),
    # Images
    Kind("pixel_values", Fill.VIDEO, (_CLIP,), IMAGE),
    Kind("pixel_values", Fill.IMAGES, (_STILL, _SEVERAL, _ALONE, _PAIR), IMAGE, companions=("input_points",)),
    Kind("bool_masked_pos", Fill.HIDDEN, (Form((BATCH, Fact(("grid_patches",)))),), IMAGE, "bool"),
    Kind("noise", Fill.VALUES, (Form((BATCH, Fact(("grid_patches",)))),), IMAGE),
    Kind("pixel_values_videos", Fill.VIDEO, (_CLIP,), IMAGE),
    Kind("pixel_mask", Fill.MASK, (Form((BATCH, HEIGHT, WIDTH)),), IMAGE, "int64"),
    Kind("image", Fill.IMAGES, (_STILL,), IMAGE),
    Kind("prompt_pixel_values", Fill.IMAGES, (_STILL,), IMAGE),
    Kind("prompt_masks", Fill.IMAGES, (_STILL,), IMAGE),
    Kind("conditional_pixel_values", Fill.IMAGES, (_STILL,), IMAGE),
    _ids("task_inputs", Form((BATCH, Fact(("task_seq_len",), 77)))),
    Kind("input_points", Fill.POINTS, (Form((BATCH, 1, POINTS, 2)),), IMAGE, bound=SIDE),
    # Row and column of a patch stand before its pixels.
    Kind(
        "flattened_patches",
        Fill.PATCHES,
        (Form((BATCH, PATCHES, Fact(("patch_embed_hidden_size",), more=2))),),
        IMAGE,
        companions=("attention_mask",),
    ),
    # Sound: a spectrogram where the configuration counts its bins, else the wave itself.
    Kind(
        "input_values",
        Fill.SOUND,
        (
            Form((BATCH, Fact(("max_length",)), _MELS), needs=(Fact(("time_stride",)),), length=None),
            Form((BATCH, Fact(("audio_channels",)), SAMPLES), length=2),
            Form((BATCH, SAMPLES)),
            Form((BATCH, 1, SAMPLES), length=2),
        ),
        SOUND,
        companions=("attention_mask", "padding_mask"),
    ),
    Kind(
        "input_features",
        Fill.SOUND,
        (
            # Whisper halves the frames in its second convolution, and has a position for each of the rest.
            Form((BATCH, _MELS, Fact(("max_source_positions",), times=2)), (Fact(("encoder_ffn_dim",)),), length=2),
            Form((BATCH, FRAMES, Fact(("input_feat_per_channel", "feature_projection_input_dim")))),
            Form((BATCH, 1, Fact(("spec_size",), times=4), _MELS), length=None),
            Form((BATCH, FRAMES, _MELS)),
            Form((BATCH, _MELS, FRAMES), length=2),
        ),
        SOUND,
        companions=("attention_mask", "input_features_mask", "feature_attention_mask", "is_longer"),
    ),
    # Of sound that is put into a text: whole, as tokens wait for all of it.
    Kind("feature_attention_mask", Fill.ONES, dtype="int64", like="input_features"),
    Kind("spectrogram", Fill.SOUND, (Form((BATCH, FRAMES, Fact(("model_in_dim",)))),), SOUND),
    # What a vocoder makes sound of, drawn by itself where nobody gives it.
    Kind("noise_sequence", Fill.VALUES, (Form((BATCH, FRAMES, Fact(("model_in_channels",)))),), SOUND),
    Kind("is_longer", Fill.FLAGS, (Form((BATCH, 1)),), SOUND, "bool"),
    Kind("decoder_input_values", Fill.VALUES, (Form((BATCH, TARGET_AXIS, _MELS)),), TARGET),
    # Series of measurements
    Kind(
        "past_values",
        Fill.VALUES,
        (
            # Lagged values stand before the context.
            Form((BATCH, Fact(("past_length",)))),
            Form((BATCH, _SERIES_LENGTH, _SERIES_CHANNELS)),
            Form((BATCH, _SERIES_LENGTH)),
        ),
        companions=("past_observed_mask", "observed_mask"),
    ),
    Kind("past_observed_mask", Fill.OBSERVED, dtype="bool", like="past_values"),
    Kind("observed_mask", Fill.OBSERVED, dtype="bool", like="past_values"),
    Kind(
        "past_time_features",
        Fill.VALUES,
        (Form((BATCH, Fact(("past_length",)), Fact(("num_time_features",)))),),
    ),
    Kind("future_values", Fill.VALUES, (Form((BATCH, Fact(("prediction_length",)))),)),
    Kind(
        "future_time_features",
        Fill.VALUES,
        (Form((BATCH, Fact(("prediction_length",)), Fact(("num_time_features",)))),),
    ),
    Kind(
        "static_categorical_features",
        Fill.LABELS,
        (Form((BATCH, Fact(("num_static_categorical_features",)))),),
        (),
        "int64",
        Fact(("cardinality",)),
    ),
    Kind("static_real_features", Fill.VALUES, (Form((BATCH, Fact(("num_static_real_features",)))),)),
    # Decisions
    Kind(
        "states",
        Fill.VALUES,
        (Form((BATCH, SEQUENCE, Fact(("state_dim",)))),),
        companions=("actions", "rewards", "returns_to_go", "timesteps", "attention_mask"),
    ),
    Kind("actions", Fill.VALUES, (Form((BATCH, SEQUENCE, Fact(("act_dim",)))),)),
    Kind("rewards", Fill.VALUES, (Form((BATCH, SEQUENCE, 1)),)),
    Kind("returns_to_go", Fill.VALUES, (Form((BATCH, SEQUENCE, 1)),)),
    Kind("timesteps", Fill.STEPS, (_TEXT,), (), "int64", Fact(("max_ep_len",), 4096)),
    # Regions that a detector found in an image
    Kind("visual_embeds", Fill.VALUES, (Form((BATCH, REGIONS, Fact(("visual_embedding_dim",)))),)),
    Kind("visual_feats", Fill.VALUES, (Form((BATCH, REGIONS, Fact(("visual_feat_dim",)))),)),
    Kind("visual_pos", Fill.VALUES, (Form((BATCH, REGIONS, Fact(("visual_pos_dim",)))),)),
    # Whatever a Perceiver, or an encoder of speech, was made for
    _ids("inputs", _TEXT, companions=("attention_mask",)),
    Kind("inputs", Fill.IMAGES, (_STILL,), IMAGE),
    Kind("inputs", Fill.SOUND, (Form((BATCH, SAMPLES)),), SOUND, companions=("attention_mask",)),
)

KINDS: dict[str, tuple[Kind, ...]] = {
    name: tuple(kind for kind in _KINDS if kind.name == name) for name in dict.fromkeys(kind.name for kind in _KINDS)
}


def kinds_of(names: Sequence[str]) -> list[str]:
    """Return the known arguments of a forward method, in its order."""
    return [name for name in names if name in KINDS]


_BESIDE_TEXT = Form((BATCH, SEQUENCE))


def odd_inputs(arguments: Mapping[str, inspect.Parameter]) -> list[str]:
    """Return the tensor arguments of a forward method that no kind describes."""
    return [
        name
        for name, parameter in arguments.items()
        if name not in KINDS and name not in _FLAGS and not _INSIDE.search(name) and _is_tensor(parameter)
    ]


def _is_tensor(argument: inspect.Parameter) -> bool:
    """Whether an argument may be a tensor: some are numbers or strings."""
    return argument.annotation is argument.empty or "Tensor" in str(argument.annotation)


def described_tensors(model: PreTrainedModel, specs: Mapping[str, InputSpec]) -> tuple[Tensor, ...]:
    """Return the inputs that a spec describes.

    Raises:
        UsageError: the model has no such input, or one is not described in full.
    """
    arguments = inspect.signature(model.forward).parameters
    names_none = all(p.kind is p.VAR_KEYWORD for p in arguments.values())
    unknown = [name for name in specs if name not in arguments and not names_none]
    if unknown:
        takes = [name for name, p in arguments.items() if p.kind is not p.VAR_KEYWORD and name not in _FLAGS]
        raise UsageError(
            f"inputs: {type(model).__name__} has no input {', '.join(unknown)}",
            remedy=f"it takes {', '.join(takes)}",
        )
    vague = [name for name, spec in specs.items() if not spec.dtype or not spec.dims]
    if vague:
        spec = specs[vague[0]]
        raise UsageError(
            f"inputs: {', '.join(vague)} needs both a dtype and dims",
            remedy="for example:\n  inputs:\n"
            f"    {vague[0]}: {{dtype: {spec.dtype or 'float32'}, dims: [{', '.join(map(str, spec.dims or _DIMS))}]}}",
        )
    return tuple(Tensor(name=name, dtype=spec.dtype, dims=spec.dims) for name, spec in specs.items())


def within_limits(plan: InputPlan, limits: Mapping[str, int]) -> InputPlan:
    """Limit a plan of described inputs to the positions that the model has.

    Args:
        plan: with the spec's own names of axes.
        limits: by the names that the axes of known inputs have.
    """
    own_limits: dict[str, int] = {}
    for tensor in plan.tensors:
        for form in (form for kind in KINDS.get(tensor.name, ()) for form in kind.forms):
            if len(form.dims) == len(tensor.dims):
                pairs = zip(form.dims, tensor.dims, strict=True)
                own_limits |= {own: limits[str(axis)] for axis, own in pairs if isinstance(own, str) and axis in limits}
    axes = {axis: _at_most(r, own_limits[axis]) if axis in own_limits else r for axis, r in plan.axes.items()}
    return replace(plan, axes=axes, limits=own_limits)


def _at_most(sizes: AxisRange, limit: int) -> AxisRange:
    return AxisRange(min=min(sizes.min, limit), opt=min(sizes.opt, limit), max=min(sizes.max, limit))


def undescribed(model: PreTrainedModel, why: str, names: Sequence[str]) -> SourceError:
    """Return the error that a spec must describe the model's inputs, with lines to adapt.

    Args:
        model: that nothing describes.
        why: what is not known of it.
        names: of the inputs that it is known, or likely, to need.
    """
    lines = {name: _line(model, name) for name in list(dict.fromkeys(names))[:_LISTED]}
    unknown = [name for name, line in lines.items() if "…" in line]
    entries = [f"    {name}: {line}" for name, line in lines.items()]
    return SourceError(
        f"{type(model).__name__}: {why}",
        remedy=f"write this as model.yaml, fill in … for {', '.join(['source', *unknown])}, and compile it;"
        " names in dims vary, and numbers are fixed:\n" + "\n".join(["  source: hf:…", "  inputs:", *entries]),
    )


def _line(model: PreTrainedModel, name: str) -> str:
    """Return the spec line of an input from its kind or documentation; "…" stands for what neither states."""
    config = model.config
    sides = {HEIGHT: number(config, SIDE, IMAGE), WIDTH: number(config, replace(SIDE, place=1), IMAGE)}
    for kind, form in (
        (candidate, form) for candidate in KINDS.get(name, ()) for form in candidate.forms or (_BESIDE_TEXT,)
    ):
        facts = {fact: number(config, fact, kind.side) for fact in (*form.dims, *form.needs) if isinstance(fact, Fact)}
        if None not in facts.values():
            dims = [facts[d] if isinstance(d, Fact) else sides.get(str(d)) or d for d in form.dims]
            bound = number(config, kind.bound, kind.side) if kind.bound else None
            return _described(name, kind.dtype, dims, bound or 2)
    for called, dtype, description in _DOCUMENTED.findall(type(model).forward.__doc__ or ""):
        shape = _SHAPE.search(description) if called == name else None
        if shape is not None:
            dims = [_dim(config, word.strip()) for word in shape[1].split(",") if word.strip()]
            return _described(name, _DTYPES.get(dtype, "float32"), dims, 2)
    return "{dtype: …, dims: […]}"


def _described(name: str, dtype: str, dims: Sequence[object], bound: int) -> str:
    """Parse a spec line; masks and booleans are filled as such, other integers below a bound."""
    are_plain = all(isinstance(dim, int) or str(dim).isidentifier() for dim in dims)  # some are sums of others
    fields = f"dtype: {dtype}, dims: [{', '.join(map(str, dims)) if are_plain else '…'}]"
    return f"{{{fields}, low: 0, high: {bound - 1}}}" if dtype == "int64" and "mask" not in name else f"{{{fields}}}"


def _dim(config: Any, word: str) -> str | int:
    """Parse a dim from documentation: a number, a configuration value, or an axis name."""
    word = word.removeprefix("config.")
    if word.isdigit():
        return int(word)
    return _AXES.get(word) or number(config, Fact((word,))) or word.removeprefix("num_")
