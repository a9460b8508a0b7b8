"""What the inputs of transformers models hold, by the names of their forward methods: one table.

A kind says what fills an input, and which forms it can have. A dim is a name where the axis may move, a number, or a
fact of the configuration. The first form whose facts are known counts; of a main input, the first that the model
answers to. Where families differ under one name, they differ in their configuration, which decides here as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from plansmith.records.model import BATCH
from plansmith.sources.huggingface.config_values import CLIP_FRAMES, IMAGE, SOUND, TARGET, TEXT, Fact
from plansmith.sources.loaded_model import SEQUENCE

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


class Fill(StrEnum):
    """What an input holds."""

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


Dim = str | int | Fact


@dataclass(frozen=True)
class Form:
    """One form that an input can have.

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
    """What is known of an input.

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
_MARKUP = ("xpath_tags_seq", "xpath_subs_seq")
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

# Models of sound whose first layer normalises over groups were trained without masks, their authors say: padding with
# zeros is what they know. (A processor says the same with return_attention_mask.)
WITHOUT_MASK = {"feat_extract_norm": "group"}


def kinds_of(names: Sequence[str]) -> list[str]:
    """Of a forward method's arguments, those that are known; in the method's order."""
    return [name for name in names if name in KINDS]
