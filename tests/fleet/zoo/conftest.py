"""Small entries that several tests try."""

from __future__ import annotations

from typing import Any

import pytest

from plansmith.fleet.zoo.entries import ZooEntry

SMALL: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 96,
}


@pytest.fixture
def bert() -> ZooEntry:
    """A text classifier."""
    return ZooEntry(model_type="bert", architecture="BertForSequenceClassification", config=SMALL)
