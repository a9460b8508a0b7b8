"""Models that generate text, tiny and random, with tokenizers trained on real sentences as users save them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .real_sentences import real_paragraphs, real_sentences

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, EOS, UNKNOWN = "<pad>", "</s>", "<unk>"


def unigram(size: int, *, longest: int, sentences: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """A tokenizer like T5's: Unigram pieces with "▁" for spaces, bytes for what has no piece, </s> behind each text."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=size, special_tokens=[PAD, EOS, UNKNOWN], unk_token=UNKNOWN, show_progress=False
    )
    tokenizer.train_from_iterator(sentences or real_sentences(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS}", pair=f"$A {EOS} $B {EOS}", special_tokens=[(EOS, tokenizer.token_to_id(EOS))]
    )
    kind: Any = PreTrainedTokenizerFast
    return kind(  # type: ignore[no-any-return]
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        model_max_length=longest,
        model_input_names=["input_ids", "attention_mask"],
    )


def byte_level(size: int, *, longest: int) -> PreTrainedTokenizerFast:
    """A tokenizer like GPT-2's: pairs of bytes, one special token, and none for padding."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    end = "<|endoftext|>"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[end],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(real_sentences(), trainer)
    kind: Any = PreTrainedTokenizerFast
    return kind(  # type: ignore[no-any-return]
        tokenizer_object=tokenizer,
        bos_token=end,
        eos_token=end,
        unk_token=end,
        model_max_length=longest,
        model_input_names=["input_ids", "attention_mask"],
    )


def write_t5(folder: Path, *, seed: int = 0, **fields: Any) -> Path:
    """A T5 of two layers; its weights are large enough that other questions get other answers."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    tokenizer = unigram(600, longest=48)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
    kind: Any = T5Config
    config = kind(
        **(sizes | fields),
        vocab_size=len(tokenizer),
        initializer_factor=4.0,  # with less, it says one token again and again, whatever it is asked
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
        architectures=["T5ForConditionalGeneration"],
    )
    torch.manual_seed(seed)
    T5ForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_gpt2(folder: Path, *, seed: int = 0, **fields: Any) -> Path:
    """A GPT-2 of two layers with 64 positions; its weights are large, likewise."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer = byte_level(600, longest=64)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "initializer_range": 0.4}
    config = GPT2Config(
        **(sizes | fields),
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        architectures=["GPT2LMHeadModel"],
    )
    torch.manual_seed(seed)
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_t5_small(folder: Path) -> None:
    """T5-small as the shipped spec has it: configuration and tokenizer; the weights are drawn when it is compiled."""
    from transformers import GenerationConfig, T5Config

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = unigram(4096, longest=512, sentences=real_paragraphs())
    tokenizer.save_pretrained(folder)
    written = json.loads((folder / "tokenizer.json").read_text())
    written["model"]["vocab"] = [[piece, round(score, 3)] for piece, score in written["model"]["vocab"]]
    (folder / "tokenizer.json").write_text(json.dumps(written, ensure_ascii=False, separators=(",", ":")) + "\n")
    ids = {
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "decoder_start_token_id": tokenizer.pad_token_id,
    }
    T5Config(
        vocab_size=len(tokenizer),
        d_model=512,
        d_kv=64,
        d_ff=2048,
        num_layers=6,
        num_heads=8,
        initializer_factor=1.5,  # with more, rounding errors grow from layer to layer until they change the text
        architectures=["T5ForConditionalGeneration"],
        **ids,
    ).save_pretrained(folder)
    generation: Any = GenerationConfig
    generation(max_new_tokens=24, no_repeat_ngram_size=2, **ids).save_pretrained(folder)


def write_gpt2_small(folder: Path) -> None:
    """A small GPT-2 as the shipped spec has it, likewise."""
    from transformers import GenerationConfig, GPT2Config

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = byte_level(1024, longest=256)
    tokenizer.save_pretrained(folder)
    written = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(written, ensure_ascii=False, separators=(",", ":")) + "\n")
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=128,
        n_layer=4,
        n_head=4,
        n_positions=256,
        initializer_range=0.2,
        architectures=["GPT2LMHeadModel"],
        **ids,
    ).save_pretrained(folder)
    generation: Any = GenerationConfig
    generation(max_new_tokens=24, no_repeat_ngram_size=2, pad_token_id=tokenizer.eos_token_id, **ids).save_pretrained(
        folder
    )


if __name__ == "__main__":
    MODELS = Path(__file__).parents[2] / "configs" / "models"
    write_t5_small(MODELS / "t5-random")
    write_gpt2_small(MODELS / "gpt2-random")
