"""A running Triton serves models that generate: text in, text out, whole or in pieces, and no request harms another."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from plansmith.config.pipeline import PipelineOptions
from plansmith.errors import EnvironmentFault, ServedCheckError, UsageError
from plansmith.pipelines.in_process import plan_generation
from plansmith.triton.client import Client, Protocol
from plansmith.triton.server.installation import require_python
from plansmith.triton.server.server import TritonServer

from ...support.generators import write_gpt2, write_t5
from ...support.models.python_backend import lay_out, put_into
from ...support.real_sentences import real_sentences

if TYPE_CHECKING:
    from plansmith.triton.server.installation import Installation

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("python-backend")]

SHAPES = {
    "t5": {"input_ids": {"min": [1, 1], "opt": [2, 8], "max": [8, 24]}, "decoder_input_ids": {}},
    "gpt2": {"input_ids": {"min": [1, 1], "opt": [2, 8], "max": [8, 24]}},
}
PROTOCOLS: tuple[Protocol, ...] = ("http", "grpc")
TEXTS = [*real_sentences()[:6], "", "I 💚 quiet mornings. 🌄🐦"]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sources")
    return {"t5": write_t5(folder / "t5"), "gpt2": write_gpt2(folder / "gpt2", n_positions=512)}


@pytest.fixture(scope="module")
def generating(
    tmp_path_factory: pytest.TempPathFactory, installation: Installation, sources: dict[str, Path]
) -> Iterator[TritonServer]:
    """`t5` answers once; `gpt2` may answer in pieces."""
    folder = tmp_path_factory.mktemp("generating")
    try:
        require_python(installation)
    except EnvironmentFault as fault:
        pytest.skip(str(fault))
    for name, source in sources.items():
        shapes = {key: value for key, value in SHAPES[name].items() if value}
        laid = lay_out(source, folder / name, shapes=shapes, generation=PipelineOptions(stream=name == "gpt2"))
        put_into(folder / "repository", name, laid, delay_microseconds=50_000)
    with TritonServer(folder / "repository", installation, folder / "log", deadline_seconds=240) as server:
        yield server


@pytest.fixture(scope="module")
def owed(sources: dict[str, Path]) -> dict[str, list[bytes]]:
    """What `generate` of transformers gives to each text alone."""
    answers = {}
    for name, source in sources.items():
        options: dict[str, Any] = {"trust_remote_code": False, "allow_pickle": False, "task": ""}
        draft = plan_generation(source, PipelineOptions(), **options, largest_batch=8)
        answers[name] = draft.ask(text_request(*TEXTS))["text"][:, 0].tolist()
    return answers


def text_request(*texts: str) -> dict[str, Any]:
    column = np.empty((len(texts), 1), object)
    column[:, 0] = [text.encode() for text in texts]
    return {"text": column}


def opened(server: TritonServer, model: str, protocol: Protocol = "grpc", **more: Any) -> Client:
    url = server.http_url if protocol == "http" else server.grpc_url
    return Client(url, model=model, protocol=protocol, **more)


def texts(answer: dict[str, Any]) -> list[bytes]:
    result: list[bytes] = answer["text"][:, 0].tolist()
    return result


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_texts_match_generate(protocol: Protocol, generating: TritonServer, owed: dict[str, list[bytes]]) -> None:
    """Texts are answered as generate answers them."""
    with opened(generating, "t5", protocol) as client:
        assert texts(client.infer(text_request(*TEXTS))) == owed["t5"]


def test_simultaneous_requests_fail_separately(generating: TritonServer, owed: dict[str, list[bytes]]) -> None:
    """Requests that come at once are answered as if alone, and bad ones get their own error."""
    wrong = {"num_beams": 99}

    def ask(place: int) -> Any:
        with opened(generating, "t5", PROTOCOLS[place % 2]) as client:
            try:
                return texts(client.infer(text_request(TEXTS[place]), parameters=wrong if place == 3 else {}))
            except ServedCheckError as refused:
                return refused.message

    with ThreadPoolExecutor(len(TEXTS)) as clients:
        answers = list(clients.map(ask, range(len(TEXTS))))
    assert "parameter num_beams is a whole number from 1 to 16, and not 99" in answers[3]
    assert [answer for place, answer in enumerate(answers) if place != 3] == [
        [text] for place, text in enumerate(owed["t5"]) if place != 3
    ]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_options_go_over_both_protocols(protocol: Protocol, generating: TritonServer) -> None:
    """Options go with a request over both protocols."""
    with opened(generating, "t5", protocol) as client:
        short = texts(client.infer(text_request(TEXTS[0]), parameters={"max_new_tokens": 2}))
        long = texts(client.infer(text_request(TEXTS[0])))
        assert len(short[0]) < len(long[0])
        assert long[0].startswith(short[0])
        drawn = {"do_sample": True, "temperature": 30.5, "top_p": 0.9, "top_k": 40, "seed": 3}
        assert texts(client.infer(text_request(TEXTS[0]), parameters=drawn)) != long
        assert texts(client.infer(text_request(TEXTS[0]), parameters=drawn)) == texts(
            client.infer(text_request(TEXTS[0]), parameters=drawn)
        )
        with pytest.raises(ServedCheckError, match="there is no parameter 'colour'"):
            client.infer(text_request(TEXTS[0]), parameters={"colour": "red"})
        with pytest.raises(ServedCheckError, match="this model answers once"):
            client.infer(text_request(TEXTS[0]), parameters={"stream": True})


def test_decoupled_model_answers_once(generating: TritonServer, owed: dict[str, list[bytes]]) -> None:
    """A decoupled model answers once where nobody asks for pieces."""
    with opened(generating, "gpt2") as client:
        assert texts(client.infer(text_request(*TEXTS))) == owed["gpt2"]
        assert [texts(answer) for answer in client.stream(text_request(*TEXTS))] == [owed["gpt2"]]


def test_pieces_join_to_whole(generating: TritonServer, owed: dict[str, list[bytes]]) -> None:
    """Pieces come one after another and join to the whole."""
    counts = []
    with opened(generating, "gpt2") as client:
        for text, whole in zip(TEXTS, owed["gpt2"], strict=True):
            pieces = [texts(answer)[0] for answer in client.stream(text_request(text), parameters={"stream": True})]
            assert b"".join(pieces) == whole
            assert all(piece.decode() for piece in pieces)  # each is text by itself
            counts.append(len(pieces))
    assert sum(count > 3 for count in counts) > len(TEXTS) / 2  # one that ends at once has none


def test_simultaneous_streams_do_not_mix(generating: TritonServer, owed: dict[str, list[bytes]]) -> None:
    """Streams that run at once do not mix."""

    def ask(text: str) -> bytes:
        with opened(generating, "gpt2") as client:
            return b"".join(
                texts(answer)[0] for answer in client.stream(text_request(text), parameters={"stream": True})
            )

    with ThreadPoolExecutor(len(TEXTS)) as clients:
        assert list(clients.map(ask, TEXTS)) == owed["gpt2"]


def test_unstreamable_model_refused_with_reason(generating: TritonServer) -> None:
    """What cannot stream is refused with the reason."""
    with opened(generating, "gpt2") as client:
        with pytest.raises(ServedCheckError, match="one text is streamed in a request, and not 2"):
            list(client.stream(text_request("a", "b"), parameters={"stream": True}))
        with pytest.raises(ServedCheckError, match="nothing streams with num_beams 2"):
            list(client.stream(text_request("a"), parameters={"stream": True, "num_beams": 2}))
        with pytest.raises(ServedCheckError, match=r"answered \d+ times, and one answer was asked for"):
            client.infer(text_request(TEXTS[0]), parameters={"stream": True})
        with pytest.raises(UsageError, match="takes 8 samples in one"):
            list(client.stream(text_request(*["a"] * 9)))
    with opened(generating, "gpt2", "http") as client, pytest.raises(UsageError, match="over gRPC alone"):
        client.infer(text_request("a"))


def test_invalid_text_refused_alone(generating: TritonServer, owed: dict[str, list[bytes]]) -> None:
    """A text that is no text is refused alone."""
    bad = np.array([[b"\xff\xfe"]], object)
    with opened(generating, "t5") as client:
        with pytest.raises(ServedCheckError, match="a text is not UTF-8"):
            client.infer({"text": bad})
        assert texts(client.infer(text_request(TEXTS[0]))) == owed["t5"][:1]


def test_departed_listener_ends_generation(generating: TritonServer) -> None:
    """A client that stops listening ends the generation."""
    wishes = {"stream": True, "max_new_tokens": 500, "min_new_tokens": 500}
    with opened(generating, "gpt2") as client:
        started = time.monotonic()
        whole = [texts(answer)[0] for answer in client.stream(text_request("a"), parameters=wishes)]
        whole_seconds = time.monotonic() - started
        stream = client.stream(text_request("a"), parameters=wishes)
        assert texts(next(stream)) == whole[:1]
        stream.close()
        started = time.monotonic()
        client.infer(text_request("b"), parameters={"max_new_tokens": 1})
        assert time.monotonic() - started < whole_seconds / 2
        assert [texts(answer)[0] for answer in client.stream(text_request("a"), parameters=wishes)] == whole


def test_late_request_cancelled(generating: TritonServer) -> None:
    """A request that is late is cancelled and the next one does not wait for it."""
    slow = {"max_new_tokens": 700, "min_new_tokens": 700}
    started = time.monotonic()
    with opened(generating, "t5", timeout_seconds=120) as client:
        client.infer(text_request("a"), parameters=slow)
    whole_seconds = time.monotonic() - started
    late = pytest.raises(EnvironmentFault, match=r"within 0\.3 s")
    with opened(generating, "t5", timeout_seconds=0.3) as client, late:
        client.infer(text_request("a"), parameters=slow)
    started = time.monotonic()
    with opened(generating, "t5") as client:
        client.infer(text_request("b"), parameters={"max_new_tokens": 1})
    assert time.monotonic() - started < whole_seconds / 2
