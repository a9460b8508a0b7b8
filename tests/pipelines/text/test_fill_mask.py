"""Masks of texts are filled as transformers' fill-mask pipeline fills them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plansmith.errors import SourceError
from plansmith.pipelines.agreement import RawLimits, compare
from plansmith.pipelines.served.requests import Refusal
from plansmith.records.model import Precision
from plansmith.validation.comparison import LIMITS

from ...support.pipelines.columns import column
from ...support.pipelines.texts import SENTENCES, Served, bert, byte_level, close, roberta, serve, word_piece


def masked(mask: str) -> list[str]:
    """Real sentences, in each of which another word is a mask."""
    texts = []
    for number, sentence in enumerate(SENTENCES[:60]):
        tokens = sentence.split(" ")
        tokens[number % len(tokens)] = mask
        texts.append(" ".join(tokens))
    return texts


def require_same(served: Served, folder: Path, texts: list[str]) -> None:
    """See that texts get the tokens, scores and sequences of the library's pipeline, from end to end."""
    import transformers

    library: Any = transformers.pipeline("fill-mask", model=str(folder), device="cpu")
    answer = served.answer({"text": column(*texts)})
    for row, text in enumerate(texts):
        owed = library(text, top_k=5, tokenizer_kwargs={"truncation": True})
        assert [token.decode() for token in answer["token"][row]] == [entry["token_str"] for entry in owed]
        assert [text.decode() for text in answer["sequence"][row]] == [entry["sequence"] for entry in owed]
        close(answer["score"][row], [entry["score"] for entry in owed], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("spaces", [True, False])
def test_word_pieces_fill_masks(spaces: bool, tmp_path: Path) -> None:
    """The tokens, scores and texts are those of its pipeline, spaces before punctuation included."""
    tokenizer = word_piece(model_max_length=128, clean_up_tokenization_spaces=not spaces)
    folder = bert(tmp_path / "model", "ForMaskedLM", tokenizer)
    served = serve(folder, tmp_path / "out")

    assert served.draft.output == "fill-mask"
    assert [(t.name, t.dtype, t.dims) for t in served.draft.outputs] == [
        ("token", "string", ("batch", 5)),
        ("score", "float32", ("batch", 5)),
        ("sequence", "string", ("batch", 5)),
    ]
    require_same(served, folder, [*masked("[MASK]"), "[MASK]", "it 's [MASK] , is n't it ?"])


@pytest.mark.parametrize("side", ["right", "left"])
def test_byte_tokens_fill_masks(side: str, tmp_path: Path) -> None:
    """Wherever rows are filled up, and however few of the bytes make a letter."""
    folder = roberta(tmp_path / "model", "ForMaskedLM", byte_level(padding_side=side))
    require_same(serve(folder, tmp_path / "out"), folder, masked("<mask>"))


@pytest.mark.slow
@pytest.mark.parametrize("cut", ["right", "left"])
def test_every_question_holds_mask(cut: str, tmp_path: Path) -> None:
    """Long texts included, whichever of their ends is cut off."""
    tokenizer = word_piece(model_max_length=24, truncation_side=cut)
    served = serve(bert(tmp_path / "model", "ForMaskedLM", tokenizer), tmp_path / "out")
    limits = RawLimits({}, LIMITS[Precision.FP32].tolerance, 1e-6, exact=True)

    for name, question in served.draft.questions.items():
        assert compare(name, served.draft.ask(question), served.answer(question), limits).same


def test_maskless_text_refused_alone(tmp_path: Path) -> None:
    """No mask, several masks and one that is cut off are named with their row, and other requests are answered."""
    served = serve(bert(tmp_path / "model", "ForMaskedLM", word_piece(model_max_length=16)), tmp_path / "out")
    bad = ["a cat", "[MASK] and [MASK]", f"{SENTENCES[0]} {SENTENCES[1]} [MASK]"]
    good = {"text": column("a [MASK] here")}

    *refused, answer = served.answers([*({"text": column("a [MASK]", text)} for text in bad), good])

    for refusal, count in zip(refused, (0, 2, 0), strict=True):
        assert isinstance(refusal, Refusal)
        assert refusal.message.startswith(f"text, row 1: {count} times [MASK] among the tokens")
    assert not isinstance(answer, Refusal)
    assert answer["token"].tolist() == served.answer(good)["token"].tolist()


def test_maskless_tokenizer_fills_nothing(tmp_path: Path) -> None:
    """It is refused before anything is written."""
    folder = roberta(tmp_path / "model", "ForMaskedLM", byte_level(mask_token=None))
    with pytest.raises(SourceError, match="has no mask token"):
        serve(folder, tmp_path / "out")


def filled(*rows: tuple[bytes, float, bytes]) -> dict[str, Any]:
    """An answer to one text."""
    tokens, scores, sequences = zip(*rows, strict=True)
    return {
        "token": np.array([tokens], object),
        "score": np.array([scores], np.float32),
        "sequence": np.array([sequences], object),
    }


def test_near_equal_tokens_swap_with_texts() -> None:
    """Each keeps its own text, whatever the order; several tokens of bytes that are the same text are told apart."""
    limits = RawLimits({}, LIMITS[Precision.FP32].tolerance, 0.01, exact=True)
    owed = filled((b"cat", 0.501, b"a cat"), (b"dog", 0.499, b"a dog"))

    assert compare("one", owed, filled((b"dog", 0.5, b"a dog"), (b"cat", 0.5, b"a cat")), limits).same
    comparison = compare("one", owed, filled((b"dog", 0.5, b"a cat"), (b"cat", 0.5, b"a dog")), limits)
    assert len(comparison.failures) == 2
    assert compare("one", owed, filled((b"cat", 0.7, b"a cat"), (b"dog", 0.3, b"a dog")), limits).failures
    bytes_alike = filled((b"?", 0.6, b"?a"), (b"?", 0.2, b"?b"))
    assert compare("one", bytes_alike, filled((b"?", 0.6, b"?a"), (b"x", 0.2, b"xb")), limits).same
    assert compare("one", bytes_alike, filled((b"?", 0.6, b"?a"), (b"?", 0.4, b"?b")), limits).failures
