"""Tiny models with random weights and the tokenizer or transform that feeds them."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from plansmith.compilers.export.loading import load
from plansmith.compilers.export.requests import LoadRequest
from plansmith.sources.loaded_model import LoadedModel

WORDS = ["the", "cat", "sat", "on", "a", "mat", "dog", "ran", "far", "away", "who", "?", "##s", "and", "then", "slept"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def save_bert(folder: Path, head: str, *, labels: dict[int, str] | None = None, padding_side: str = "right") -> Path:
    """A BERT of one layer with a head ("ForSequenceClassification"), and a tokenizer of a few words."""
    import transformers

    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *WORDS]) + "\n")
    config = transformers.BertConfig(
        vocab_size=len(SPECIAL) + len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
    )
    if labels:
        config.id2label, config.label2id = labels, {name: i for i, name in labels.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        vocabulary = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
        transformers.BertTokenizer(vocab=vocabulary, padding_side=padding_side).save_pretrained(folder)
        getattr(transformers, f"Bert{head}")(config).save_pretrained(folder)
    return folder


def save_vit(folder: Path) -> Path:
    """A small ViT for coloured images of 16 x 16, and its processor."""
    import transformers

    config = transformers.ViTConfig(
        image_size=16, patch_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers.ViTModel(config).save_pretrained(folder)
        processor: Any = transformers.ViTImageProcessor(size={"height": 16, "width": 16})
        processor.save_pretrained(folder)
    return folder


def save_timm(folder: Path, *, classes: tuple[str, ...]) -> Path:
    """A small ResNet for grey images of 32 x 32."""
    import timm

    model = timm.create_model("resnet10t", pretrained=False, num_classes=len(classes), in_chans=1)
    config = {"input_size": (1, 32, 32), "mean": (0.5,), "std": (0.5,), "label_names": list(classes)}
    timm.models.save_for_hf(model, folder, safe_serialization=True, model_config=config)
    fields = json.loads((folder / "config.json").read_text())
    fields["pretrained_cfg"] |= {"input_size": [1, 32, 32], "mean": [0.5], "std": [0.5], "crop_pct": 1.0}
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def load_live(folder: Path, scheme: str = "hf", inputs: dict[str, Any] | None = None) -> LoadedModel:
    fields = {"scheme": scheme, "folder": folder, "location": str(folder), "inputs": inputs or {}}
    return load(LoadRequest.model_validate(fields))


def phrases(count: int) -> list[str]:
    """Different texts of one to eight words that `save_bert` knows."""
    vocabulary = ("the", "cat", "sat", "on", "mat", "dog", "ran", "far")
    return [" ".join(vocabulary[(i // 8**place + place) % 8] for place in range(1 + i % 8)) for i in range(count)]
