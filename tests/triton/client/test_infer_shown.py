"""Answers as a person sees them: of any width, in any script, and never as commands to a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len

from plansmith.cli.infer.rendering import Sheet, safe, shortened, shown_outputs
from plansmith.triton.server.server import TritonServer

from ...support.cli.screen import in_terminal

pytestmark = pytest.mark.xdist_group("client")

LONG = "the quick brown fox jumps over the lazy dog, 東京の空は青い, " * 4


def shown(sheet: Sheet, **outputs: Any) -> list[str]:
    """The lines of outputs; strings are given as text."""
    arrays = {name: np.array(values) for name, values in outputs.items()}
    for name, array in arrays.items():
        if array.dtype.kind == "U":
            flat = np.array([item.encode("utf-8", "surrogateescape") for item in array.flat], dtype=object)
            arrays[name] = flat.reshape(array.shape)
    dtypes = {name: "string" if a.dtype == object else str(a.dtype) for name, a in arrays.items()}
    return list(shown_outputs(arrays, dtypes, sheet, values=True))


@pytest.mark.parametrize("width", [60, 80, 140])
def test_answer_lines_fit_terminal(width: int) -> None:
    """No line of an answer is wider than the terminal."""
    rows = [[LONG], ["short"], ["東京" * 60], ["a\nb"]]
    scores, labels = [[0.9, 0.1]] * 4, [[LONG, "b"]] * 4
    sheet = Sheet(width, names=["pictures/of/cats/" * 5 + "cat.jpg", LONG, "", "d"])
    lines = shown(sheet, text=rows, label=labels, score=scores, vector=np.ones((4, 384)))
    assert [line for line in lines if cell_len(line) > width] == []
    content = "".join("".join(line[width // 3 :] for line in lines).split())
    assert content.count("lazydog,") >= 4 * 4
    assert any(line.lstrip().startswith("…") and "cat.jpg" in line for line in lines)


def test_piped_rows_are_whole_lines() -> None:
    """Where there is no terminal, each row is a line and nothing is cut."""
    lines = shown(Sheet(), text=[[LONG], ["東京" * 60]])
    assert lines == ["  text: string [2, 1]", f"    1  {LONG}".rstrip(), f"    2  {'東京' * 60}"]


def test_labels_wrap_under_each_other() -> None:
    """Labels of several samples go under each other where a line is too short."""
    labels, scores = [["tabby, tabby cat", "b"], ["c", "d"]], [[0.75, 0.25], [12.5, -1200.5]]
    assert shown(Sheet(80), label=labels, score=scores)[1:] == [
        "    1  0.7500 tabby, tabby cat  0.2500 b",
        "    2  12.5000 c                -1200 d",
    ]
    assert shown(Sheet(38), label=labels, score=scores)[1:] == [
        "    1   0.7500  tabby, tabby cat",
        "        0.2500  b",
        "    2  12.5000  c",
        "         -1200  d",
    ]


def test_classifiers_keep_own_labels() -> None:
    """Several classifiers have their own labels and scores."""
    answers = {"cats_labels": [["a"]], "cats_scores": [[0.5]], "dogs_label": [["b"]], "dogs_score": [[0.25]]}
    assert shown(Sheet(80), **answers) == [
        "  cats_labels: string [1, 1] with cats_scores: float64 [1, 1]",
        "    0.5000 a",
        "  dogs_label: string [1, 1] with dogs_score: float64 [1, 1]",
        "    0.2500 b",
    ]
    lonely = shown(Sheet(80), label=[["a", "b"]], score=[[0.5]])
    assert lonely == ["  label: string [1, 2]", "    a", "    b", "  score: float64 [1, 1]", "    [[0.5]]"]


def test_answer_never_controls_terminal() -> None:
    """Nothing in an answer moves colours or turns the terminal."""
    lines = shown(Sheet(80), text=[["\x1b[2Jred\x07 \u202eabc\r\x9b1m"]], label=[["\x1b]0;title\x07"]], score=[[1.0]])
    assert not [c for line in lines for c in line if c in "\x1b\x07\u202e\r\x9b"]
    assert r"    \x1b[2Jred\x07 \u202eabc\r\x9b1m" in lines
    phrase = "👩‍👩‍👧 żółw e\u0301 שלום"
    assert safe(phrase) == phrase


def test_json_records_make_table() -> None:
    """JSON is a table where it is a list of records, and laid out otherwise."""
    entities = '[{"word": "東京", "score": 0.98765, "start": 3}, {"word": "Ada", "start": 11, "sure": true}]'
    assert shown(Sheet(80), entities=[[entities]])[1:] == [
        "    word  score   start  sure",
        "    東京  0.9877  3",
        "    Ada           11     true",
    ]
    nested = shown(Sheet(80), answer=[['{"answer": {"text": "Ada", "start": 1, "end": 4}, "sure": [1, 2]}']])
    assert nested[1:4] == ["    {", '      "answer": {', '        "text": "Ada",']
    for text in ("[]", "{}", '{"a": 1}', "[1, 2", "[1, 2]", "[" * 5000, '"[1]"', "12"):
        assert shown(Sheet(), text=[[text]])[1:] == [f"    {text}"]


def test_embeddings_show_norm_and_values() -> None:
    """Embeddings show their norm and as many values as there is room for."""
    rows = np.full((30, 384), 1 / np.sqrt(384), np.float32)
    narrow, wide = (shown(Sheet(width), embedding=rows) for width in (80, 140))
    assert len(narrow) == len(wide) == 12
    assert narrow[1].startswith("     1  norm 1.0000   0.0510   0.0510")
    assert narrow[-1] == "    … and 20 more, which --json or --output FILE gives"
    assert wide[1].count("0.0510") > narrow[1].count("0.0510") >= 5
    assert shown(Sheet(80, batches=False), embedding=rows[0])[1].startswith("    norm 1.0000   0.0510")
    assert shown(Sheet(80), logits=rows[:1, :3])[1:] == [
        "    [[0.05103104 0.05103104 0.05103104]]".replace("3104", "31")
    ]
    huge = shown(Sheet(80), embedding=np.array([[np.nan, np.inf, -1e9, 1e-9, 5, 6, 7]]))
    assert huge[1].startswith("    norm nan      nan      inf   -1e+09   0.0000   5.0000")


def test_binary_bytes_counted_and_cut() -> None:
    """Bytes that are no text are counted and cut."""
    array = np.array([[b"\xff\xd8" * 5000]], dtype=object)
    (_, line) = shown_outputs({"image": array}, {"image": "string"}, Sheet(200), values=True)
    assert line.startswith(r"    10000 bytes that are no text: \xff\xd8\xff")
    assert line.endswith("…")


def test_names_cut_where_least_telling() -> None:
    """Names are cut where they tell least."""
    assert shortened("a/long/path/to/a/cat.jpg", 12) == "…o/a/cat.jpg"
    assert shortened("a text of many words", 12) == "a text of m…"
    assert shortened("two\nlines", 12) == "two lines"
    assert shortened("東京" * 10, 7) == "東京東…"


@pytest.mark.slow
@pytest.mark.parametrize("columns", [60, 80, 140])
def test_terminal_lines_fit(server: TritonServer, tmp_path: Path, columns: int) -> None:
    """A terminal gets lines that fit it."""
    (tmp_path / "lines.txt").write_text(f"{LONG}\nshort\n")
    command = ("infer", "shout", "--lines", "lines.txt", "--url", server.http_url)
    screen = in_terminal(tmp_path, *command, columns=columns)
    assert screen.status == 0
    assert max(cell_len(line) for line in screen.written.splitlines()) <= columns
    assert any(line.startswith("    short ") and line.endswith("  SHORT") for line in screen.written.splitlines())
