"""A real Triton takes what options make of a configuration, and does what they say; plans and GPUs it cannot judge."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tritonclient import grpc, http

from plansmith.config.triton import TritonOptions
from plansmith.data.reference import StoredCases, store_case
from plansmith.records.model import AxisRange, EngineKind, Tensor
from plansmith.records.release import Interface, Package
from plansmith.triton.config.model_config import contradictions, make_config, parse_config, text_of
from plansmith.triton.config.overrides import Warmup, by_place, configure, served_package, support_files
from plansmith.triton.server.installation import Installation
from plansmith.triton.server.server import TritonServer

from ..support.waiting import soon

pytestmark = pytest.mark.slow

AXES = {"batch": AxisRange(min=1, opt=4, max=8), "length": AxisRange(min=2, opt=3, max=5)}
INPUTS = (
    Tensor(name="a", dtype="float32", dims=("batch", 3)),
    Tensor(name="ids", dtype="int64", dims=("batch", "length")),
)
OUTPUTS = (
    Tensor(name="half", dtype="float32", dims=("batch", 3)),
    Tensor(name="twice", dtype="int64", dims=("batch", "length")),
)

# Notes what every execution gets: a list of requests, each with the shape and values of its inputs.
RECORDER = """
import json, sys
from pathlib import Path
sys.path.insert(0, {site!r})
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        seen = []
        for request in requests:
            arrays = {{tensor.name(): tensor.as_numpy() for tensor in request.inputs()}}
            seen.append({{name: [list(array.shape), array.ravel().tolist()] for name, array in arrays.items()}})
        with open({notes!r}, "a") as notes:
            notes.write(json.dumps(seen) + "\\n")
        return [pb.InferenceResponse(self.answer(request)) for request in requests]

    def answer(self, request):
        given = {{tensor.name(): tensor.as_numpy() for tensor in request.inputs()}}
        return [pb.Tensor("half", given["a"] / 2), pb.Tensor("twice", given["ids"] * 2)]
