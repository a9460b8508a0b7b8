"""Logits of starts and ends become answers by the rules of transformers' question answering.

Its releases from 5 on have no such pipeline: what is served is held against the rules written out plainly, on the
library's model and tokenizer; and these against answers that follow by hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plansmith.pipelines.served.postprocessing.answers import AnswersStep
from plansmith.pipelines.served.requests import Refusal

from ....support.pipelines.columns import column
from ....support.pipelines.texts import SENTENCES, Arrays, bert, byte_level, close, roberta, serve, split, word_piece

CONTEXTS = [" ".join(SENTENCES[place : place + 3]) for place in range(0, 256, 4)]
QUESTIONS = [f"{text[:-1]}?" for text in SENTENCES[1::4]]


def compare(folder: Path, out: Path, tolerance: float = 2e-6) -> None:
    served = serve(folder, out)
    sizes = [1, 5, 30, 2, 26]
    pairs = zip(split(QUESTIONS, sizes), split(CONTEXTS, sizes), strict=True)
    requests: list[Arrays] = [{"question": column(*first), "context": column(*second)} for first, second in pairs]
    requests += list(served.draft.questions.values())
    answers = served.answers(requests)
    texts = []
    for request, answer in zip(requests, answers, strict=True):
        assert not isinstance(answer, Refusal)
        owed = served.draft.ask(request)
        for name in ("answer", "start", "end"):
            assert answer[name].tolist() == owed[name].tolist()
        close(answer["score"], owed["score"], atol=tolerance)
        for row, (text,) in enumerate(answer["answer"]):
            context = request["context"][row, 0].decode()
            assert text.decode() == context[answer["start"][row, 0] : answer["end"][row, 0]]
            texts.append(text)
    assert len(set(texts)) > 20  # lively enough to show something


@pytest.mark.slow
def test_contexts_answered_like_library(tmp_path: Path) -> None:
    """Real contexts are answered as the library would."""
    compare(bert(tmp_path / "model", "ForQuestionAnswering"), tmp_path / "out")


def test_byte_tokenizer_answers_like_library(tmp_path: Path) -> None:
    """A tokenizer of bytes answers like the library too."""
    compare(roberta(tmp_path / "model", "ForQuestionAnswering"), tmp_path / "out")


def test_left_padding_puts_context_first(tmp_path: Path) -> None:
    """Padding on the left puts the context first."""
    tokenizer = word_piece(padding_side="left", model_max_length=128)
    served = serve(bert(tmp_path / "model", "ForQuestionAnswering", tokenizer), tmp_path / "out")
    assert served.draft.before[0].settings["columns"] == ("context", "question")
    assert [tensor.name for tensor in served.draft.inputs] == ["question", "context"]
    request = {"question": column(QUESTIONS[0]), "context": column(CONTEXTS[0])}
    assert served.answer(request)["answer"].tolist() == served.draft.ask(request)["answer"].tolist()
    hard = served.draft.questions["empty"]
    assert served.answer(hard)["answer"].tolist() == [[b""]] == served.draft.ask(hard)["answer"].tolist()


def by_hand(starts: dict[int, float], ends: dict[int, float], **changed: Any) -> tuple[Any, ...]:
    """The answer from six words, where few tokens have a share.

    The row is [CLS] who [SEP] the old man saw the sea [SEP]; `starts` and `ends` are logits of its tokens.
    """
    context = "The old man saw the sea"
    offsets = [(0, 3), (4, 7), (8, 11), (12, 15), (16, 19), (20, 23)]
    spans = np.full((1, 10, 2), -1, np.int32)
    spans[0, 3:9] = offsets
    feed: dict[str, Any] = {"s": np.full((1, 10), -30.0, np.float32), "e": np.full((1, 10), -30.0, np.float32)}
    for name, scores in (("s", starts), ("e", ends)):
        for place, value in scores.items():
            feed[name][0, place] = value
    feed |= {"ids": np.array([[101, 9, 102, *range(1, 7), 102]]), "spans": spans, "context": column(context)}
    settings = {"starts": "s", "ends": "e", "ids": "ids", "spans": "spans", "context": "context", "nothing": 101}
    (answer,) = AnswersStep(settings | changed, Path()).answer([feed])
    assert not isinstance(answer, Refusal)
    return tuple(answer[name][0, 0] for name in ("answer", "score", "start", "end"))


def test_likeliest_span_wins() -> None:
    """The likeliest span is the answer."""
    text, score, start, end = by_hand({4: 5.0}, {5: 5.0})
    assert (text, start, end) == (b"old man", 4, 11)
    assert score == pytest.approx(1.0)


def test_span_never_ends_before_start() -> None:
    """A span does not end before it begins."""
    text, score, *_ = by_hand({6: 2.0, 4: 1.0}, {5: 2.0, 8: 0.0})
    assert text == b"old man"
    high, low = np.exp(2) / (np.exp(2) + np.exp(1)), np.exp(2) / (np.exp(2) + 1)
    assert score == pytest.approx((1 - high) * low, rel=1e-5)


def test_same_words_count_together() -> None:
    """The same words in two places count together, whatever their case."""
    text, score, start, _ = by_hand({3: 1.0, 7: 1.0, 5: 1.2}, {3: 1.0, 7: 1.0, 5: 1.2})
    assert text == b"The"  # either place has less than "man", and both have more
    share = np.exp(1) / (2 * np.exp(1) + np.exp(1.2))
    assert score == pytest.approx(2 * share**2, rel=1e-5)
    assert start == 0


def test_no_answer_token_has_share() -> None:
    """The token of 'no answer' has its share and is no answer itself."""
    text, score, *_ = by_hand({0: 3.0, 4: 3.0}, {0: 3.0, 5: 3.0})
    assert text == b"old man"
    assert score == pytest.approx(0.25, rel=1e-5)
    assert by_hand({0: 3.0, 4: 3.0}, {0: 3.0, 5: 3.0}, nothing=None)[1] == pytest.approx(1.0)


def test_question_tokens_answer_nothing() -> None:
    """Tokens of the question answer nothing."""
    assert by_hand({1: 30.0, 8: 1.0}, {1: 30.0, 8: 1.0})[0] == b"sea"


def test_answer_has_fifteen_tokens_at_most(tmp_path: Path) -> None:
    """An answer has fifteen tokens at most."""
    tokenizer = byte_level()
    served = serve(roberta(tmp_path / "model", "ForQuestionAnswering", tokenizer), tmp_path / "out")
    context = " ".join(f"w{number}" for number in range(20))
    (tensors,) = served.step(served.draft.before[0]).answer([{"question": column("?"), "context": column(context)}])
    placed = np.flatnonzero(tensors["spans"][0, :, 0] >= 0)
    logits = {name: np.full(tensors["input_ids"].shape, -30.0, np.float32) for name in ("start_logits", "end_logits")}
    logits["start_logits"][0, placed[0]] = 9
    logits["end_logits"][0, placed[14]] = 1
    logits["end_logits"][0, placed[15]] = 9
    (answer,) = served.step(served.draft.after[0]).answer([tensors | logits | {"context": column(context)}])
    assert answer["end"][0, 0] == tensors["spans"][0, placed[14], 1]
