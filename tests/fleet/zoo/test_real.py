"""A dozen entries of the shipped list, as they stand there: saved, compiled and judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.fleet.zoo.entries import read_list
from plansmith.fleet.zoo.trial import try_entry

pytestmark = pytest.mark.slow

ENTRIES = {entry.label: entry for entry in read_list(Path(__file__).parents[3] / "configs" / "zoo.yaml")}

# Each with the inputs' axes that have to move at least.
DOZEN = {
    "distilbert DistilBertForQuestionAnswering": {"batch", "sequence"},
    "roberta RobertaForTokenClassification": {"batch", "sequence"},
    "albert AlbertForMaskedLM": {"batch", "sequence"},
    "mpnet MPNetModel": {"batch", "sequence"},
    "gpt2 GPT2LMHeadModel": {"batch", "sequence"},
    "qwen3 Qwen3ForCausalLM": {"batch", "sequence"},
    "gemma2 Gemma2ForCausalLM": {"batch", "sequence"},
    "t5 T5EncoderModel": {"batch", "sequence"},
    "vit ViTForImageClassification": {"batch"},
    "segformer SegformerForSemanticSegmentation": {"batch"},
    "timm:starnet_s050": {"batch"},
    "timm:mobilenetv3_small_050 image-feature-extraction": {"batch"},
}


# The others are as good a test, and take minutes together.
FEW = {"distilbert DistilBertForQuestionAnswering", "t5 T5EncoderModel", "vit ViTForImageClassification"}


@pytest.mark.parametrize("label", [pytest.param(one, marks=[] if one in FEW else pytest.mark.slow) for one in DOZEN])
def test_shipped_entry_is_right(label: str, tmp_path: Path) -> None:
    """An entry of the shipped list is right at every shape and its axes move."""
    row = try_entry(ENTRIES[label], tmp_path, lambda _: None)
    assert row.outcome == "right", row.problem
    assert DOZEN[label] <= {axis.name for axis in row.axes if axis.moves}
    assert row.shapes >= 4
