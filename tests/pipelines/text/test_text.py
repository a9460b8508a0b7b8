"""Texts become tokens as the source's own tokenizer makes them, in one call for all requests of an execution."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plansmith.pipelines.draft import DraftPart, write_part
from plansmith.pipelines.served.requests import Refusal
from plansmith.pipelines.served.spans import token_spans, word_spans
from plansmith.pipelines.served.text import TextStep
from plansmith.pipelines.text.tokenization import Wording
from plansmith.records.model import AxisRange, Tensor

from ...support.pipelines.columns import column
from ...support.pipelines.texts import REQUESTS, SENTENCES, byte_level, word_piece

LONG = " ".join(SENTENCES)
HARD = ["", " ", "👩‍🚀🚀 naïve é 東京 привет", LONG, "\x00\t\n", "[SEP] </s> [PAD]", "ﷺ" * 50]


def tensors(*names: str, dtype: str = "int64") -> tuple[Tensor, ...]:
    return tuple(Tensor(name=name, dtype=dtype, dims=("batch", "sequence")) for name in names)


BERT = tensors("input_ids", "token_type_ids", "attention_mask")
ROBERTA = tensors("input_ids", "attention_mask")


def make_step(
    tokenizer: Any,
    folder: Path,
    outputs: Sequence[Tensor] = BERT,
    *,
    columns: tuple[str, ...] = ("text",),
    spans: str = "",
    answers_from: int | None = None,
    **changed: Any,
) -> TextStep:
    """The step of a tokenizer, read back from what was written."""
    defaults: dict[str, Any] = {"prompt": "", "max_length": 64, "truncation": "longest_first", "least": 1}
    lengths = AxisRange(min=1, opt=32, max=64, step=changed.pop("step", 1))
    wording = Wording(tokenizer=tokenizer, columns=columns, order=columns, lengths=lengths, **defaults | changed)
    folder.mkdir(exist_ok=True)
    wording.write(folder)
    return TextStep(wording.settings(outputs, spans, answers_from), folder)


def compare(step: TextStep, tokenizer: Any, requests: Sequence[Sequence[str]]) -> None:
    """All requests at once, against the library's tokenizer for all rows at once."""
    answers = step.answer([{"text": column(*texts)} for texts in requests])
    expected = tokenizer(
        [text for texts in requests for text in texts],
        padding=True,
        truncation=True,
        max_length=64,
        return_tensors="np",
        return_token_type_ids=True,
    )
    begin = 0
    for texts, answer in zip(requests, answers, strict=True):
        assert not isinstance(answer, Refusal)
        for name, array in answer.items():
            assert array.dtype == np.int64
            np.testing.assert_array_equal(array, expected[name][begin : begin + len(texts)])
        begin += len(texts)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("cut", ["right", "left"])
def test_tokens_match_minilm(side: str, cut: str, tmp_path: Path) -> None:
    """256 sentences and hard texts become the tokens of MiniLM."""
    tokenizer = word_piece(padding_side=side, truncation_side=cut)
    compare(make_step(tokenizer, tmp_path), tokenizer, [*REQUESTS, HARD])


@pytest.mark.parametrize("side", ["right", "left"])
def test_tokens_match_byte_tokenizer(side: str, tmp_path: Path) -> None:
    """256 sentences and hard texts become the tokens of a tokenizer of bytes."""
    tokenizer = byte_level(padding_side=side)
    compare(make_step(tokenizer, tmp_path, ROBERTA), tokenizer, [*REQUESTS, HARD])


def test_special_token_names_stay_text(tmp_path: Path) -> None:
    """Names of special tokens are plain text where the tokenizer says so."""
    tokenizer = word_piece(split_special_tokens=True)
    compare(make_step(tokenizer, tmp_path), tokenizer, [HARD])
    assert tokenizer("[SEP]")["input_ids"] != word_piece()("[SEP]")["input_ids"]


