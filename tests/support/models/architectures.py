"""Small models of transformers as users save them: some with their tokenizer or processor, some without."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from plansmith.sources.huggingface import models as hf_models
from plansmith.sources.loaded_model import LoadedModel, enliven

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 36,
}
TEXT: dict[str, Any] = {**SIZES, "vocab_size": 99, "max_position_embeddings": 40}
IMAGE: dict[str, Any] = {**SIZES, "image_size": 32, "patch_size": 8}
VIDEO: dict[str, Any] = {**IMAGE, "num_frames": 4}
SPEECH: dict[str, Any] = {
    **SIZES,
    "vocab_size": 20,
    "conv_dim": [8, 8],
    "conv_stride": [5, 4],
    "conv_kernel": [10, 8],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
}
WRITER: dict[str, Any] = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 36,
    "decoder_ffn_dim": 36,
    "max_position_embeddings": 40,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
WHISPER: dict[str, Any] = {
    **{key: value for key, value in WRITER.items() if key != "max_position_embeddings"},
    "num_mel_bins": 16,
    "max_source_positions": 30,
    "max_target_positions": 24,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
SERIES: dict[str, Any] = {
    "num_input_channels": 3,
    "context_length": 16,
    "prediction_length": 4,
    "patch_length": 4,
    "patch_stride": 4,
    "d_model": 16,
    "ffn_dim": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
}


def save(
    folder: Path,
    model: str,
    config: str,
    *preprocessors: Any,
    change: Callable[[Any], None] | None = None,
    **fields: Any,
) -> Path:
    """Save a model with lively random weights, and what makes its inputs."""
    import torch
    import transformers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        network = getattr(transformers, model)(getattr(transformers, config)(**fields))
        enliven(network, 0)
        if change is not None:
            with torch.no_grad():
                change(network)
        network.save_pretrained(folder)
        for preprocessor in preprocessors:
            preprocessor.save_pretrained(folder)
    return folder


def load(folder: Path, *, task: str = "", outputs: tuple[str, ...] = ()) -> LoadedModel:
    """As a compile loads it."""
    return hf_models.load(folder, trust_remote_code=False, allow_pickle=False, task=task, inputs={}, outputs=outputs)


def tokenizer(**special: str) -> Any:
    """A tokenizer of letters; the given tokens come first: pad_token="[PAD]", …"""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    pieces = [f"{mark}{chr(letter)}" for mark in ("", "##") for letter in range(ord("a"), ord("z") + 1)]
    vocabulary = {word: number for number, word in enumerate([*special.values(), *pieces])}
    result = Tokenizer(models.WordPiece(vocabulary, unk_token=special["unk_token"]))
    result.pre_tokenizer = pre_tokenizers.Whitespace()
    begin, end = special["bos_token"], special["eos_token"]
    result.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}", pair=None, special_tokens=[(word, vocabulary[word]) for word in (begin, end)]
    )
    fast: Any = transformers.PreTrainedTokenizerFast
    return fast(tokenizer_object=result, **special)