"""


@dataclass
class Builder:
    """Puts models with options into a repository."""

    repository: Path
    notes: Path
    site: Path
    graph: onnx.ModelProto

    def add(self, name: str, settings: dict[str, Any], *, python: bool = False, versions: int = 1) -> Package:
        """A model of these options; the server runs it on the CPU."""
        options = TritonOptions.model_validate(settings).with_absolute_paths(self.repository.parent)
        folder, kind = self.repository / name, EngineKind.PYTHON if python else EngineKind.ONNXRUNTIME
        file = "model.py" if python else "model.onnx"
        largest = 8 if options.max_batch_size is None else options.max_batch_size
        package = Package(
            model=name,
            config_file="config.pbtxt",
            model_files=(file,),
            max_batch_size=largest,
            interface=Interface(inputs=INPUTS, outputs=OUTPUTS),
        )
        for version in range(1, versions + 1):
            (folder / str(version)).mkdir(parents=True)
            if python:
                notes = self.notes / f"{name}.jsonl"
                (folder / str(version) / file).write_text(RECORDER.format(site=str(self.site), notes=str(notes)))
            else:
                onnx.save(self.graph, folder / str(version) / file)
        config = make_config(package, kind, "cpu")
        configure(config, by_place(options))
        for place, path in support_files(options).items():
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / place)
        if options.model_warmup == "on":
            Warmup(config, INPUTS, AXES, self.cases(), folder, takes=lambda _: True).add()
        (folder / "config.pbtxt").write_text(text_of(config))
        return served_package(package, config)

    def cases(self) -> StoredCases:
        """Inputs at the smallest, usual and largest shape, in whose first samples every value differs."""
        folder = self.repository.parent / "reference"
        results = []
        for point in ("min", "opt", "max"):
            sizes = {axis: getattr(r, point) for axis, r in AXES.items()}
            batch, length = sizes["batch"], sizes["length"]
            feed = {
                "a": np.arange(batch * 3, dtype=np.float32).reshape(batch, 3) + 0.5,
                "ids": np.arange(batch * length).reshape(batch, length) + 10 * length,
            }
            answer = {"half": feed["a"] / 2, "twice": feed["ids"] * 2}
            results.append(store_case(point, sizes, feed, answer, folder))
        return StoredCases(results, folder.parent)

    def noted(self, name: str) -> list[list[dict[str, Any]]]:
        path = self.notes / f"{name}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


RAGGED = {
    "dynamic_batching": {"preferred_batch_size": [2], "max_queue_delay_microseconds": 2_000_000},
    "inputs": {"ids": {"allow_ragged_batch": True, "dims": [-1]}},
}
SEQUENCE = {
    "sequence_batching": {
        "oldest": {"max_candidate_sequences": 4, "preferred_batch_size": [2]},
        "max_sequence_idle_microseconds": 5_000_000_000,
        "control_input": [{"name": "START", "control": [{"kind": "start", "int32_false_true": [0, 1]}]}],
        "state": [{"input_name": "s", "output_name": "t", "data_type": "fp32", "dims": [1], "initial_state": [
            {"data_type": "fp32", "dims": [1], "data_file": "state.bin", "name": "first"}]}],
    }
}  # fmt: skip
MUCH = {
    "max_batch_size": 4,
    "dynamic_batching": {
        "preferred_batch_size": [2, 4],
        "priority_levels": 3,
        "default_priority_level": 2,
        "default_queue_policy": {"timeout_action": "delay", "default_timeout_microseconds": 9_000_000},
        "priority_queue_policy": {1: {"max_queue_size": 9, "allow_timeout_override": True}},
    },
    "instance_group": [
        {"name": "one", "count": 2, "rate_limiter": {"resources": [{"name": "r", "global": True}], "priority": 2}},
        {"name": "two", "kind": "cpu"},
    ],
    "response_cache": {"enable": True},
    "optimization": {
        "graph": {"level": 1},
        "priority": "max",
        "input_pinned_memory": {"enable": False},
        "gather_kernel_buffer_threshold": 3,
        "eager_batching": True,
    },
    "metric_tags": {"team": "search"},
    "parameters": {"intra_op_thread_count": "1"},
    "inputs": {"a": {"dims": [1, 3]}},
    "outputs": {"half": {"dims": [3, 1], "label_filename": "labels.txt"}},
}


QUEUE = {"dynamic_batching": {"default_queue_policy": {"max_queue_size": 1}}}


@pytest.fixture(scope="module")
def served(
    installation: Installation,
    site: Path,
    graph: Callable[[int | str], onnx.ModelProto],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[TritonServer, Builder]]:
    folder = tmp_path_factory.mktemp("options")
    (folder / "labels.txt").write_text("cat\ndog\nbird\n")
    (folder / "state.bin").write_bytes(np.float32(7).tobytes())
    builder = Builder(folder / "models", folder / "notes", site, graph("batch"))
    builder.notes.mkdir()
    builder.add("warm", {"model_warmup": "on"}, python=True)
    builder.add("ragged", RAGGED, python=True)
    builder.add("sequence", SEQUENCE, python=True)
    builder.add("decoupled", {"model_transaction_policy": {"decoupled": True}}, python=True)
    builder.add("much", MUCH)
    for batch in (0, 1):
        builder.add(f"queue_{batch}", QUEUE | {"max_batch_size": batch}, python=True)
    builder.add("warm_graph", {"model_warmup": "on", "inputs": {"a": {"dims": [3, 1]}}})
    builder.add("every_version", {"version_policy": {"all": {}}}, versions=2)
    builder.add("second_version", {"version_policy": {"specific": {"versions": [2]}}}, versions=3)
    with TritonServer(
        builder.repository, installation, folder / "triton.log", site=site, exit_on_error=False
    ) as server:
        yield server, builder


Served = tuple[TritonServer, Builder]


def test_models_load_and_options_understood(served: Served) -> None:
    """Every model loads, and Triton understood what was written."""
    server, builder = served
    with grpc.InferenceServerClient(server.grpc_url, channel_args=[("grpc.enable_http_proxy", 0)]) as client:
        index = client.get_model_repository_index(as_json=True)["models"]
        assert {row["name"]: row["reason"] for row in index if row.get("reason")} == {}
        for folder in builder.repository.iterdir():
            ours = parse_config((folder / "config.pbtxt").read_text())
            assert client.is_model_ready(folder.name), folder.name
            assert contradictions(ours, client.get_model_config(folder.name).config) == [], folder.name


def test_warm_up_runs_before_ready(served: Served) -> None:
    """A warm-up runs real inputs at batch 1, opt and max before the model is ready."""
    _, builder = served
    executed = builder.noted("warm")
    assert [len(requests) for requests in executed] == [1, 4, 8]
    for requests, case in zip(executed, ("min", "opt", "max"), strict=True):
        stored = np.load(builder.repository.parent / "reference" / f"{case}.npz")
        for name in ("a", "ids"):
            first = stored[f"input:{name}"][:1]
            assert all(request[name] == [list(first.shape), first.ravel().tolist()] for request in requests)
    files = sorted(path.relative_to(builder.repository / "warm").as_posix() for path in
                   (builder.repository / "warm" / "warmup").rglob("*") if path.is_file())  # fmt: skip
    assert files == [f"warmup/{point}/{name}" for point in ("max", "min", "opt") for name in ("a", "ids")]


def test_differing_sizes_share_ragged_batch(served: Served) -> None:
    """Requests of different sizes share a ragged batch."""
    server, builder = served
    answers: dict[int, Any] = {}

    def ask(length: int) -> None:
        answers[length] = _ask(server, "ragged", np.zeros((1, 3), np.float32), np.arange(length)[None] + length)

    clients = [threading.Thread(target=ask, args=(length,)) for length in (2, 4)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    for length, answer in answers.items():
        np.testing.assert_array_equal(answer["twice"], 2 * (np.arange(length)[None] + length))
    (requests,) = builder.noted("ragged")
    assert sorted(request["ids"][0] for request in requests) == [[1, 2], [1, 4]]


def test_clients_get_own_dims_and_labels(served: Served) -> None:
    """Clients send and get other dims, and the labels of classes."""
    server, _ = served
    a = np.array([[[4.0, 12.0, 8.0]], [[20.0, 6.0, 2.0]]], np.float32)
    answer = _ask(server, "much", a, np.ones((2, 3), np.int64))
    np.testing.assert_array_equal(answer["half"], a.reshape(2, 3, 1) / 2)
    with http.InferenceServerClient(server.http_url) as client:
        selection = [http.InferRequestedOutput("half", class_count=1)]
        classes = client.infer("much", _inputs(http, a, np.ones((2, 3), np.int64)), outputs=selection).as_numpy("half")
    assert [text.decode().split(":")[1:] for text in classes.ravel()] == [["1", "dog"], ["0", "cat"]]


def test_equal_requests_answered_from_cache(served: Served) -> None:
    """Equal requests are answered from the cache."""
    server, _ = served
    before = _cache_hits(server, "much")
    for _ in range(2):
        _ask(server, "much", np.full((1, 1, 3), 3, np.float32), np.ones((1, 3), np.int64))
    assert soon(lambda: _cache_hits(server, "much"), before + 1) == before + 1


def test_policy_decides_served_versions(served: Served) -> None:
    """The versions that are served are those of the policy."""
    server, _ = served
    with http.InferenceServerClient(server.http_url) as client:
        ready = {
            name: [n for n in "123" if client.is_model_ready(name, n)] for name in ("every_version", "second_version")
        }
    assert ready == {"every_version": ["1", "2"], "second_version": ["2"]}


def test_sequence_inputs_not_asked_of_clients(served: Served) -> None:
    """What fills the inputs of a sequence is not asked of clients."""
    server, builder = served
    with http.InferenceServerClient(server.http_url) as client:
        for step in range(2):
            inputs = _inputs(http, np.zeros((1, 3), np.float32), np.ones((1, 2), np.int64))
            client.infer("sequence", inputs, sequence_id=5, sequence_start=step == 0, sequence_end=step == 1)
    first, second = (requests[0] for requests in builder.noted("sequence"))
    assert (first["START"], second["START"]) == ([[1, 1], [1]], [[1, 1], [0]])
    assert first["s"] == [[1, 1], [7.0]]


def _cache_hits(server: TritonServer, model: str) -> int:
    with http.InferenceServerClient(server.http_url) as client:
        (statistics,) = client.get_inference_statistics(model)["model_stats"]
    return int(statistics["inference_stats"]["cache_hit"].get("count", 0))


def _inputs(protocol: Any, a: np.ndarray, ids: np.ndarray) -> list[Any]:
    inputs = []
    for name, array, kind in (("a", a, "FP32"), ("ids", ids, "INT64")):
        tensor = protocol.InferInput(name, list(array.shape), kind)
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return inputs


def _ask(server: TritonServer, model: str, a: np.ndarray, ids: np.ndarray) -> dict[str, np.ndarray]:
    with http.InferenceServerClient(server.http_url) as client:
        answer = client.infer(model, _inputs(http, a, ids))
        return {name: answer.as_numpy(name) for name in ("half", "twice")}
