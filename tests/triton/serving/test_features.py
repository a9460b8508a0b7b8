"""What Triton does beside answering: batches, a response cache, warm-up, statistics, metrics, shared memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException, shared_memory

from ...support.waiting import soon
from ..shared_regions import let_go
from .asking import PROTOCOLS, Asker, metrics
from .models import TABLE, TOGETHER, WARM_COUNT, WARM_ROWS, WARM_SAMPLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plansmith.triton.server.server import TritonServer

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("serving")]


def pair(seed: int, rows: int = 1, length: int = 4) -> dict[str, Any]:
    drawn = np.random.default_rng(seed)
    return {
        "a": drawn.normal(size=(rows, 3)).astype(np.float32),
        "ids": drawn.integers(-(10**6), 10**6, (rows, length)),
    }


def test_clients_share_batch_keep_rows(server: TritonServer, http: Asker) -> None:
    """Requests of several clients are run as one batch, and each gets its own rows."""
    rows_of = (1, 2, 1, 1, 1)
    assert sum(rows_of) == TOGETHER

    def ask(number: int) -> None:
        with Asker(server, PROTOCOLS[number % 2]) as asker:
            ids = np.arange(number, number + rows_of[number])[:, None]
            a = np.full((len(ids), 2), number, np.float32)
            answer = asker.ask("together", {"ids": ids, "a": a})["sum"]
        np.testing.assert_array_equal(answer, TABLE[ids] + a[:, None])

    before, measured = http.statistics("together"), metrics(server, "together")
    rows, runs = http.counts("together")
    with ThreadPoolExecutor(len(rows_of)) as clients:
        list(clients.map(ask, range(len(rows_of))))
    expected = (rows + TOGETHER, runs + 1)
    assert soon(lambda: http.counts("together"), expected) == expected
    after = http.statistics("together")
    sizes = {batch["batch_size"]: batch["compute_infer"]["count"] for batch in after["batch_stats"]}
    earlier = {batch["batch_size"]: batch["compute_infer"]["count"] for batch in before["batch_stats"]}
    assert {size: count - earlier.get(size, 0) for size, count in sizes.items()}[TOGETHER] == 1

    def grown(metric: str) -> float:
        return metrics(server, "together")[metric] - measured[metric]

    assert soon(lambda: grown("nv_inference_request_success"), float(len(rows_of))) == len(rows_of)
    assert grown("nv_inference_count") == TOGETHER
    assert grown("nv_inference_exec_count") == 1
    assert grown("nv_inference_compute_infer_duration_us") > 0
    assert grown("nv_inference_request_failure") == 0


def test_requests_run_alone_without_batcher(server: TritonServer, http: Asker) -> None:
    """Without a dynamic batcher each request is run by itself."""
    rows, runs = http.counts("pair", "2")

    def ask(seed: int) -> None:
        with Asker(server, "grpc") as asker:
            asker.ask("pair", pair(seed, rows=2))

    with ThreadPoolExecutor(4) as clients:
        list(clients.map(ask, range(4)))
    expected = (rows + 8, runs + 4)
    assert soon(lambda: http.counts("pair", "2"), expected) == expected


def test_repeated_question_answered_from_cache(server: TritonServer, http: Asker) -> None:
    """A question that was answered before is answered from the cache."""
    questions = [pair(seed, rows=1 + seed % 3) for seed in range(100, 105)]
    before, measured = http.statistics("remembered"), metrics(server, "remembered")
    answers = []
    for _ in range(2):
        for protocol in PROTOCOLS:
            with Asker(server, protocol) as asker:
                answers.append([asker.ask("remembered", question) for question in questions])
    for round_of_answers in answers:
        for question, answer in zip(questions, round_of_answers, strict=True):
            np.testing.assert_array_equal(answer["times"], question["ids"] * 2)
            np.testing.assert_array_equal(answer["share"], question["a"] / 2)

    def grown() -> dict[str, float]:
        now, metered = http.statistics("remembered"), metrics(server, "remembered")
        old, new = before["inference_stats"], now["inference_stats"]
        return {
            "runs": now["execution_count"] - before["execution_count"],
            **{counter: new[counter]["count"] - old[counter]["count"] for counter in ("cache_miss", "cache_hit")},
            **{metric: metered[metric] - measured[metric] for metric in (missed, hit)},
        }

    missed, hit = "nv_cache_num_misses_per_model", "nv_cache_num_hits_per_model"
    expected: dict[str, float] = {"runs": 5, "cache_miss": 5, "cache_hit": 15, missed: 5, hit: 15}
    assert soon(grown, expected) == expected


def test_changed_value_misses_cache(http: Asker) -> None:
    """One other value is another question to the cache."""
    question = pair(7)
    http.ask("remembered", question)
    variant = {**question, "ids": question["ids"] + 1}
    np.testing.assert_array_equal(http.ask("remembered", variant)["times"], variant["ids"] * 2)


def test_cached_answer_keeps_first_outputs(http: Asker) -> None:
    """Triton's key is the model, its version and the inputs: where answers are cached, ask for the same outputs."""
    question = pair(8)
    assert http.ask("remembered", question, outputs=["share"]).keys() == {"share"}
    assert http.ask("remembered", question, outputs=["times"]).keys() == {"share"}


