"""Longformer moves in batch and length, with the answers of its own code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from plansmith.compilers.export import torch_export
from plansmith.compilers.export.rewrites import attention
from plansmith.compilers.export.rewrites.registry import in_force
from plansmith.records.model import Tensor
from plansmith.sources.loaded_model import enliven

from ...support.validation.graphs import silent
from .jobs import job_at

if TYPE_CHECKING:
    from pathlib import Path

WINDOW = 8
TENSORS = tuple(Tensor(name=n, dtype="int64", dims=("batch", "sequence")) for n in ("input_ids", "attention_mask"))
SHAPES = {
    "traced": {"batch": 2, "sequence": 16},
    "single": {"batch": 1, "sequence": 5},
    "untraced": {"batch": 3, "sequence": 43},
}


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        from transformers import LongformerConfig, LongformerForSequenceClassification

        super().__init__()
        torch.manual_seed(0)
        config = LongformerConfig(
            vocab_size=40,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=70,
            attention_window=WINDOW,
        )
        self.model = LongformerForSequenceClassification(config)
        enliven(self.model, 0)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (self.model(input_ids=tensors[0], attention_mask=tensors[1]).logits,)


def texts(sizes: Mapping[str, int]) -> dict[str, Any]:
    """Token ids, and a mask that hides the ends of all rows but the first."""
    batch, length = sizes["batch"], sizes["sequence"]
    ids = np.random.default_rng(length).integers(3, 40, (batch, length))
    mask = (np.arange(length) < length - 3 * np.arange(batch)[:, None]).astype(np.int64)
    return {"input_ids": np.where(mask, ids, 1), "attention_mask": mask}


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    return Classifier().eval()


def test_masked_form_keeps_answers(classifier: Classifier) -> None:
    """The masked form gives the same answers with and without padding."""
    before = dict(classifier.model.longformer.__dict__)
    for sizes in SHAPES.values():
        feed = [torch.from_numpy(a) for a in texts(sizes).values()]
        with torch.inference_mode():
            own = classifier(*feed)[0]
            used: list[str] = []
            with in_force(classifier, "torchscript", used):
                rewritten = classifier(*feed)[0]
        assert used == [attention.WINDOW_REWRITES[0].name]
        torch.testing.assert_close(rewritten, own, rtol=1e-5, atol=1e-5)
    assert dict(classifier.model.longformer.__dict__) == before


def test_masked_graph_follows_sizes(classifier: Classifier, tmp_path: Path) -> None:
    """The graph of the masked form follows batch and length."""
    exported = torch_export.export(job_at(classifier, TENSORS, SHAPES, tmp_path, texts), silent)
    assert [a.exporter for a in exported.attempts] == ["torchscript"]
    assert exported.attempts[0].rewrites == (attention.WINDOW_REWRITES[0].name,)
    assert exported.component.inputs[0].dims == ("batch", "sequence")
