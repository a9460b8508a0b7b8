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

    made = transformers.pipeline("token-classification", model=str(folder), device="cpu", aggregation_strategy="simple")
    assert made.tokenizer is not None
    made.tokenizer.model_max_length = longest
    found: list[list[dict[str, Any]]] = [made(text) for text in texts]
    return found


def same(found: list[dict[str, Any]], owed: list[dict[str, Any]]) -> None:
    assert [one | {"score": 0} for one in found] == [{**one, "score": 0} for one in owed]
    close([one["score"] for one in found], [one["score"] for one in owed], atol=2e-6)


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
            found = json.loads(text.decode())
            same(found, next(expected))
            counts.append(len(found))
    assert max(counts) > 5  # lively enough to show something


@pytest.mark.slow
def test_256_sentences_and_hard_texts_have_the_entities_of_transformers(tmp_path: Path) -> None:
    compare(bert(tmp_path / "model", "ForTokenClassification", id2label=LABELS, num_labels=7), tmp_path / "out")


@pytest.mark.slow
def test_a_tokenizer_of_bytes_has_them_too(tmp_path: Path) -> None:
    compare(roberta(tmp_path / "model", "ForTokenClassification", id2label=LABELS, num_labels=7), tmp_path / "out")


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_moves_no_entity(side: str, tmp_path: Path) -> None:
    words = word_piece(padding_side=side, model_max_length=128)
    folder = bert(tmp_path / "model", "ForTokenClassification", words, id2label=LABELS, num_labels=7)
    served = serve(folder, tmp_path / "out", padding="opt")
    texts = [*SENTENCES[:6], ""]
    part = served.draft.before[0]
    (made,) = served.step(part).answer([{"text": column(*texts)}])
    assert made["input_ids"].shape == (7, 128)
    # A BERT counts positions from the left, so only what the tagger makes of given logits can be compared.
    width = made["input_ids"].shape[1]
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((len(texts), width, 7)).astype(np.float32)
    (answer,) = served.step(served.draft.after[0]).answer([made | {"logits": logits, "text": column(*texts)}])
    import torch
    import transformers

    model = transformers.AutoModelForTokenClassification.from_pretrained(folder)
    library: Any = transformers.TokenClassificationPipeline
    own = library(model=model, tokenizer=words, device="cpu")
    strategy = transformers.pipelines.token_classification.AggregationStrategy.SIMPLE
    for row, text in enumerate(texts):
        (told,) = own.preprocess(text, is_split_into_words=False)
        count = told["input_ids"].shape[1]
        kept = logits[row : row + 1, width - count :] if side == "left" else logits[row : row + 1, :count]
        owed = own.postprocess([{**told, "logits": torch.from_numpy(kept.copy())}], aggregation_strategy=strategy)
        same(json.loads(answer["entities"][row, 0].decode()), owed)


def test_the_source_is_asked_without_the_served_parts_and_agrees(tmp_path: Path) -> None:
    words = byte_level()
    folder = roberta(tmp_path / "model", "ForTokenClassification", words, id2label=LABELS, num_labels=7)
    served = serve(folder, tmp_path / "out")
    for question in served.draft.questions.values():
        owed, found = served.draft.ask(question), served.answer(question)
        for (one,), (other,) in zip(owed["entities"], found["entities"], strict=True):
            same(json.loads(other.decode()), json.loads(one.decode()))