def test_model_warmed_on_stored_sample(http: Asker) -> None:
    """The file holds one sample, of which Triton makes as many requests as `batch_size` says, and runs them at once."""
    warm = (WARM_ROWS * WARM_COUNT, WARM_COUNT)
    assert http.counts("warm") == warm
    answer = http.ask("warm", {"x": np.full((1, 3), 9, np.float32)})
    np.testing.assert_array_equal(answer["first"], np.array([WARM_SAMPLE], np.float32))
    assert (answer["company"].item(), answer["runs"].item()) == (WARM_ROWS, WARM_COUNT)
    expected = (warm[0] + 1, warm[1] + 1)
    assert soon(lambda: http.counts("warm"), expected) == expected


@pytest.fixture
def region() -> Iterator[Any]:
    """Makes regions of the system's shared memory, of a number of bytes, and removes them."""
    with ExitStack() as undo:

        def make(size: int) -> tuple[str, Any]:
            key = f"plansmith-test-{uuid4().hex}"
            handle = shared_memory.create_shared_memory_region(key, f"/{key}", size)
            undo.callback(shared_memory.destroy_shared_memory_region, handle)
            return key, handle

        yield make


def test_large_tensors_use_shared_memory(asker: Asker, region: Any) -> None:
    """Large tensors travel through shared memory both ways."""
    feed = pair(3, rows=8, length=50_000)
    sent, received = feed["a"].nbytes + feed["ids"].nbytes, feed["ids"].nbytes
    (key_in, memory_in), (key_out, memory_out) = region(sent), region(received)
    shared_memory.set_shared_memory_region(memory_in, [feed["a"], feed["ids"]])
    asker.client.register_system_shared_memory(key_in, f"/{key_in}", sent)
    asker.client.register_system_shared_memory(key_out, f"/{key_out}", received)
    try:
        inputs = [asker.module.InferInput(n, list(feed[n].shape), t) for n, t in (("a", "FP32"), ("ids", "INT64"))]
        inputs[0].set_shared_memory(key_in, feed["a"].nbytes)
        inputs[1].set_shared_memory(key_in, feed["ids"].nbytes, offset=feed["a"].nbytes)
        outputs = [asker.module.InferRequestedOutput(name) for name in ("times", "share")]
        outputs[0].set_shared_memory(key_out, received)
        answer = asker.client.infer("pair", inputs, outputs=outputs, model_version="1")
        assert answer.as_numpy("share").tolist() == (feed["a"] / 2).tolist()
        times = shared_memory.get_contents_as_numpy(memory_out, np.int64, feed["ids"].shape)
        np.testing.assert_array_equal(times, feed["ids"] * 2)
    finally:
        let_go(asker.client, key_in)
        let_go(asker.client, key_out)


def test_bad_shared_memory_is_error(asker: Asker, region: Any) -> None:
    """Shared memory that is unknown or too small is an error."""
    key, _ = region(4096)
    small = asker.module.InferInput("x", [1, 8], "FP16")
    small.set_shared_memory("nobody", 16)
    with pytest.raises(InferenceServerException, match=r"[Uu]nable to find shared memory region"):
        asker.client.infer("half", [small])
    with pytest.raises(InferenceServerException):
        asker.client.register_system_shared_memory(key, f"/{key}-not-there", 4096)
    asker.client.register_system_shared_memory(key, f"/{key}", 4096)
    try:
        for size, offset in ((8192, 0), (16, 4090), (16, 2**62)):
            small.set_shared_memory(key, size, offset=offset)
            with pytest.raises(InferenceServerException):
                asker.client.infer("half", [small])
    finally:
        let_go(asker.client, key)
    x = np.zeros((1, 2), np.float16)
    np.testing.assert_array_equal(asker.ask("half", {"x": x})["y"], x + 1)