def test_pairs_cut_and_marked_like_library(tmp_path: Path) -> None:
    """Pairs of texts are cut and marked as the library does it."""
    tokenizer = word_piece()
    step = make_step(tokenizer, tmp_path, columns=("text", "text_pair"))
    firsts, seconds = [*SENTENCES[:60], "", LONG], [*SENTENCES[60:120], "", SENTENCES[0]]
    expected = tokenizer(firsts, seconds, padding=True, truncation=True, max_length=64, return_tensors="np")
    (answer,) = step.answer([{"text": column(*firsts), "text_pair": column(*seconds)}])
    assert not isinstance(answer, Refusal)
    for name, array in answer.items():
        np.testing.assert_array_equal(array, expected[name])


class Counting(TextStep):
    """Counts the calls of its tokenizer."""

    calls = 0

    def _tokens(self, rows: Any) -> Any:
        self.calls += 1
        return super()._tokens(rows)


def test_execution_is_one_call_and_length(tmp_path: Path) -> None:
    """An execution is one call and all its requests get one length."""
    text_step = make_step(word_piece(), tmp_path)
    step = Counting(text_step._settings, tmp_path)
    answers = step.answer([{"text": column(*texts)} for texts in REQUESTS])
    assert step.calls == 1
    assert len({answer["input_ids"].shape[1] for answer in answers if not isinstance(answer, Refusal)}) == 1
    assert [len(answer["input_ids"]) for answer in answers if not isinstance(answer, Refusal)] == [
        len(texts) for texts in REQUESTS
    ]


