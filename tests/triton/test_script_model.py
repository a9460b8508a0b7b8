"""A script in a running Triton asks models for each request by itself, many at once, and a bad one harms no other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plansmith.config.engine_options import SITE_VARIABLE
from plansmith.records.model import Tensor
from plansmith.records.release import Interface
from plansmith.triton.checker.checker import check_repository
from plansmith.triton.config.model_config import text_of
from plansmith.triton.config.script import Chain, ChainStep, write_script
from plansmith.triton.server.installation import Installation
from plansmith.triton.server.server import TritonServer

from ..support.waiting import soon

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("script-model")]

BATCH = 4
LONG_ENOUGH = 300_000
"""Requests that are sent at once end up in one execution."""

CLIENTS, REQUESTS = 8, 25


def column(name: str, dtype: str) -> Tensor:
    return Tensor(name=name, dtype=dtype, dims=("batch", 1))


INTERFACE = Interface(
    inputs=(column("x", "float32"), column("who", "string")), outputs=(column("y", "float32"), column("word", "string"))
)
SCRIPT = """
import numpy as np
from plansmith_served.scripting import Refused

def answer(inputs, models):
    x = inputs["x"]
    if (x == 7).any():
        raise ValueError("seven is odd")
    if (x == 8).any():
        raise Refused("eight is not answered")
    if (x == 9).any():
        return {"y": x.astype(np.float64), "word": inputs["who"]}
    y = models["main"](x=x)["y"]
    if y[0, 0] > 100:
        return {"y": y, **models["large"](x=x, who=inputs["who"])}
    return {"y": y, "word": np.full(y.shape, "small")}
"""
CHAINS = {
    "main": Chain(
        steps=(
            ChainStep(model="plus", inputs={"X": "x"}, outputs={"Y": "more"}),
            ChainStep(model="twice", inputs={"X": "more"}, outputs={"Y": "y"}),
        ),
        outputs=("y",),
    ),
    "large": Chain(
        steps=(
            ChainStep(model="plus", inputs={"X": "x"}, outputs={"Y": "more"}),
            ChainStep(model="words", inputs={"X": "more", "WHO": "who"}, outputs={"WORD": "word"}),
        ),
        outputs=("word",),
    ),
}
_HEAD = f"""
import os, sys
sys.path[:0] = os.environ[{SITE_VARIABLE!r}].split(":")
import numpy as np
import triton_python_backend_utils as triton

class TritonPythonModel:
    def execute(self, requests):
        return [self.response(request) for request in requests]

    def array(self, request, name):
        return triton.get_input_tensor_by_name(request, name).as_numpy()
"""
_MODELS = {
    "plus": """
    def response(self, request):
        return triton.InferenceResponse([triton.Tensor("Y", self.array(request, "X") + 1)])
""",
    "twice": """
    def response(self, request):
        x = self.array(request, "X")
        if (x < 0).any():
            return triton.InferenceResponse(error=triton.TritonError("what is below 0 is not doubled"))
        return triton.InferenceResponse([triton.Tensor("Y", x * 2)])
""",
    "words": """
    def response(self, request):
        told = zip(self.array(request, "WHO").ravel(), self.array(request, "X").ravel())
        words = np.array([b"%s: %d" % (who, x) for who, x in told], object).reshape(-1, 1)
        return triton.InferenceResponse([triton.Tensor("WORD", words)])
