"""Every value arrives as it was sent: 64-bit integers, half precision and texts, in every encoding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from .asking import Arrays, Asker

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("serving")]

TEXTS = ["", "plain", "naïve — 日本語 🎈", "a\0b", "line\nbreak", "x" * 200_000]


def texts(values: list[Any]) -> np.ndarray[Any, Any]:
    return np.array([value if isinstance(value, bytes) else value.encode() for value in values], dtype=object)[None]


@pytest.mark.parametrize("spelled_out", [False, True])
def test_integers_keep_64_bits(asker: Asker, spelled_out: bool) -> None:
    """None of these is a floating-point number of 64 bits."""
    ids = np.array([[2**62 - 1, -(2**62) + 1, 2**53 + 1, -(2**53) - 1]])
    feed = {"a": np.zeros((1, 3), np.float32), "ids": ids}
    if spelled_out:
        answer = asker.ask_spelled_out("pair", feed, ["times"], version="1")
    else:
        answer = asker.ask("pair", feed, outputs=["times"], model_version="1")
    assert answer["times"].dtype == np.int64
    assert answer["times"].tolist() == [[2 * value for value in ids[0].tolist()]]


@pytest.mark.parametrize("spelled_out", [False, True])
def test_single_precision_keeps_every_bit(asker: Asker, spelled_out: bool) -> None:
    smallest, largest = np.finfo(np.float32).smallest_subnormal, np.finfo(np.float32).max
    a = np.array([[1 / 3, largest, -0.0], [smallest * 4, np.nextafter(np.float32(1), 2), 3e-20]], np.float32)
    feed: Arrays = {"a": a, "ids": np.zeros((2, 1), np.int64)}
    if spelled_out:
        answer = asker.ask_spelled_out("pair", feed, ["share"], version="1")
    else:
        answer = asker.ask("pair", feed, outputs=["share"], model_version="1")
    assert answer["share"].tobytes() == (a / 2).tobytes()


def test_non_numbers_travel_in_binary(asker: Asker) -> None:
    """Values that are no number travel in binary."""
    a = np.array([[np.nan, np.inf, -np.inf]], np.float32)
    answer = asker.ask("pair", {"a": a, "ids": np.zeros((1, 1), np.int64)}, model_version="1")
    np.testing.assert_array_equal(answer["share"], a)


def test_half_precision_keeps_every_bit(asker: Asker) -> None:
    x = np.array([[0.5, 1023.5, -65504.0, np.inf], [2**-14, 2**-24, -1.0, 60000.0]], np.float16)
    answer = asker.ask("half", {"x": x})["y"]
    assert answer.dtype == np.float16
    np.testing.assert_array_equal(answer, x + np.float16(1))


def test_half_precision_json_refused(http: Asker) -> None:
    """Half precision in JSON is refused in words."""
    feed = {"x": np.ones((1, 2), np.float16)}
    with pytest.raises(InferenceServerException, match="FP16"):
        http.ask_spelled_out("half", feed, ["y"], binary_answer=True)


@pytest.mark.parametrize("spelled_out", [False, True])
def test_texts_keep_every_character(asker: Asker, spelled_out: bool) -> None:
    values = texts(TEXTS)
    turned = values[:, ::-1]
    rows = np.concatenate([values, turned])
    expected = [[text[::-1] for text in row] for row in rows.tolist()]
    if not spelled_out:
        assert asker.ask("text", {"text": rows})["back"].tolist() == expected
        return
    if asker.protocol == "grpc":
        assert asker.ask_spelled_out("text", {"text": rows}, ["back"])["back"].tolist() == expected
        return
    # Turned around, UTF-8 is none any more, and JSON could not hold it.
    there_and_back = asker.ask_spelled_out("text", {"text": rows}, ["back"], binary_answer=True)["back"]
    assert there_and_back.tolist() == expected


def test_plain_texts_return_in_json(http: Asker) -> None:
    """Plain texts come back in JSON."""
    values = texts(["stressed", "", "a\0b\n"])
    assert http.ask_spelled_out("text", {"text": values}, ["back"])["back"].tolist() == [[b"desserts", b"", b"\nb\0a"]]


def test_binary_bytes_arrive_unchanged(asker: Asker) -> None:
    """Bytes that are no text arrive as they are."""
    values = texts([bytes(range(256)), b"\xff\xfe"])
    assert asker.ask("text", {"text": values})["back"].tolist() == [[bytes(range(255, -1, -1)), b"\xfe\xff"]]
