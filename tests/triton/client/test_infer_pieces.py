"""`plansmith infer --stream` prints what a model that answers in pieces gives, as it comes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from plansmith.triton.server.server import TritonServer

from ...support.cli.command import check_refusal

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("client")]

Stream = Callable[..., Any]


@pytest.fixture
def stream(infer: Callable[..., Any], server: TritonServer) -> Stream:
    """`plansmith infer pieces`, which gives a word at a time, over gRPC."""
    return lambda *words: infer("pieces", *words, "--url", f"grpc://{server.grpc_url}")


def test_the_pieces_of_a_text_are_printed_as_one_text(stream: Stream) -> None:
    answer = stream("--text", "żółw 🐢 goes\non and \x1b[2J", "--stream", "--only", "piece")
    assert answer.status == 0, answer
    assert answer.stdout == "żółw 🐢 goes\non and \\x1b[2J\n"


def test_answers_of_several_outputs_are_shown_one_by_one_and_as_json_a_line_each(stream: Stream) -> None:
    answer = stream("--text", "two words", "--stream")
    assert answer.stdout.splitlines() == [
        *("  piece: string [1, 1]", "    two", "  size: int64 [1, 1]", "    [[4]]"),
        *("  piece: string [1, 1]", "    words", "  size: int64 [1, 1]", "    [[5]]"),
    ]
    lines = stream("--text", "two words", "--stream", "--json").stdout.splitlines()
    assert [json.loads(line)["outputs"]["piece"]["data"] for line in lines] == [[["two "]], [["words"]]]


def test_without_it_or_where_the_parameter_says_so_the_answer_comes_whole(stream: Stream) -> None:
    whole = stream("--text", "two words", "--only", "piece")
    assert whole.stdout.splitlines()[1:] == ["  piece: string [1, 1]", "    two words"]
    told = stream("--text", "two words", "--stream", "--parameter", "stream=false", "--json")
    assert [json.loads(line)["outputs"]["piece"]["data"] for line in told.stdout.splitlines()] == [[["two words"]]]


def test_a_refusal_in_the_middle_comes_after_what_was_said_before(stream: Stream) -> None:
    refused = stream("--text", "so far refuse", "--stream", "--only", "piece")
    assert refused.status == 8, refused
    assert refused.stdout.startswith("so far ")
    assert "refused a request to pieces: no more of it" in refused.message
    assert "Next: correct what it names" in refused.message


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--url", "http://127.0.0.1:8000"), ("over gRPC alone", "--protocol grpc")),
        (("--protocol", "http"), ("over gRPC alone",)),
        (("--output", "o.npz"), ("--output is for whole answers",)),
        (("--repeat", "3"), ("--repeat is for whole answers",)),
    ],
)
def test_what_cannot_come_in_pieces_is_refused(infer: Any, words: tuple[str, ...], says: tuple[str, ...]) -> None:
    check_refusal(infer("pieces", "--text", "a", "--stream", *words, "--json"), 2, says)
