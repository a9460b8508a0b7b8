"""Inputs that few families of transformers models have: their forms, and what leaves them out or asks for them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from plansmith.errors import SourceError, UsageError
from plansmith.records.model import Tensor
from plansmith.sources.huggingface.inputs.kinds import KINDS
from plansmith.sources.huggingface.inputs.signature import _drafts
from plansmith.sources.huggingface.inputs.values import Source
from plansmith.sources.huggingface.processors import Preprocessors

from ..support.models.architectures import IMAGE, SIZES, SPEECH, TEXT, VIDEO, load, save, tokenizer

IDS = "[batch, sequence]"
STILL = "[batch, 3, height, width]"
PERCEIVER: dict[str, Any] = {
    "d_model": 16,
    "d_latents": 16,
    "num_latents": 4,
    "num_blocks": 1,
    "num_self_attends_per_block": 1,
    "num_self_attention_heads": 2,
    "num_cross_attention_heads": 1,
}
LUKE: dict[str, Any] = {**TEXT, "entity_vocab_size": 20, "entity_emb_size": 8}
ENCODER: dict[str, Any] = {"hidden_size": 16, "patch_size": 8, "image_size": 32, "num_attention_heads": 2}
SAM: dict[str, Any] = {
    "vision_config": {**ENCODER, "output_channels": 8, "num_hidden_layers": 1, "mlp_dim": 16, "num_pos_feats": 4},
    "prompt_encoder_config": {"hidden_size": 8, "image_size": 32, "patch_size": 8, "mask_input_channels": 4},
    "mask_decoder_config": {"hidden_size": 8, "mlp_dim": 8, "num_attention_heads": 2, "iou_head_hidden_dim": 8},
}
DECODER: dict[str, Any] = {
    "decoder_hidden_size": 16,
    "decoder_num_hidden_layers": 1,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 16,
}


class Fed(NamedTuple):
    """A model, and what it is to be fed with."""

    model: str
    config: str
    fields: dict[str, Any]
    inputs: dict[str, str]


FED = {
    "hashed characters, which nobody counts": Fed(
        "CanineForSequenceClassification",
        "CanineConfig",
        {**SIZES, "max_position_embeddings": 64, "num_hash_buckets": 8, "local_transformer_stride": 16},
        {"input_ids": IDS, "attention_mask": IDS, "token_type_ids": IDS},
    ),
    "texts of the one length that landmarks are cut for": Fed(
        "NystromformerForSequenceClassification",
        "NystromformerConfig",
        {**TEXT, "segment_means_seq_len": 32, "num_landmarks": 8},
        {"input_ids": "[batch, 32]", "token_type_ids": "[batch, 32]"},
    ),
    "boxes in shares of a page": Fed(
        "BrosForTokenClassification",
        "BrosConfig",
        {**TEXT, "hidden_size": 64},
        {"input_ids": IDS, "bbox": "[batch, sequence, 4]", "attention_mask": IDS, "token_type_ids": IDS},
    ),
    "places in a tree of tags": Fed(
        "MarkupLMModel",
        "MarkupLMConfig",
        {**TEXT, "max_depth": 5},
        {
            "input_ids": IDS,
            "xpath_tags_seq": "[batch, sequence, 5]",
            "xpath_subs_seq": "[batch, sequence, 5]",
            "attention_mask": IDS,
            "token_type_ids": IDS,
        },
    ),
    "names in a text": Fed(
        "LukeForEntityPairClassification",
        "LukeConfig",
        LUKE,
        {
            "input_ids": IDS,
            "attention_mask": IDS,
            "token_type_ids": IDS,
            "entity_ids": "[batch, 2]",
            "entity_position_ids": "[batch, 2, 30]",
        },
    ),
    "regions beside a text": Fed(
        "VisualBertForQuestionAnswering",
        "VisualBertConfig",
        {**TEXT, "visual_embedding_dim": 16},
        {
            "input_ids": IDS,
            "attention_mask": IDS,
            "token_type_ids": IDS,
            "visual_embeds": "[batch, regions, 16]",
        },
    ),
    "noise that decides what is hidden": Fed(
        "ViTMAEForPreTraining", "ViTMAEConfig", {**IMAGE, **DECODER}, {"pixel_values": STILL, "noise": "[batch, 16]"}
    ),
    "what is hidden of a video": Fed(
        "VideoMAEForPreTraining",
        "VideoMAEConfig",
        {**VIDEO, **DECODER},
        {"pixel_values": "[batch, video_frames, 3, height, width]", "bool_masked_pos": "[batch, 32]"},
    ),
    "points in an image": Fed(
        "SamModel", "SamConfig", SAM, {"pixel_values": STILL, "input_points": "[batch, 1, points, 2]"}
    ),
}


@pytest.mark.parametrize("fed", FED.values(), ids=FED.keys())
def test_configuration_sizes_family_inputs(fed: Fed, tmp_path: Path) -> None:
    """The configuration sizes what only one family takes, and the answer is one and the same."""
    live = load(save(tmp_path / "model", fed.model, fed.config, **fed.fields))
    assert {t.name: f"[{', '.join(map(str, t.dims))}]" for t in live.inputs.tensors} == fed.inputs
    feed = live.inputs.make({axis: r.opt for axis, r in live.inputs.axes.items()})
    once, again = live.ask(feed), live.ask(feed)
    assert all(np.array_equal(once[name], again[name], equal_nan=True) for name in once)
    assert not live.inputs.guessed


def make_tokenizer() -> Any:
    """A tokenizer, whose sixth token stands for an image."""
    names = ("pad_token", "unk_token", "bos_token", "eos_token", "mask_token", "sep_token")
    return tokenizer(**{name: f"<{name}>" for name in names})


def test_tokenizer_name_fed_of_two(tmp_path: Path) -> None:
    """Of two names for one input, the one that the tokenizer makes is fed."""
    fields = {**PERCEIVER, "vocab_size": 99, "max_position_embeddings": 40}
    live = load(save(tmp_path / "model", "PerceiverForMaskedLM", "PerceiverConfig", make_tokenizer(), **fields))
    assert {t.name for t in live.inputs.tensors} == {"input_ids", "attention_mask"}
    assert live.inputs.data == "plansmith's sample sentences"


def llava(folder: Path, **text: Any) -> Path:
    """A model of texts that hold 16 tokens of an image."""
    from transformers import CLIPImageProcessor

    sides: Any = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    fields: dict[str, Any] = {
        "text_config": {**TEXT, "model_type": "llama", **text},
        "vision_config": {**IMAGE, "model_type": "clip_vision_model"},
        "image_token_id": 5,
    }
    processors = (make_tokenizer(), CLIPImageProcessor(**sides))
    return save(folder, "LlavaForConditionalGeneration", "LlavaConfig", *processors, **fields)


def test_image_marks_match_vectors(tmp_path: Path) -> None:
    """An image stands in a text as often as the model makes vectors of it."""
    live = load(llava(tmp_path / "model"))
    assert {t.name: t.dims for t in live.inputs.tensors}["pixel_values"] == ("batch", 3, 32, 32)
    assert live.inputs.axes["sequence"].min == 17
    feed = live.inputs.make({"batch": 3, "sequence": 30})
    assert (feed["input_ids"] == 5).sum(axis=1).tolist() == [16, 16, 16]
    assert feed["attention_mask"][:, :16].all()
    assert feed["attention_mask"].sum(axis=1).tolist() == [30, 25, 20]
    assert live.ask(feed)["logits"].shape == (3, 30, 99)
    for length in (8, 16):
        with pytest.raises(UsageError, match="sequence holds 16 image or sound tokens: give 17 or more"):
            live.inputs.make({"batch": 1, "sequence": length})


def test_missing_image_positions_told(tmp_path: Path) -> None:
    """A model without positions for its image and a text says so."""
    with pytest.raises(SourceError, match="holds 16 image or sound tokens, and the model has positions for 16"):
        load(llava(tmp_path / "model", max_position_embeddings=16))


def test_fixed_length_text_holds_image() -> None:
    """A text of one length may hold an image."""
    source = Source(SimpleNamespace(vocab_size=50), Preprocessors(), Path(), {})
    ids = Tensor(name="input_ids", dtype="int64", dims=("batch", 32))
    assert set(source.plan([ids], {"input_ids": KINDS["input_ids"][0]}, (32, 32), (5, 5)).axes) == {"batch"}


def test_formless_image_sizes_cost_nothing() -> None:
    """A dozen combinations are tried; thirteen sizes for a text would be all of them."""
    sides = tuple((side, side) for side in range(32, 45))
    source: Any = SimpleNamespace(has=lambda *_: True, is_worth=lambda _: False, usual_sides=lambda: sides)
    drafts = list(_drafts("input_ids", [], ("input_ids",), source))
    forms = [form for kind in KINDS["input_ids"] for form in kind.forms]
    assert [draft.main[1] for draft in drafts] == forms
    assert len(forms) > 1


def test_model_always_keeps_its_images(tmp_path: Path) -> None:
    """It answers to texts alone; what its images would have to be beside it, nothing says."""
    from transformers import CLIPImageProcessor

    fields: dict[str, Any] = {
        "text_config": {**TEXT, "model_type": "llama"},
        "vision_config": {**IMAGE, "model_type": "clip_vision_model"},
        "image_token_id": 5,
        "image_grid_pinpoints": [[32, 64]],
    }
    processors = (make_tokenizer(), CLIPImageProcessor())
    model = "LlavaNextForConditionalGeneration"
    folder = save(tmp_path / "model", model, "LlavaNextConfig", *processors, **fields)
    with pytest.raises(SourceError, match="nothing says what image_sizes look like") as caught:
        load(folder)
    assert "image_sizes: {dtype: int64, dims: [batch, 2]" in caught.value.remedy


def test_missing_configuration_fact_named(tmp_path: Path) -> None:
    """A fact that the configuration lacks is named."""
    fields: dict[str, Any] = {
        "prediction_length": 4,
        "context_length": 8,
        "lags_sequence": [1, 2],
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
    }
    folder = save(tmp_path / "model", "TimeSeriesTransformerModel", "TimeSeriesTransformerConfig", **fields)
    with pytest.raises(SourceError, match="does not size past_time_features: it states no num_time_features"):
        load(folder)


def test_pair_takes_sound_by_extractor_name(tmp_path: Path) -> None:
    """A pair of encoder and decoder takes the sound under the name of its extractor."""
    import transformers

    fields: dict[str, Any] = {
        "encoder": {**SPEECH, "model_type": "wav2vec2"},
        "decoder": {**TEXT, "model_type": "bert", "is_decoder": True, "add_cross_attention": True},
    }
    extractor: Any = transformers.Wav2Vec2FeatureExtractor()  # type: ignore[no-untyped-call]
    model, config = "SpeechEncoderDecoderModel", "SpeechEncoderDecoderConfig"
    live = load(save(tmp_path / "model", model, config, extractor, **fields))
    assert {"input_values", "decoder_input_ids"} <= {t.name for t in live.inputs.tensors}
    assert "inputs" not in {t.name for t in live.inputs.tensors}
