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
from plansmith.pipelines.generation import plan_generation
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
    found = {}
    for name, source in sources.items():
        told: dict[str, Any] = {"trust_remote_code": False, "allow_pickle": False, "task": ""}
        draft = plan_generation(source, PipelineOptions(), **told, largest_batch=8)
        found[name] = draft.ask(asked(*TEXTS))["text"][:, 0].tolist()
    return found


def asked(*texts: str) -> dict[str, Any]:
    column = np.empty((len(texts), 1), object)
    column[:, 0] = [text.encode() for text in texts]
    return {"text": column}


def opened(server: TritonServer, model: str, protocol: Protocol = "grpc", **more: Any) -> Client:
    url = server.http_url if protocol == "http" else server.grpc_url
    return Client(url, model=model, protocol=protocol, **more)


def texts(answer: dict[str, Any]) -> list[bytes]:
    found: list[bytes] = answer["text"][:, 0].tolist()
    return found


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_texts_are_answered_as_generate_answers_them(
    protocol: Protocol, generating: TritonServer, owed: dict[str, list[bytes]]
) -> None:
    with opened(generating, "t5", protocol) as client:
        assert texts(client.infer(asked(*TEXTS))) == owed["t5"]


def test_requests_that_come_at_once_are_answered_as_alone_and_bad_ones_get_their_own_error(
    generating: TritonServer, owed: dict[str, list[bytes]]
) -> None:
    wrong = {"num_beams": 99}

    def ask(place: int) -> Any:
        with opened(generating, "t5", PROTOCOLS[place % 2]) as client:
            try:
                return texts(client.infer(asked(TEXTS[place]), parameters=wrong if place == 3 else {}))
            except ServedCheckError as refused:
                return refused.message

    with ThreadPoolExecutor(len(TEXTS)) as clients:
        answers = list(clients.map(ask, range(len(TEXTS))))
    assert "parameter num_beams is a whole number from 1 to 16, and not 99" in answers[3]
    assert [one for place, one in enumerate(answers) if place != 3] == [
        [text] for place, text in enumerate(owed["t5"]) if place != 3
    ]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_options_go_with_a_request_over_both_protocols(protocol: Protocol, generating: TritonServer) -> None:
    with opened(generating, "t5", protocol) as client:
        short = texts(client.infer(asked(TEXTS[0]), parameters={"max_new_tokens": 2}))
        long = texts(client.infer(asked(TEXTS[0])))
        assert len(short[0]) < len(long[0])
        assert long[0].startswith(short[0])
        drawn = {"do_sample": True, "temperature": 30.5, "top_p": 0.9, "top_k": 40, "seed": 3}
        assert texts(client.infer(asked(TEXTS[0]), parameters=drawn)) != long
        assert texts(client.infer(asked(TEXTS[0]), parameters=drawn)) == texts(
            client.infer(asked(TEXTS[0]), parameters=drawn)
        )
        with pytest.raises(ServedCheckError, match="there is no parameter 'colour'"):
            client.infer(asked(TEXTS[0]), parameters={"colour": "red"})
        with pytest.raises(ServedCheckError, match="this model answers once"):
            client.infer(asked(TEXTS[0]), parameters={"stream": True})


def test_a_decoupled_model_answers_once_where_nobody_asks_for_pieces(
    generating: TritonServer, owed: dict[str, list[bytes]]
) -> None:
    with opened(generating, "gpt2") as client:
        assert texts(client.infer(asked(*TEXTS))) == owed["gpt2"]
        assert [texts(one) for one in client.stream(asked(*TEXTS))] == [owed["gpt2"]]


def test_pieces_come_one_after_another_and_join_to_the_whole(
    generating: TritonServer, owed: dict[str, list[bytes]]
) -> None:
    counts = []
    with opened(generating, "gpt2") as client:
        for text, whole in zip(TEXTS, owed["gpt2"], strict=True):
            pieces = [texts(one)[0] for one in client.stream(asked(text), parameters={"stream": True})]
            assert b"".join(pieces) == whole
            assert all(piece.decode() for piece in pieces)  # each is text by itself
            counts.append(len(pieces))
    assert sum(count > 3 for count in counts) > len(TEXTS) / 2  # one that ends at once has none


def test_streams_that_run_at_once_do_not_mix(generating: TritonServer, owed: dict[str, list[bytes]]) -> None:
    def ask(text: str) -> bytes:
        with opened(generating, "gpt2") as client:
            return b"".join(texts(one)[0] for one in client.stream(asked(text), parameters={"stream": True}))

    with ThreadPoolExecutor(len(TEXTS)) as clients:
        assert list(clients.map(ask, TEXTS)) == owed["gpt2"]


def test_what_cannot_stream_is_refused_with_the_reason(generating: TritonServer) -> None:
    with opened(generating, "gpt2") as client:
        with pytest.raises(ServedCheckError, match="one text is streamed in a request, and not 2"):
            list(client.stream(asked("a", "b"), parameters={"stream": True}))
        with pytest.raises(ServedCheckError, match="nothing streams with num_beams 2"):
            list(client.stream(asked("a"), parameters={"stream": True, "num_beams": 2}))
        with pytest.raises(ServedCheckError, match=r"answered \d+ times, and one answer was asked for"):
            client.infer(asked(TEXTS[0]), parameters={"stream": True})
        with pytest.raises(UsageError, match="takes 8 samples in one"):
            list(client.stream(asked(*["a"] * 9)))
    with opened(generating, "gpt2", "http") as client, pytest.raises(UsageError, match="over gRPC alone"):
        client.infer(asked("a"))


def test_a_text_that_is_no_text_is_refused_alone(generating: TritonServer, owed: dict[str, list[bytes]]) -> None:
    bad = np.array([[b"\xff\xfe"]], object)
    with opened(generating, "t5") as client:
        with pytest.raises(ServedCheckError, match="a text is not UTF-8"):
            client.infer({"text": bad})
        assert texts(client.infer(asked(TEXTS[0]))) == owed["t5"][:1]


def test_who_stops_listening_ends_the_generation(generating: TritonServer) -> None:
    wishes = {"stream": True, "max_new_tokens": 500, "min_new_tokens": 500}
    with opened(generating, "gpt2") as client:
        started = time.monotonic()
        whole = [texts(one)[0] for one in client.stream(asked("a"), parameters=wishes)]
        whole_seconds = time.monotonic() - started
        stream = client.stream(asked("a"), parameters=wishes)
        assert texts(next(stream)) == whole[:1]
        stream.close()
        started = time.monotonic()
        client.infer(asked("b"), parameters={"max_new_tokens": 1})
        assert time.monotonic() - started < whole_seconds / 2
        assert [texts(one)[0] for one in client.stream(asked("a"), parameters=wishes)] == whole


def test_a_request_that_is_late_is_cancelled_and_the_next_one_does_not_wait_for_it(generating: TritonServer) -> None:
    slow = {"max_new_tokens": 700, "min_new_tokens": 700}
    started = time.monotonic()
    with opened(generating, "t5", timeout_seconds=120) as client:
        client.infer(asked("a"), parameters=slow)
    whole_seconds = time.monotonic() - started
    late = pytest.raises(EnvironmentFault, match=r"within 0\.3 s")
    with opened(generating, "t5", timeout_seconds=0.3) as client, late:
        client.infer(asked("a"), parameters=slow)
    started = time.monotonic()
    with opened(generating, "t5") as client:
        client.infer(asked("b"), parameters={"max_new_tokens": 1})
    assert time.monotonic() - started < whole_seconds / 2
