"""Logits of tokens become entities as transformers' token classification makes them, neighbours of one tag together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plansmith.pipelines.served.requests import Refusal

from ....support.pipelines.columns import column
from ....support.pipelines.texts import (
    REQUESTS,
    SENTENCES,
    TAG_NAMES,
    bert,
    byte_level,
    close,
    roberta,
    serve,
    word_piece,
)

LABELS = dict(enumerate(TAG_NAMES))
HARD = ["", "👩‍🚀 met Ana Müller in 東京, didn't she?", " ".join(SENTENCES), "[SEP] [UNK] ☃☃", "  two   spaces "]


def library(folder: Path, texts: list[str], longest: int) -> list[list[dict[str, Any]]]:
    """What transformers' own pipeline answers, from end to end."""
    import transformers

    tagger = transformers.pipeline(
        "token-classification", model=str(folder), device="cpu", aggregation_strategy="simple"
    )
    assert tagger.tokenizer is not None
    tagger.tokenizer.model_max_length = longest
    entities: list[list[dict[str, Any]]] = [tagger(text) for text in texts]
    return entities


def same(entities: list[dict[str, Any]], owed: list[dict[str, Any]]) -> None:
    assert [entity | {"score": 0} for entity in entities] == [{**entity, "score": 0} for entity in owed]
    close([entity["score"] for entity in entities], [entity["score"] for entity in owed], atol=2e-6)


def compare(folder: Path, out: Path) -> None:
    requests = [*REQUESTS, HARD]
    served = serve(folder, out)
    answers = served.answers([{"text": column(*texts)} for texts in requests])
    expected = iter(library(folder, [text for texts in requests for text in texts], 128))
    counts = []
    for texts, answer in zip(requests, answers, strict=True):
        assert not isinstance(answer, Refusal)
        assert answer["entities"].shape == (len(texts), 1)
        for (text,) in answer["entities"]:
            entities = json.loads(text.decode())
            same(entities, next(expected))
            counts.append(len(entities))
    assert max(counts) > 5  # lively enough to show something


@pytest.mark.slow
def test_entities_match_transformers(tmp_path: Path) -> None:
    """256 sentences and hard texts have the entities of Transformers."""
    compare(bert(tmp_path / "model", "ForTokenClassification", id2label=LABELS, num_labels=7), tmp_path / "out")


@pytest.mark.slow
def test_byte_tokenizer_entities_match(tmp_path: Path) -> None:
    """A tokenizer of bytes gives the entities of Transformers too."""
    compare(roberta(tmp_path / "model", "ForTokenClassification", id2label=LABELS, num_labels=7), tmp_path / "out")


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_moves_no_entity(side: str, tmp_path: Path) -> None:
    """Padding on either side moves no entity."""
    word_tokenizer = word_piece(padding_side=side, model_max_length=128)
    folder = bert(tmp_path / "model", "ForTokenClassification", word_tokenizer, id2label=LABELS, num_labels=7)
    served = serve(folder, tmp_path / "out", padding="opt")
    texts = [*SENTENCES[:6], ""]
    part = served.draft.before[0]
    (tensors,) = served.step(part).answer([{"text": column(*texts)}])
    assert tensors["input_ids"].shape == (7, 128)
    # A BERT counts positions from the left, so only what the tagger makes of given logits can be compared.
    width = tensors["input_ids"].shape[1]
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((len(texts), width, 7)).astype(np.float32)
    (answer,) = served.step(served.draft.after[0]).answer([tensors | {"logits": logits, "text": column(*texts)}])
    import torch
    import transformers

    model = transformers.AutoModelForTokenClassification.from_pretrained(folder)
    library: Any = transformers.TokenClassificationPipeline
    own = library(model=model, tokenizer=word_tokenizer, device="cpu")
    strategy = transformers.pipelines.token_classification.AggregationStrategy.SIMPLE
    for row, text in enumerate(texts):
        (encoding,) = own.preprocess(text, is_split_into_words=False)
        count = encoding["input_ids"].shape[1]
        row_logits = logits[row : row + 1, width - count :] if side == "left" else logits[row : row + 1, :count]
        owed = own.postprocess(
            [{**encoding, "logits": torch.from_numpy(row_logits.copy())}], aggregation_strategy=strategy
        )
        same(json.loads(answer["entities"][row, 0].decode()), owed)


def test_source_agrees_without_served_parts(tmp_path: Path) -> None:
    """The source is asked without the served parts and agrees."""
    tokenizer = byte_level()
    folder = roberta(tmp_path / "model", "ForTokenClassification", tokenizer, id2label=LABELS, num_labels=7)
    served = serve(folder, tmp_path / "out")
    for question in served.draft.questions.values():
        owed, actual = served.draft.ask(question), served.answer(question)
        for (expected_text,), (actual_text,) in zip(owed["entities"], actual["entities"], strict=True):
            same(json.loads(actual_text.decode()), json.loads(expected_text.decode()))