def test_invalid_utf8_refused_alone(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 refuse their request alone."""
    step = make_step(word_piece(), tmp_path)
    good = [{"text": column("a good one")}, {"text": column("another", "and one more")}]
    first, bad, second = step.answer([good[0], {"text": column("fine", b"caf\xe9", "fine")}, good[1]])
    assert bad == Refusal("text, row 1: byte 3 is no UTF-8 (unexpected end of data); encode texts in UTF-8")
    alone = step.answer(good)
    for answer, owed in zip((first, second), alone, strict=True):
        assert not isinstance(answer, Refusal)
        assert not isinstance(owed, Refusal)
        np.testing.assert_array_equal(answer["input_ids"], owed["input_ids"])
    assert step.answer([{"text": column(b"\xff")}]) == [
        Refusal("text, row 0: byte 0 is no UTF-8 (invalid start byte); encode texts in UTF-8")
    ]


def test_overlong_question_refused_alone(tmp_path: Path) -> None:
    """A question that leaves no room refuses its request alone."""
    step = make_step(
        word_piece(), tmp_path, columns=("question", "context"), truncation="only_second", spans="spans", answers_from=1
    )
    good = {"question": column("Who?"), "context": column(LONG)}
    bad = {"question": column("Who?", LONG), "context": column("A cat.", "A dog.")}
    answers = step.answer([good, bad, good])
    assert isinstance(answers[1], Refusal)
    assert "Truncation error" in answers[1].message
    for place in (0, 2):
        answer = answers[place]
        assert not isinstance(answer, Refusal)
        assert answer["input_ids"].shape == (1, 64)
    assert isinstance(step.answer([bad])[0], Refusal)


def test_tokenless_text_refused_alone(tmp_path: Path) -> None:
    """A text of no tokens refuses its request alone."""
    step = make_step(byte_level(marks=False), tmp_path, ROBERTA)
    first, second = step.answer([{"text": column("some words", "")}, {"text": column("more words")}])
    assert first == Refusal("row 1 is empty: the model's tokenizer makes no token of it")
    assert not isinstance(second, Refusal)
    assert second["attention_mask"].all()


@pytest.mark.parametrize(
    ("least", "step", "length"), [(1, 1, 6), (32, 1, 32), (1, 16, 16), (20, 16, 32), (6, 6, 6), (5, 4, 8)]
)
def test_rows_as_long_as_graph(least: int, step: int, length: int, tmp_path: Path) -> None:
    """Rows are as long as the graph takes them."""
    tokenizer = word_piece()
    (answer,) = make_step(tokenizer, tmp_path, least=least, step=step).answer([{"text": column("a cat sat down")}])
    assert not isinstance(answer, Refusal)
    expected = tokenizer("a cat sat down", padding="max_length", max_length=length, return_tensors="np")
    for name, array in answer.items():
        np.testing.assert_array_equal(array, expected[name])


def test_inputs_have_graph_dtypes(tmp_path: Path) -> None:
    """The inputs have the dtypes of the graph."""
    step = make_step(word_piece(), tmp_path, tensors("input_ids", "attention_mask", dtype="int32"))
    (answer,) = step.answer([{"text": column(*HARD)}])
    assert not isinstance(answer, Refusal)
    assert {name: str(array.dtype) for name, array in answer.items()} == {
        "input_ids": "int32",
        "attention_mask": "int32",
    }


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("make", [word_piece, byte_level])
def test_token_offsets_match_library(make: Any, side: str, tmp_path: Path) -> None:
    """Tokens stand where the library says they do."""
    tokenizer = make(padding_side=side)
    step = make_step(tokenizer, tmp_path, ROBERTA, spans="spans")
    texts = [*SENTENCES[:40], *HARD]
    (answer,) = step.answer([{"text": column(*texts)}])
    assert not isinstance(answer, Refusal)
    expected = tokenizer(
        texts,
        padding=True,
        truncation=True,
        max_length=64,
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        return_tensors="np",
    )
    owed = expected["offset_mapping"].copy()
    owed[expected["special_tokens_mask"] == 1] = -1
    np.testing.assert_array_equal(answer["spans"], owed)
    assert answer["spans"].dtype == np.int32


@pytest.mark.parametrize("make", [word_piece, byte_level])
def test_context_words_match_library(make: Any) -> None:
    """Words of a context are those of the library."""
    tokenizer = make()
    for question, context in zip(SENTENCES[:30], [*SENTENCES[30:57], *HARD[:3]], strict=True):
        batch = tokenizer([question], [context])
        encoding = batch.encodings[0]
        spans = word_spans(encoding, 1)
        for place, side in enumerate(encoding.sequence_ids):
            if side != 1:
                assert spans[place].tolist() == [-1, -1]
                continue
            word = encoding.token_to_word(place)
            assert tuple(spans[place]) == encoding.word_to_chars(word, 1)
    assert token_spans(tokenizer([""]).encodings[0]).tolist() == [[-1, -1], [-1, -1]]


BARE = """
import json, pathlib, runpy, sys
import numpy
for name in ("plansmith", "torch", "transformers"):
    sys.modules[name] = None
runpy.run_path(str(FOLDER / "model.py"))
from plansmith_served.text import TextStep
step = TextStep(json.loads((FOLDER / "settings.json").read_text()), FOLDER)
texts = numpy.empty((1, 1), object)
texts[0, 0] = b"a cat"
print(step.answer([{"text": texts}])[0]["input_ids"].tolist())
"""


def test_part_runs_from_folder_alone(tmp_path: Path) -> None:
    """The part runs from its folder with NumPy and tokenizers alone."""
    tokenizer = word_piece()
    lengths = AxisRange(min=1, opt=8, max=16)
    wording = Wording(
        tokenizer=tokenizer,
        columns=("text",),
        order=("text",),
        prompt="",
        max_length=16,
        truncation="longest_first",
        lengths=lengths,
        least=1,
    )
    texts = (Tensor(name="text", dtype="string", dims=("batch", 1)),)
    part = write_part(
        DraftPart(
            "text",
            TextStep,
            wording.settings(BERT, "", None),
            texts,
            BERT,
            modules=("spans",),
            requirements=("tokenizers",),
            write=wording.write,
        ),
        np.__version__,
        tmp_path,
    )
    assert "tokenizer.json" in part.files
    script = f"import pathlib\nFOLDER = pathlib.Path({str(tmp_path / 'text')!r})\n{BARE}"
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tokenizer(["a cat"])["input_ids"])


def test_written_tokenizer_forgets_length(tmp_path: Path) -> None:
    """What is written forgets the length that the tokenizer was used with."""
    tokenizer = word_piece()
    tokenizer(["a cat"], padding="max_length", truncation=True, max_length=5)
    step = make_step(tokenizer, tmp_path)
    (answer,) = step.answer([{"text": column(SENTENCES[0])}])
    assert not isinstance(answer, Refusal)
    assert answer["input_ids"].shape[1] == len(tokenizer(SENTENCES[0])["input_ids"])
