"""Small CLIPs, with a tokenizer like its own that is trained on real sentences."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..real_sentences import real_sentences
from .architectures import IMAGE, TEXT, save

BEGIN, END = "<|startoftext|>", "<|endoftext|>"
_WORD_END = "</w>"
_PROJECTION = 16


def clip_tokenizer(merges: int, *, longest: int) -> Any:
    """A tokenizer of CLIP: pairs of bytes, words in lower case, and texts that end where they are filled up."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import CLIPTokenizer

    kind: Any = CLIPTokenizer
    plain = kind().backend_tokenizer
    trained = Tokenizer(models.BPE(end_of_word_suffix=_WORD_END))
    trained.normalizer, trained.pre_tokenizer = plain.normalizer, plain.pre_tokenizer
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=2 * len(letters) + merges,
        initial_alphabet=letters,
        end_of_word_suffix=_WORD_END,
        show_progress=False,
    )
    trained.train_from_iterator(real_sentences(), trainer)
    pairs = [tuple(pair) for pair in json.loads(trained.to_str())["model"]["merges"]][:merges]
    tokens = [*letters, *(letter + _WORD_END for letter in letters), *("".join(pair) for pair in pairs), BEGIN, END]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    return kind(vocab=vocabulary, merges=pairs, model_max_length=longest)


def text_config(tokenizer: Any, **changed: Any) -> dict[str, Any]:
    """The part of a configuration that is about texts."""
    ids = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    return TEXT | ids | changed


def clip(folder: Path, processor: Any, *, change: Callable[[Any], None] | None = None, family: str = "CLIP") -> Path:
    """A CLIP, or another one of this family, for images of 32 x 32 whose scores differ from text to text."""

    def lively(model: Any) -> None:
        model.logit_scale.fill_(4.0)
        if change is not None:
            change(model)

    tokenizer = clip_tokenizer(300, longest=TEXT["max_position_embeddings"])
    fields = {"text_config": text_config(tokenizer), "vision_config": IMAGE, "projection_dim": _PROJECTION}
    return save(folder, f"{family}Model", f"{family}Config", tokenizer, processor, change=lively, **fields)


def write_clip_small(folder: Path) -> None:
    """A small CLIP as the shipped spec has it; the weights are drawn when it is compiled."""
    from transformers import CLIPConfig, CLIPImageProcessor

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = clip_tokenizer(1024, longest=77)
    tokenizer.save_pretrained(folder)
    written = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(written, ensure_ascii=False, separators=(",", ":")) + "\n")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    kind: Any = CLIPConfig
    kind(
        text_config=text_config(tokenizer, **sizes, max_position_embeddings=77),
        vision_config={**sizes, "image_size": 64, "patch_size": 16},
        projection_dim=32,
        logit_scale_init_value=4.6052,  # that of CLIP when it is trained: 100
        architectures=["CLIPModel"],
    ).save_pretrained(folder)
    images: Any = CLIPImageProcessor
    images(size={"shortest_edge": 64}, crop_size={"height": 64, "width": 64}).save_pretrained(folder)


if __name__ == "__main__":
    write_clip_small(Path(__file__).parents[3] / "configs" / "models" / "clip-random")
