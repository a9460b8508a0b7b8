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
    return lambda *arguments: infer("pieces", *arguments, "--url", f"grpc://{server.grpc_url}")


def test_text_pieces_printed_as_one(stream: Stream) -> None:
    """The pieces of a text are printed as one text."""
    answer = stream("--text", "żółw 🐢 goes\non and \x1b[2J", "--stream", "--only", "piece")
    assert answer.status == 0, answer
    assert answer.stdout == "żółw 🐢 goes\non and \\x1b[2J\n"


def test_pieces_of_outputs_shown_separately(stream: Stream) -> None:
    """Answers of several outputs are shown one by one, and as JSON a line each."""
    answer = stream("--text", "two words", "--stream")
    assert answer.stdout.splitlines() == [
        *("  piece: string [1, 1]", "    two ", "  size: int64 [1, 1]", "    [[4]]"),
        *("  piece: string [1, 1]", "    words", "  size: int64 [1, 1]", "    [[5]]"),
    ]
    lines = stream("--text", "two words", "--stream", "--json").stdout.splitlines()
    assert [json.loads(line)["outputs"]["piece"]["data"] for line in lines] == [[["two "]], [["words"]]]


def test_answer_whole_without_pieces_option(stream: Stream) -> None:
    """Without the option, or where the parameter says so, the answer comes whole."""
    whole = stream("--text", "two words", "--only", "piece")
    assert whole.stdout.splitlines()[1:] == ["  piece: string [1, 1]", "    two words"]
    answer = stream("--text", "two words", "--stream", "--parameter", "stream=false", "--json")
    assert [json.loads(line)["outputs"]["piece"]["data"] for line in answer.stdout.splitlines()] == [[["two words"]]]


def test_late_refusal_follows_earlier_text(stream: Stream) -> None:
    """A refusal in the middle comes after what was said before."""
    refused = stream("--text", "so far refuse", "--stream", "--only", "piece")
    assert refused.status == 8, refused
    assert refused.stdout.startswith("so far ")
    assert "refused a request to pieces: no more of it" in refused.message
    assert "Next: correct what it names" in refused.message


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--url", "http://127.0.0.1:8000"), ("over gRPC", "--protocol grpc")),
        (("--protocol", "http"), ("over gRPC",)),
        (("--output", "o.npz"), ("leave --output out",)),
    ],
)
def test_unstreamable_request_refused(infer: Any, words: tuple[str, ...], says: tuple[str, ...]) -> None:
    """What cannot come in pieces is refused."""
    check_refusal(infer("pieces", "--text", "a", "--stream", *words, "--json"), 2, says)