""",
}
_X = 'name: "X" data_type: TYPE_FP32 dims: [ 1 ]'
_Y = 'name: "Y" data_type: TYPE_FP32 dims: [ 1 ]'
_TENSORS = {
    "plus": f"input {{ {_X} }} output {{ {_Y} }}",
    "twice": f"input {{ {_X} }} output {{ {_Y} }}",
    "words": f"input {{ {_X} }} input {{ name: 'WHO' data_type: TYPE_STRING dims: [ 1 ] }}"
    " output { name: 'WORD' data_type: TYPE_STRING dims: [ 1 ] }",
}


@dataclass(frozen=True)
class ScriptServers:
    """A server with a script, `waiting`, which joins what comes at once, and another one, `quick`, which does not wait.

    Both ask the same three models.
    """

    server: TritonServer
    repository: Path

    def ask(self, model: str, *numbers: float, name: str = "ü") -> list[tuple[float, str]] | str:
        """The rows of the answer, or the reason of the refusal."""
        from tritonclient import http
        from tritonclient.utils import InferenceServerException

        x, texts = http.InferInput("x", [len(numbers), 1], "FP32"), http.InferInput("who", [len(numbers), 1], "BYTES")
        x.set_data_from_numpy(np.array(numbers, np.float32).reshape(-1, 1))
        texts.set_data_from_numpy(np.full((len(numbers), 1), name.encode(), object))
        with http.InferenceServerClient(self.server.http_url) as client:
            try:
                answer = client.infer(model, [x, texts])
            except InferenceServerException as refused:
                return str(refused.message())
        y, labels = answer.as_numpy("y"), answer.as_numpy("word")
        return [(float(number), word.decode()) for number, word in zip(y[:, 0], labels[:, 0], strict=True)]

    def counts(self, model: str) -> tuple[int, int]:
        """How many rows a model answered, and in how many executions."""
        from tritonclient import http

        with http.InferenceServerClient(self.server.http_url) as client:
            statistics: Any = client.get_inference_statistics(model)["model_stats"][0]
        return int(statistics["inference_count"]), int(statistics["execution_count"])


def owed(*numbers: float, name: str = "ü") -> list[tuple[float, str]]:
    """The rows of an answer."""
    is_large = (numbers[0] + 1) * 2 > 100
    return [((number + 1) * 2, f"{name}: {int(number) + 1}" if is_large else "small") for number in numbers]


@pytest.fixture(scope="module")
def script_servers(tmp_path_factory: pytest.TempPathFactory, installation: Installation) -> Iterator[ScriptServers]:
    folder = tmp_path_factory.mktemp("script-model")
    root = folder / "repository"
    for name, code in _MODELS.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "1" / "model.py").write_text(_HEAD + code)
        config = f'backend: "python" max_batch_size: {BATCH} {_TENSORS[name]} dynamic_batching {{ }}'
        (root / name / "config.pbtxt").write_text(config + " instance_group { count: 1 kind: KIND_CPU }")
    (folder / "script.py").write_text(SCRIPT)
    for name, delay in {"waiting": LONG_ENOUGH, "quick": 0}.items():
        written = write_script(
            *(folder / "script.py", CHAINS, INTERFACE, root / name / "1"),
            model=name,
            max_batch_size=BATCH,
            requirements={"numpy": "1.26.4"},
        )
        assert written.files[0] == "model.py"
        assert {*written.files} >= {"script.py", "settings.json", "requirements.txt"}
        written.config.dynamic_batching.max_queue_delay_microseconds = delay
        (root / name / "config.pbtxt").write_text(text_of(written.config))
    with TritonServer(root, installation, folder / "log", models=["waiting", "quick"]) as server:
        yield ScriptServers(server, root)


def together(
    script_servers: ScriptServers, model: str, requests: Sequence[Sequence[float]]
) -> list[list[tuple[float, str]] | str]:
    """The answers to requests that are sent at once."""
    with ThreadPoolExecutor(len(requests)) as clients:
        return list(clients.map(lambda numbers: script_servers.ask(model, *numbers), requests))


def test_repository_check_finds_nothing(script_servers: ScriptServers) -> None:
    """A check finds nothing wrong in the repository."""
    assert [finding for finding in check_repository(script_servers.repository) if finding.severity != "note"] == []


def test_requests_follow_script_choice(script_servers: ScriptServers) -> None:
    """Requests take the way that the script chooses."""
    assert script_servers.ask("quick", 1, 2, 3) == owed(1, 2, 3)
    assert script_servers.ask("quick", 99, 2) == owed(99, 2) == [(200.0, "ü: 100"), (6.0, "ü: 3")]


def test_common_chain_step_asked_once(script_servers: ScriptServers) -> None:
    """A step that two chains have is asked once for a request."""
    expected = {model: script_servers.counts(model)[0] + 3 for model in _MODELS}
    assert script_servers.ask("quick", 99, 100, 101) == owed(99, 100, 101)
    assert soon(lambda: {model: script_servers.counts(model)[0] for model in _MODELS}, expected) == expected


REFUSED = {
    (7.0,): "the script failed: ValueError: seven is odd (line 8)",
    (8.0, 1.0): "eight is not answered",
    (9.0,): "the script's answer: y is float64, and has to be float32",
    (1.0, -5.0): "what is below 0 is not doubled",
}


@pytest.mark.parametrize(("numbers", "words"), REFUSED.items())
def test_bad_requests_told_good_answered(numbers: tuple[float, ...], words: str, script_servers: ScriptServers) -> None:
    """Bad requests are told why, and the good ones of their execution are answered."""
    rows, executions = script_servers.counts("waiting")
    good = (2.0,) if len(numbers) == 1 else (99.0,)
    refusal, answer = together(script_servers, "waiting", [numbers, good])
    assert isinstance(refusal, str)
    assert refusal.endswith(words)
    assert "Traceback" not in refusal
    assert answer == owed(*good)
    one_more = (rows + len(numbers) + 1, executions + 1)
    assert soon(lambda: script_servers.counts("waiting"), one_more) == one_more, "Triton counts what was refused, too"


def test_failure_traceback_logged_refusal_not(script_servers: ScriptServers) -> None:
    """The log has the traceback of a script that fails, and of none that refuses."""
    log = script_servers.server.log
    already = log.stat().st_size
    assert isinstance(script_servers.ask("quick", 8), str)
    assert isinstance(script_servers.ask("quick", 7), str)
    assert soon(lambda: "ValueError: seven is odd" in log.read_bytes()[already:].decode(), expected=True)
    text = log.read_bytes()[already:].decode()
    assert re.search(r"script\.py.*, line 8, in answer.*\n.*raise ValueError", text), text
    assert "eight is not answered" not in log.read_text()


def test_eight_clients_joined_and_answered(script_servers: ScriptServers) -> None:
    """Eight clients are answered each for itself, and their requests are joined."""
    before = script_servers.counts("plus")

    def many(client: int) -> list[tuple[int, list[tuple[float, str]] | str]]:
        numbers = range(10 + client, 10 + client + REQUESTS * CLIENTS, CLIENTS)
        return [(number, script_servers.ask("quick", number, name=f"client {client}")) for number in numbers]

    with ThreadPoolExecutor(CLIENTS) as clients:
        answers = list(clients.map(many, range(CLIENTS)))
    for client, replies in enumerate(answers):
        for number, answer in replies:
            assert answer == owed(number, name=f"client {client}")
    rows = CLIENTS * REQUESTS
    assert soon(lambda: script_servers.counts("plus")[0] - before[0], rows) == rows
    assert script_servers.counts("plus")[1] - before[1] < rows
