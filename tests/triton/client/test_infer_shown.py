"""Answers as a person sees them: shortened, in any script, and never as commands to a terminal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plansmith.cli.infer.answers import format_outputs
from plansmith.records.model import Tensor
from plansmith.triton.client import Signature


def shown(*, max_batch_size: int = 8, **outputs: Any) -> list[str]:
    """The lines of outputs; strings are given as text or bytes."""
    arrays = {name: np.array(values) for name, values in outputs.items()}
    for name, array in arrays.items():
        if array.dtype.kind in "US":
            strings = [item if isinstance(item, bytes) else item.encode() for item in array.flat]
            arrays[name] = np.array(strings, dtype=object).reshape(array.shape)
    tensors = tuple(
        Tensor(name=name, dtype="string" if array.dtype == object else str(array.dtype), dims=("batch",))
        for name, array in arrays.items()
    )
    return format_outputs(arrays, Signature(inputs=(), outputs=tensors, max_batch_size=max_batch_size)).splitlines()


def test_labels_stand_beside_scores() -> None:
    """A single sample has a line for each label, several have one each; each classifier has its own scores."""
    labels, scores = [["tabby, tabby cat", "b"], ["c", "d"]], [[0.75, 0.25], [12.5, -1200.5]]
    assert shown(label=labels[:1], score=scores[:1]) == [
        "  label: string [1, 2] with score: float64 [1, 2]",
        "    0.7500 tabby, tabby cat",
        "    0.2500 b",
    ]
    several = shown(cats_labels=labels, cats_scores=scores, label=[["a"]], score=[[0.5]])
    assert several == [
        "  cats_labels: string [2, 2] with cats_scores: float64 [2, 2]",
        "    0.7500 tabby, tabby cat  0.2500 b",
        "    12.5000 c  -1200.5000 d",
        "  label: string [1, 1] with score: float64 [1, 1]",
        "    0.5000 a",
    ]
    unpaired = shown(label=[["a", "b"]], score=[[0.5]])
    assert unpaired == ["  label: string [1, 2]", "    a", "    b", "  score: float64 [1, 1]", "    [[0.5]]"]


def test_answer_never_controls_terminal() -> None:
    """Control and direction characters of texts, labels and JSON are escaped, and other characters stay."""
    texts = [["\x1b[2Jred\x07 \u202eabc\r\x9b1m\nnext"], ['["\\u001b"]']]
    lines = shown(text=texts, label=[["\x1b]0;title\x07"]], score=[[1.0]])
    assert not [c for line in lines for c in line if c in "\x1b\x07\u202e\r\x9b"]
    assert lines[1:3] == [r"    \x1b[2Jred\x07 \u202eabc\r\x9b1m", "    next"]
    assert shown(text=[["👩‍👩‍👧 żółw e\u0301 שלום"]])[1:] == ["    👩‍👩‍👧 żółw e\u0301 שלום"]


def test_json_is_indented() -> None:
    """A string that holds a JSON array or object is indented; what only begins like one stays."""
    assert shown(entities=[['[{"word": "東京", "score": 0.5}]']])[1:] == [
        *("    [", "      {", '        "word": "東京",', '        "score": 0.5', "      }", "    ]")
    ]
    for text in ("[]", "{}", "[1, 2", "[" * 5000, '"[1]"', "12"):
        assert shown(text=[[text]])[1:] == [f"    {text}"]
    assert shown(text=[[""]])[1:] == ['    ""']


def test_embeddings_show_norm_and_values() -> None:
    """An embedding is one line with its norm; of many the first are shown, and short or deep arrays as NumPy does."""
    rows = np.full((30, 384), 1 / np.sqrt(384), np.float32)
    lines = shown(embedding=rows)
    assert lines[0] == "  embedding: float32 [30, 384]"
    assert lines[1:11] == ["    norm 1.0000 [0.051 0.051 0.051 ... 0.051 0.051 0.051]"] * 10
    assert lines[11:] == ["    … and 20 more, which --json or --output FILE gives"]
    assert shown(max_batch_size=0, embedding=rows[0])[1:] == lines[1:2]
    assert shown(logits=rows[:1, :3])[1:] == ["    [[0.051031 0.051031 0.051031]]"]
    assert shown(states=rows[:1].reshape(1, 4, 96))[1].startswith("    [[[0.051031 0.051031 0.051031 ... ")
    assert shown(embedding=[[np.nan, np.inf, 1, 2, 3, 4, 5]])[1].startswith("    norm nan [nan inf")


@pytest.mark.parametrize(("size", "end"), [(2, r"\xff\xd8"), (10000, "…")])
def test_binary_bytes_counted_and_cut(size: int, end: str) -> None:
    """Bytes that are no text are counted, and cut where they are many."""
    array = np.array([[b"\xff\xd8" * (size // 2)]], dtype=object)
    (_, line) = shown(image=array)
    assert line.startswith(rf"    {size} bytes that are no text: \xff\xd8")
    assert line.endswith(end)
    assert len(line) < 150
