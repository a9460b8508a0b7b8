"""Which column holds what: by the spec, by usual names, and refused with what there is."""

from __future__ import annotations

import pytest

from plansmith.data.sample import Takes, choose_columns
from plansmith.errors import UsageError

TEXTS = Takes(("text", "text_pair"), ("input_ids", "attention_mask", "token_type_ids"), optional=("attention_mask",))
IMAGES = Takes(("image",), ("pixel_values",))
ARRAYS = Takes((), ("x", "y"))


@pytest.mark.parametrize(
    ("columns", "takes", "expected"),
    [
        (("idx", "sentence", "label"), TEXTS, {"text": "sentence", "label": "label"}),
        (("Sentence1", "sentence2", "score"), TEXTS, {"text": "Sentence1", "text_pair": "sentence2", "label": "score"}),
        (
            ("id", "question", "context", "answers"),
            TEXTS,
            {"text": "question", "text_pair": "context", "label": "answers"},
        ),
        (("tokens", "ner_tags"), TEXTS, {"text": "tokens", "label": "ner_tags"}),
        (("strange",), TEXTS, {"text": "strange"}),
        (("strange", "label"), TEXTS, {"text": "strange", "label": "label"}),
        (("img", "fine_label"), IMAGES, {"image": "img", "label": "fine_label"}),
        (("pixel_values", "label"), IMAGES, {"pixel_values": "pixel_values", "label": "label"}),
        (("x", "y", "z"), ARRAYS, {"x": "x", "y": "y"}),
        (
            ("input_ids", "token_type_ids", "text"),
            TEXTS,
            {"input_ids": "input_ids", "token_type_ids": "token_type_ids"},
        ),
    ],
)
def test_columns_found_by_usual_names(columns: tuple[str, ...], takes: Takes, expected: dict[str, str]) -> None:
    """Columns are found by their usual names."""
    assert choose_columns(columns, {}, takes, "a.csv") == expected


def test_spec_columns_come_first() -> None:
    """What the spec says goes before usual names."""
    columns = ("text", "title", "label", "stars")
    assert choose_columns(columns, {"text": "title", "label": "stars"}, TEXTS, "a.csv") == {
        "text": "title",
        "label": "stars",
    }
    assert choose_columns(columns, {"label": "stars"}, TEXTS, "a.csv") == {"text": "text", "label": "stars"}


@pytest.mark.parametrize(
    ("columns", "mapping", "takes", "says", "remedy"),
    [
        (("a", "b"), {}, TEXTS, r"known to hold text \(text, sentence, .*it has a, b", "columns: {text: a}"),
        (("a", "b"), {}, IMAGES, r"known to hold images \(image, img", "columns: {image: a}"),
        (("a", "b"), {}, ARRAYS, r"the model's input x and y: it has a, b", "columns: {x: a}"),
        (("x", "b"), {}, ARRAYS, "no column for the input y: it has x, b", "under `columns`"),
        (("a", "b"), {"text": "c"}, TEXTS, "a.csv has no column 'c' for text", "it has a, b"),
        (("a", "b"), {"image": "a"}, TEXTS, "the model takes no image", "text, text_pair, input_ids"),
        (("a", "b"), {"ids": "a"}, TEXTS, "the model has no input 'ids'", "write one of text"),
        (("a", "b"), {"text_pair": "a"}, TEXTS, "a text_pair needs a text", "say which"),
        (("a", "b"), {"text": "a", "input_ids": "b"}, TEXTS, "not both", "leave one out"),
    ],
)
def test_wrong_columns_refused(
    columns: tuple[str, ...], mapping: dict[str, str], takes: Takes, says: str, remedy: str
) -> None:
    """Wrong columns are refused with those there are."""
    with pytest.raises(UsageError, match=says) as caught:
        choose_columns(columns, mapping, takes, "a.csv")
    assert remedy in caught.value.remedy
