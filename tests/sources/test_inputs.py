"""Inputs of transformers models: names, axes and values come from signature, configuration and processors."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from plansmith.errors import SourceError
from plansmith.records.model import AxisRange
from plansmith.sources.huggingface.inputs.axes import side_range
from plansmith.sources.huggingface.inputs.kinds import undescribed
from plansmith.sources.huggingface.inputs.signature import plan_inputs

from ..support.models.architectures import (
    IMAGE,
    SERIES,
    SIZES,
    SPEECH,
    TEXT,
    VIDEO,
    WHISPER,
    WRITER,
    load,
    save,
    tokenizer,
)

IDS = "[batch, sequence]"
STILL = "[batch, 3, height, width]"


class ModelCase(NamedTuple):
    """A model and what it is to be fed with; `sizes` are such that every axis differs from the usual one."""

    model: str
    config: str
    fields: dict[str, Any]
    inputs: dict[str, str]
    outputs: dict[str, tuple[int, ...]]


MODELS = {
    "an encoder": ModelCase(
        "BertForSequenceClassification",
        "BertConfig",
        TEXT,
        {"input_ids": IDS, "attention_mask": IDS, "token_type_ids": IDS},
        {"logits": (3, 2)},
    ),
    "an encoder without segments": ModelCase(
        "DebertaV2ForMaskedLM",
        "DebertaV2Config",
        {**TEXT, "type_vocab_size": 0},
        {"input_ids": IDS, "attention_mask": IDS},
        {"logits": (3, 11, 99)},
    ),
    "several choices": ModelCase(
        "BertForMultipleChoice",
        "BertConfig",
        TEXT,
        dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), "[batch, choices, sequence]"),
        {"logits": (3, 3)},
    ),
    "words on a page": ModelCase(
        "LayoutLMForTokenClassification",
        "LayoutLMConfig",
        TEXT,
        {"input_ids": IDS, "bbox": "[batch, sequence, 4]", "attention_mask": IDS, "token_type_ids": IDS},
        {"logits": (3, 11, 2)},
    ),
    "tables": ModelCase(
        "TapasForQuestionAnswering",
        "TapasConfig",
        TEXT,
        {"input_ids": IDS, "attention_mask": IDS, "token_type_ids": "[batch, sequence, 7]"},
        {"logits": (3, 11)},
    ),
    "a decoder": ModelCase(
        "LlamaForCausalLM",
        "LlamaConfig",
        TEXT,
        {"input_ids": IDS, "attention_mask": IDS},
        {"logits": (3, 11, 99)},
    ),
    "a classifier on a decoder that knows no padding": ModelCase(
        "GPT2ForSequenceClassification",
        "GPT2Config",
        {"vocab_size": 99, "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 40},
        {"input_ids": IDS, "attention_mask": IDS},
        {"logits": (3, 2)},
    ),
    "a recurrent decoder": ModelCase(
        "MambaForCausalLM",
        "MambaConfig",
        {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 1, "state_size": 4},
        {"input_ids": IDS, "attention_mask": IDS},
        {"logits": (3, 11, 99)},
    ),
    "a writer": ModelCase(
        "BartForConditionalGeneration",
        "BartConfig",
        WRITER,
        {
            "input_ids": IDS,
            "attention_mask": IDS,
            "decoder_input_ids": "[batch, target]",
            "decoder_attention_mask": "[batch, target]",
        },
        {"logits": (3, 7, 99), "encoder_last_hidden_state": (3, 11, 32)},
    ),
    "a classifier on a writer, whose decoder reads what the encoder read": ModelCase(
        "BartForSequenceClassification",
        "BartConfig",
        WRITER,
        {"input_ids": IDS, "attention_mask": IDS},
        {"logits": (3, 3), "encoder_last_hidden_state": (3, 11, 32)},
    ),
    "images": ModelCase(
        "ResNetForImageClassification",
        "ResNetConfig",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
        {"pixel_values": STILL},
        {"logits": (3, 2)},
    ),
    "masks of objects": ModelCase(
        "YolosForObjectDetection",
        "YolosConfig",
        {**IMAGE, "image_size": [32, 32], "num_detection_tokens": 5},
        {"pixel_values": STILL},
        {"logits": (3, 5, 3), "pred_boxes": (3, 5, 4), "last_hidden_state": (3, 22, 32)},
    ),
    "videos": ModelCase(
        "VideoMAEForVideoClassification",
        "VideoMAEConfig",
        VIDEO,
        {"pixel_values": "[batch, video_frames, 3, height, width]"},
        {"logits": (3, 2)},
    ),
    "images beside texts, whose mask has no say where the end mark is looked for": ModelCase(
        "CLIPModel",
        "CLIPConfig",
        {
            "text_config": {**TEXT, "eos_token_id": 98, "bos_token_id": 97, "pad_token_id": 0},
            "vision_config": IMAGE,
            "projection_dim": 16,
        },
        {"input_ids": IDS, "pixel_values": STILL},
        {
            "logits_per_image": (3, 3),
            "logits_per_text": (3, 3),
            "text_embeds": (3, 16),
            "image_embeds": (3, 16),
        },
    ),
    "waves of sound": ModelCase(
        "HubertForCTC",
        "HubertConfig",
        {**SPEECH, "feat_extract_norm": "layer"},
        {"input_values": "[batch, samples]", "attention_mask": "[batch, samples]"},
        {"logits": (3, 98, 20)},
    ),
    "waves of sound for a model that was trained without masks": ModelCase(
        "Wav2Vec2ForCTC", "Wav2Vec2Config", SPEECH, {"input_values": "[batch, samples]"}, {"logits": (3, 98, 20)}
    ),
    "a spectrogram of fixed length": ModelCase(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        WHISPER,
        {
            "input_features": "[batch, 16, 60]",
            "decoder_input_ids": "[batch, target]",
            "decoder_attention_mask": "[batch, target]",
        },
        {"logits": (3, 7, 99), "encoder_last_hidden_state": (3, 30, 32)},
    ),
    "a spectrogram as an image": ModelCase(
        "ASTForAudioClassification",
        "ASTConfig",
        {**IMAGE, "max_length": 64, "num_mel_bins": 16, "frequency_stride": 8, "time_stride": 8},
        {"input_values": "[batch, 64, 16]"},
        {"logits": (3, 2)},
    ),
    "a series": ModelCase(
        "PatchTSTForPrediction",
        "PatchTSTConfig",
        SERIES,
        {"past_values": "[batch, 16, 3]", "past_observed_mask": "[batch, 16, 3]"},
        {"prediction_outputs": (3, 4, 3), "loc": (3, 1, 3), "scale": (3, 1, 3)},
    ),
    "patches with their places": ModelCase(
        "Pix2StructForConditionalGeneration",
        "Pix2StructConfig",
        {
            "text_config": {
                "vocab_size": 99,
                "hidden_size": 32,
                "d_kv": 16,
                "d_ff": 36,
                "num_layers": 1,
                "num_heads": 2,
            },
            "vision_config": {
                "hidden_size": 32,
                "d_kv": 16,
                "d_ff": 36,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
            },
        },
        {
            "flattened_patches": "[batch, patches, 770]",
            "attention_mask": "[batch, patches]",
            "decoder_input_ids": "[batch, target]",
            "decoder_attention_mask": "[batch, target]",
        },
        {"logits": (3, 7, 99), "encoder_last_hidden_state": (3, 16, 32)},
    ),
}

WANTED = {"batch": 3, "choices": 3, "sequence": 11, "target": 7, "samples": 2000}


@pytest.mark.parametrize("case", MODELS.values(), ids=MODELS.keys())
def test_model_fed_by_signature_alone(case: ModelCase, tmp_path: Path) -> None:
    """A model without tokenizer or processor is fed by its signature and configuration."""
    live = load(save(tmp_path / "model", case.model, case.config, **case.fields))
    plan = live.inputs
    assert {t.name: f"[{', '.join(map(str, t.dims))}]" for t in plan.tensors} == case.inputs
    sizes = {axis: WANTED.get(axis, r.opt) for axis, r in plan.axes.items()}
    feed = plan.make(sizes)
    again = plan.make(sizes)
    assert all(np.array_equal(feed[name], again[name]) for name in feed)
    answer = live.ask(feed)
    assert {name: array.shape for name, array in answer.items()} == case.outputs
    assert all(np.isfinite(array).all() for array in answer.values())
    assert plan.random_values
    assert not plan.guessed


def test_random_ids_told_without_specials(tmp_path: Path) -> None:
    """Without a tokenizer, the data say that ids are random, and no id is a special one."""
    fields = {**TEXT, "pad_token_id": 0, "bos_token_id": 97, "eos_token_id": 98, "image_token_id": 5}
    live = load(save(tmp_path / "model", "LlamaForCausalLM", "LlamaConfig", **fields))
    assert live.inputs.data == "random token ids (the model has no tokenizer)"
    feed = live.inputs.make({"batch": 4, "sequence": 40})
    content = feed["input_ids"][feed["attention_mask"] == 1]
    assert set(content.tolist()).isdisjoint({0, 5, 97})
    ends = feed["attention_mask"].sum(axis=1) - 1
    assert feed["input_ids"][np.arange(4), ends].tolist() == [98] * 4
    assert sorted(ends.tolist()) == [9, 19, 29, 39]


def test_boxes_ordered_within_page(tmp_path: Path) -> None:
    """Boxes are ordered and lie on the page."""
    live = load(save(tmp_path / "model", "LayoutLMModel", "LayoutLMConfig", **TEXT))
    boxes = live.inputs.make({"batch": 3, "sequence": 12})["bbox"].astype(int)
    assert (boxes[..., :2] <= boxes[..., 2:]).all()
    assert (int(boxes.min()) >= 0, int(boxes.max()) <= 1000, len(np.unique(boxes)) > 50) == (True, True, True)


def test_positions_limit_text(tmp_path: Path) -> None:
    """Positions limit the text and what is written."""
    fields = {k: v for k, v in WRITER.items() if k != "max_position_embeddings"}
    lengths: dict[str, Any] = {
        "max_encoder_position_embeddings": 48,
        "max_decoder_position_embeddings": 24,
        "attention_window": 8,
    }
    live = load(save(tmp_path / "led", "LEDForConditionalGeneration", "LEDConfig", **fields, **lengths))
    assert live.inputs.limits == {"sequence": 48, "target": 24}
    roberta = load(save(tmp_path / "roberta", "RobertaModel", "RobertaConfig", **TEXT))
    assert roberta.inputs.limits == {"sequence": 38}
    longest = {"batch": 1, "sequence": 38}
    assert roberta.ask(roberta.inputs.make(longest))["last_hidden_state"].shape == (1, 38, 32)


def test_processor_sizes_are_used(tmp_path: Path) -> None:
    """What a processor gives is taken with its own sizes."""
    import transformers

    config: Any = transformers.ResNetConfig
    backbone = config(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )
    processor: Any = transformers.DetrImageProcessor(size={"shortest_edge": 64, "longest_edge": 96})
    fields = {k: v for k, v in WRITER.items() if k.endswith(("layers", "heads", "_dim", "d_model"))}
    folder = save(
        tmp_path / "model",
        "DetrForObjectDetection",
        "DetrConfig",
        processor,
        **fields,
        num_queries=6,
        backbone_config=backbone,
        use_timm_backbone=False,
    )
    live = load(folder)
    assert [t.name for t in live.inputs.tensors] == ["pixel_values", "pixel_mask"]
    assert (live.inputs.axes["height"].opt, live.inputs.axes["width"].opt) == (64, 80)
    assert (live.inputs.data, live.inputs.random_values) == ("drawn images", False)
    feed = live.inputs.make({"batch": 2, "height": 64, "width": 96})
    assert feed["pixel_mask"].sum(axis=(1, 2)).tolist() == [64 * 96, 64 * 24]
    assert live.output_names == ("logits", "pred_boxes", "last_hidden_state", "encoder_last_hidden_state")
    assert live.ask(feed)["pred_boxes"].shape == (2, 6, 4)


def test_processor_texts_and_images_real(tmp_path: Path) -> None:
    """Texts and images of a processor are real ones."""
    import transformers

    both: Any = transformers.CLIPProcessor
    word_tokenizer = tokenizer(pad_token="<pad>", unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    images = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    text = {**TEXT, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    fields: dict[str, Any] = {"text_config": text, "vision_config": IMAGE, "projection_dim": 16}
    live = load(save(tmp_path / "model", "CLIPModel", "CLIPConfig", both(images, word_tokenizer), **fields))
    assert (live.inputs.data, live.inputs.random_values) == ("drawn images and plansmith's sample sentences", False)
    feed = live.inputs.make({"batch": 2, "sequence": 20, "height": 32, "width": 32})
    assert feed["input_ids"][0, [0, -1]].tolist() == [2, 3]
    assert abs(float(feed["pixel_values"].mean())) < 1


def test_page_needs_no_reader(tmp_path: Path) -> None:
    """The tokenizer takes words with their boxes, and the image processor would read them off the page itself."""
    import transformers

    processor: Any = transformers.LayoutLMv3ImageProcessor(size={"height": 32, "width": 32})
    assert processor.apply_ocr
    fields = {**TEXT, "input_size": 32, "patch_size": 8, "coordinate_size": 4, "shape_size": 8, "pad_token_id": 1}
    live = load(save(tmp_path / "model", "LayoutLMv3ForTokenClassification", "LayoutLMv3Config", processor, **fields))
    assert [t.name for t in live.inputs.tensors] == ["input_ids", "bbox", "attention_mask", "pixel_values"]
    feed = live.inputs.make({"batch": 2, "sequence": 12, "height": 32, "width": 32})
    assert live.ask(feed)["logits"].shape == (2, 12, 2)


def test_model_decides_conflicting_sizes(tmp_path: Path) -> None:
    """The model decides where processor and configuration name different sizes."""
    from transformers import ViTImageProcessor

    processor: Any = ViTImageProcessor(size={"height": 48, "width": 48})
    live = load(save(tmp_path / "model", "ViTModel", "ViTConfig", processor, **IMAGE))
    assert live.inputs.axes["height"].opt == 32


def test_unmade_mask_is_no_input(tmp_path: Path) -> None:
    """A mask that the feature extractor does not make is no input."""
    import transformers

    kind: Any = transformers.Wav2Vec2FeatureExtractor
    for folder, makes in (("with", True), ("without", False)):
        extractor = kind(return_attention_mask=makes)
        live = load(save(tmp_path / folder, "Wav2Vec2ForCTC", "Wav2Vec2Config", extractor, **SPEECH))
        assert (live.inputs.mask_input is not None) == makes


@pytest.mark.parametrize(
    ("usual", "patch", "low", "high"),
    [(224, 16, 96, 224), (518, 14, 252, 518), (384, 32, 192, 384), (32, 8, 16, 32), (64, 4, 64, 96), (30, 1, 15, 30)],
)
def test_sides_span_whole_patches(usual: int, patch: int, low: int, high: int) -> None:
    """Sides go from half the usual size in whole patches."""
    assert side_range(usual, patch) == AxisRange(min=low, opt=usual, max=high)


def test_batch_shrinks_for_large_answer(tmp_path: Path) -> None:
    """A batch whose answer is too large gets smaller."""
    fields = {**TEXT, "vocab_size": 60_000, "max_position_embeddings": 512}
    live = load(save(tmp_path / "model", "GPTNeoXForCausalLM", "GPTNeoXConfig", **fields))
    assert live.inputs.axes["batch"] == AxisRange(min=1, opt=4, max=8)
    plain = load(tmp_path / "model", task="feature-extraction")
    assert plain.inputs.axes["batch"] == AxisRange(min=1, opt=8, max=32)


def test_repeat_answer_tolerates_rounding(tmp_path: Path) -> None:
    """The model is asked for one answer twice, and rounding makes it no other."""
    from transformers import BertConfig, BertModel

    model: Any = BertModel(BertConfig(**TEXT))
    model.eval()
    calls: list[bytes] = []

    def ask(feed: Any) -> Any:
        calls.append(b"".join(array.tobytes() for array in feed.values()))
        with torch.inference_mode():
            answer = model(**{name: torch.from_numpy(array) for name, array in feed.items()})[0].numpy()
        return {"y": answer * np.float32(1.000001 if len(calls) == 2 else 1)}

    plan = plan_inputs(model, tmp_path, False, {}, ask)
    assert [tensor.name for tensor in plan.tensors] == ["input_ids", "attention_mask", "token_type_ids"]
    assert calls.count(calls[0]) == 2


def test_unreadable_tokenizer_told(tmp_path: Path) -> None:
    """A tokenizer that cannot be read is told."""
    folder = save(tmp_path / "model", "BertModel", "BertConfig", **TEXT)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(SourceError, match="the tokenizer in model cannot be read") as caught:
        load(folder)
    assert "save it again" in caught.value.remedy


def test_undescribed_input_named_with_lines(tmp_path: Path) -> None:
    """An input that no kind describes is named with the lines for a spec."""
    fields: dict[str, Any] = {**SIZES, "num_patches": 16, "patch_size": 4}
    folder = save(tmp_path / "model", "Siglip2VisionModel", "Siglip2VisionConfig", **fields)
    says = "Siglip2VisionModel: nothing says what pixel_attention_mask, spatial_shapes looks like"
    with pytest.raises(SourceError, match=says) as caught:
        load(folder)
    assert "    spatial_shapes: {dtype: int64, dims: [batch, 2], low: 0, high: 1}" in caught.value.remedy


def test_undescribed_need_told(tmp_path: Path) -> None:
    """A model that needs what no kind describes says what that is."""
    fields: dict[str, Any] = {"text_config": TEXT, "vision_config": {**SIZES, "num_patches": 16, "patch_size": 4}}
    folder = save(tmp_path / "model", "Siglip2Model", "Siglip2Config", **fields)
    with pytest.raises(SourceError, match="nothing says what pixel_attention_mask, spatial_shapes look like") as caught:
        load(folder)
    assert caught.value.message.startswith("Siglip2Model: it does not answer: ")
    assert "input_ids: {dtype: int64, dims: [batch, sequence], low: 0, high: 98}" in caught.value.remedy
    assert "spatial_shapes: {dtype:" in caught.value.remedy


def test_unknown_input_facts_left_by_name() -> None:
    """What nothing tells of an input is to be filled in by name."""

    class Odd:
        config = SimpleNamespace()

        def forward(self) -> None:
            """Args:
            halves (`torch.FloatTensor` of shape `(batch_size, sequence_length // 2)`):
                one dim is no name.
            wholes (`torch.FloatTensor` of shape `(batch_size, 4)`):
                all are.
            """

    model: Any = Odd()
    error = undescribed(model, "nothing says it", ["wholes", "halves", "foo"])
    first, *lines = error.remedy.splitlines()
    assert first.startswith("write this as model.yaml, fill in … for source, halves, foo, and compile it; ")
    assert lines == [
        "  source: hf:…",
        "  inputs:",
        "    wholes: {dtype: float32, dims: [batch, 4]}",
        "    halves: {dtype: float32, dims: […]}",
        "    foo: {dtype: …, dims: […]}",
    ]
