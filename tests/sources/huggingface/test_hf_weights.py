"""Weights that are not what the configuration says, or no numbers, are named and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plansmith.errors import SourceError

from ...support.models.architectures import TEXT, load, save


def bert(folder: Path, **options: Any) -> Path:
    return save(folder, "BertForSequenceClassification", "BertConfig", **TEXT, **options)


def rewrite(folder: Path, **fields: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    return folder


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"hidden_size": 64}, r"bert\.embeddings\.LayerNorm\.bias is \[32\] and should be \[64\], and \d+ more"),
        ({"vocab_size": 100}, r"word_embeddings\.weight is \[99, 32\] and should be \[100, 32\]\n"),
        ({"num_hidden_layers": 1}, r"the checkpoint has 16 weights more, such as bert\.encoder\.layer\.1\."),
        ({"num_hidden_layers": 3}, r"lacks 16 weights of BertForSequenceClassification: bert\.encoder\.layer\.2"),
    ],
    ids=["a width", "a vocabulary", "fewer layers", "more layers"],
)
def test_contradicting_configuration_names_weight(fields: dict[str, Any], says: str, tmp_path: Path) -> None:
    """A configuration that contradicts the weights is refused by the name of a weight."""
    folder = rewrite(bert(tmp_path / "model"), **fields)
    with pytest.raises(SourceError, match=says) as caught:
        load(folder)
    assert "config.json" in caught.value.remedy


def test_class_count_points_to_task(tmp_path: Path) -> None:
    """Another number of classes points to the task."""
    folder = rewrite(bert(tmp_path / "model"), id2label={"0": "a", "1": "b", "2": "c"})
    with pytest.raises(SourceError, match=r"classifier\.bias is \[2\] and should be \[3\]") as caught:
        load(folder, task="text-classification")
    assert "leave the task out" in caught.value.remedy


@pytest.mark.parametrize(("value", "word"), [(float("nan"), "NaN"), (float("inf"), "Inf"), (float("-inf"), "Inf")])
def test_non_number_weight_named(value: float, word: str, tmp_path: Path) -> None:
    """A weight that is no number is named."""

    def spoil(model: Any) -> None:
        model.bert.encoder.layer[1].output.dense.weight[3, 5] = value

    folder = bert(tmp_path / "model", change=spoil)
    says = rf"the weight bert\.encoder\.layer\.1\.output\.dense\.weight holds {word} \(1 of 1152 values\)"
    with pytest.raises(SourceError, match=says) as caught:
        load(folder)
    assert caught.value.remedy


def test_unasked_head_may_be_left(tmp_path: Path) -> None:
    """A head that is not asked for may be left over."""
    assert load(bert(tmp_path / "model"), task="feature-extraction").output_names == (
        "last_hidden_state",
        "pooler_output",
    )
