"""Many clients with requests of every kind at once: each gets the answer to its own question."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from plansmith.triton.server.server import TritonServer

from ...support.waiting import soon
from .asking import PROTOCOLS, Asker, metrics
from .models import LARGEST

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("serving")]

CLIENTS, REQUESTS = 16, 1000
MODELS = ("pair", "half", "text")

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Question:
    """A request, how it is sent, and the answer."""

    model: str
    version: str
    feed: Arrays
    expected: Arrays
    protocol: str
    spelled_out: bool
    options: Mapping[str, Any]

    @property
    def rows(self) -> int:
        return len(next(iter(self.feed.values())))


def draw(number: int) -> Question:
    """The question of this number; every choice is drawn, so that all kinds meet all others."""
    drawn = np.random.default_rng(number)
    model = MODELS[number % len(MODELS)]
    protocol = PROTOCOLS[drawn.integers(2)]
    version, feed, expected = DRAWERS[model](drawn)
    compressions = {"http": (None, "gzip", "deflate"), "grpc": (None, "gzip", "deflate")}[protocol]
    option = {"http": "request_compression_algorithm", "grpc": "compression_algorithm"}[protocol]
    options: dict[str, Any] = {option: compressions[drawn.integers(3)]}
    if protocol == "http":
        options["response_compression_algorithm"] = compressions[drawn.integers(3)]
    spelled_out = model != "half" and bool(drawn.integers(2))
    return Question(model, version, feed, expected, protocol, spelled_out, options)


def draw_pair(drawn: np.random.Generator) -> tuple[str, Arrays, Arrays]:
    rows, length = drawn.integers(1, LARGEST + 1), drawn.integers(1, 65)
    version = ("", "1", "2")[drawn.integers(3)]
    number = 2 if version == "1" else 3
    a = drawn.normal(size=(rows, 3)).astype(np.float32)
    ids = drawn.integers(-(2**60), 2**60, (rows, length))
    return version, {"a": a, "ids": ids}, {"share": a / np.float32(number), "times": ids * number}


def draw_half(drawn: np.random.Generator) -> tuple[str, Arrays, Arrays]:
    x = drawn.normal(size=(drawn.integers(1, LARGEST + 1), drawn.integers(1, 300))).astype(np.float16)
    return "", {"x": x}, {"y": x + np.float16(1)}


def draw_text(drawn: np.random.Generator) -> tuple[str, Arrays, Arrays]:
    shape = drawn.integers(1, LARGEST + 1), drawn.integers(1, 4)
    texts = ["".join(map(chr, drawn.integers(32, 127, drawn.integers(0, 40)))) for _ in range(shape[0] * shape[1])]
    text, back = (
        np.array([entry.encode() for entry in side], dtype=object).reshape(shape)
        for side in (texts, [word[::-1] for word in texts])
    )
    return "", {"text": text}, {"back": back}


DRAWERS: Mapping[str, Callable[[np.random.Generator], tuple[str, Arrays, Arrays]]] = {
    "pair": draw_pair,
    "half": draw_half,
    "text": draw_text,
}


def test_thousand_mixed_requests_answered_rightly(server: TritonServer) -> None:
    """A thousand mixed requests of sixteen clients are all answered rightly."""
    questions = [draw(number) for number in range(REQUESTS)]
    kinds = {(q.model, q.version, q.protocol, q.spelled_out) for q in questions}
    assert len(kinds) == 3 * 2 * 2 + 2 + 2 * 2
    before = {model: metrics(server, model) for model in MODELS}

    def serve(client: int) -> int:
        with ExitStack() as undo:
            askers = {protocol: undo.enter_context(Asker(server, protocol)) for protocol in PROTOCOLS}
            return sum(look(askers[q.protocol], q) for q in questions[client::CLIENTS])

    with ThreadPoolExecutor(CLIENTS) as clients:
        assert sum(clients.map(serve, range(CLIENTS))) == REQUESTS
    for model in MODELS:
        matches = [q for q in questions if q.model == model]
        expected: dict[str, float] = {
            "nv_inference_request_success": len(matches),
            "nv_inference_request_failure": 0,
            "nv_inference_count": sum(q.rows for q in matches),
            "nv_inference_pending_request_count": 0,
        }

        def grown(model: str = model, names: Iterable[str] = tuple(expected)) -> dict[str, float]:
            now = metrics(server, model)
            return {name: now[name] - before[model][name] for name in names}

        assert soon(grown, expected) == expected


def look(asker: Asker, question: Question) -> int:
    """Ask, and compare every value of the answer; 1."""
    names = tuple(question.expected)
    if question.spelled_out:
        answer = asker.ask_spelled_out(question.model, question.feed, names, version=question.version)
    else:
        answer = asker.ask(
            question.model, question.feed, outputs=names, model_version=question.version, **question.options
        )
    assert answer.keys() == question.expected.keys()
    for name, expected in question.expected.items():
        assert answer[name].dtype == expected.dtype
        np.testing.assert_array_equal(answer[name], expected)
    return 1
