"""The models that plans are built of; their weights are random, as nothing can be fetched."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..support.faults.compiles import write_tiny_bert

BERT_SHAPES = "1x16:8x64:16x128"
IMAGE_SHAPES = "1x3x224x224:4x3x224x224:16x3x224x224"


@dataclass(frozen=True)
class Subject:
    """One model.

    Args:
        name: in Triton, and in the table of figures.
        source: as a spec has it.
        keys: what else its spec says of it.
    """

    name: str
    source: str
    keys: dict[str, Any]

    def spec(self, **more: Any) -> dict[str, Any]:
        """A spec of it."""
        return {"source": self.source, "name": self.name, **self.keys, **more}


def subject(name: str, folder: Path) -> Subject:
    """One of bert-base, resnet50, vit and tiny-bert; `folder` takes what has to be saved first."""
    if name == "bert-base":
        source = f"hf:{_saved_bert(folder / 'bert-base')}"
        return Subject(name, source, {"shapes": {"input_ids": BERT_SHAPES}})
    if name == "tiny-bert":
        place = folder / "tiny-bert"
        source = f"hf:{place if place.is_dir() else write_tiny_bert(place)}"
        return Subject(name, source, {"random_weights": True, "shapes": {"input_ids": "1x8:4x16:8x32"}})
    timm = {"resnet50": "resnet50", "vit": "vit_small_patch16_224"}[name]
    return Subject(name, f"timm:{timm}", {"random_weights": True, "shapes": {"pixel_values": IMAGE_SHAPES}})


def _saved_bert(folder: Path) -> Path:
    """BERT-base with two classes, 110 million weights, as transformers saves it."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    if not folder.is_dir():
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            BertForSequenceClassification(BertConfig()).save_pretrained(folder)
    return folder
