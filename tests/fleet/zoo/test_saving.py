"""What the zoo saves beside its models: tokenizers and processors that fit them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plansmith.fleet.zoo.entries import ZooEntry
from plansmith.fleet.zoo.save import save
from plansmith.sources.huggingface.processors import read_preprocessors

SIZES: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
IMAGE: dict[str, Any] = {**SIZES, "image_size": 32, "patch_size": 8}
LLAMA: dict[str, Any] = {**SIZES, "model_type": "llama", "vocab_size": 90, "max_position_embeddings": 40}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "architecture", "config", "words"),
    [
        ("canine", "CanineModel", {**SIZES, "num_hash_buckets": 64, "local_transformer_stride": 16}, 0x110000),
        ("gpt2", "GPT2LMHeadModel", {"vocab_size": 90, "n_embd": 16, "n_layer": 1, "n_head": 2}, 90),
        ("paligemma", "PaliGemmaForConditionalGeneration", {"image_token_id": 5}, 90),
    ],
    ids=["characters, of which no file tells", "end marks beyond the vocabulary", "a processor that adds words"],
)
def test_tokenizer_fits_model_vocabulary(
    model_type: str, architecture: str, config: dict[str, Any], words: int, tmp_path: Path
) -> None:
    """A tokenizer has no more words than its model."""
    if model_type == "paligemma":
        text = {**LLAMA, "model_type": "gemma", "num_key_value_heads": 1, "head_dim": 8}
        vision = {**IMAGE, "model_type": "siglip_vision_model"}
        config = {**config, "text_config": text, "vision_config": vision, "projection_dim": 16}
    save(ZooEntry(model_type=model_type, architecture=architecture, config=config), tmp_path)
    assert len(read_preprocessors(tmp_path, trust_remote_code=False).tokenizer) <= words


def test_image_token_is_own_word(tmp_path: Path) -> None:
    """The token that stands for an image is a word of its own."""
    config = {"text_config": LLAMA, "vision_config": {**IMAGE, "model_type": "clip_vision_model"}, "image_token_id": 5}
    save(ZooEntry(model_type="llava", architecture="LlavaForConditionalGeneration", config=config), tmp_path)
    preprocessors = read_preprocessors(tmp_path, trust_remote_code=False)
    assert preprocessors.tokenizer.convert_tokens_to_ids("<image>") == 5
    assert 5 not in preprocessors.tokenizer("a sentence")["input_ids"]
    assert preprocessors.images.crop_size["height"] == 32


def test_longest_side_processor_fits(tmp_path: Path) -> None:
    """An image processor that knows the longest side alone fits its model."""
    config = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}
    save(ZooEntry(model_type="sam_vision_model", architecture="SamVisionModel", config=config), tmp_path)
    images = read_preprocessors(tmp_path, trust_remote_code=False).images
    assert (images.size["longest_edge"], images.pad_size["height"]) == (32, 32)
