"""Tensors between two models of Triton's Python backend on a CPU: by DLPack beside arrays of NumPy.

    python -m benchmarks.tensors [--quick]

A model asks others for tensors of 1 KB, 1 MB and 16 MB, and each gives back what it got: through `as_numpy` and
`Tensor`, through `to_dlpack` and `from_dlpack`, or as arrays with one copy more, which shows what a copy costs there.
The time is that of the requests in the asking model, of all ways in turn, round by round. A tensor that comes back
otherwise ends the run.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.serving import READY_SECONDS, WORKPLACE, print_contrasts, rates_of

from plansmith.compilers.precision import benchmark
from plansmith.compilers.python_backend.model_folder import PROLOGUE
from plansmith.triton.server.installation import find_installation, require_python
from plansmith.triton.server.server import TritonServer

SIZES = {"1 KB": (2**10, 200), "1 MB": (2**20, 60), "16 MB": (2**24, 10)}
"""Bytes of a tensor, and how many requests a round has of it."""

SECONDS, QUICK_SECONDS = 45.0, 0.0

ARRAYS, DLPACK, COPIED = "arrays", "DLPack", "arrays, a copy more"
CONTRASTS = ((f"{DLPACK} : {ARRAYS}", DLPACK, ARRAYS), (f"{COPIED} : {ARRAYS}", COPIED, ARRAYS))

MODELS = {ARRAYS: "arrays", DLPACK: "dlpack", COPIED: "copied"}
BACK = {
    ARRAYS: "pb_utils.Tensor('y', torch.from_numpy(tensor.as_numpy()).numpy())",
    DLPACK: "triton_from_torch('y', torch_from_triton(tensor))",
    COPIED: "pb_utils.Tensor('y', torch.from_numpy(tensor.as_numpy().copy()).numpy())",
}

_GIVING_BACK = """import torch
import triton_python_backend_utils as pb_utils

from plansmith.compilers.python_backend.model import torch_from_triton, triton_from_torch


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.back(request.inputs()[0])]) for request in requests]

    def back(self, tensor):
        return ROWS
"""

_ASKING = """import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(*(tensor.as_numpy() for tensor in request.inputs())) for request in requests]

    def answer(self, model, numbers):
        size, repeats = numbers
        sent = np.arange(size // 4, dtype=np.float32)
        tensor, spent = pb_utils.Tensor("x", sent), 0.0
        for _ in range(repeats):
            request = pb_utils.InferenceRequest(
                model_name=model[0].decode(),
                requested_output_names=["y"],
                inputs=[tensor],
                preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU),
            )
            started = time.perf_counter()
            response = request.exec()
            spent += time.perf_counter() - started
            if response.has_error():
                return pb_utils.InferenceResponse(error=response.error())
        if not np.array_equal(response.output_tensors()[0].as_numpy(), sent):
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("another tensor came back"))
        return pb_utils.InferenceResponse([pb_utils.Tensor("seconds", np.array([spent]))])
"""

_CONFIG = 'backend: "python"\nmax_batch_size: 0\ninstance_group { kind: KIND_CPU }\n'
_GIVING_BACK_CONFIG = """
input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }
"""
_ASKING_CONFIG = """
input { name: "model" data_type: TYPE_STRING dims: [ 1 ] }
input { name: "numbers" data_type: TYPE_INT64 dims: [ 2 ] }
output { name: "seconds" data_type: TYPE_FP64 dims: [ 1 ] }
"""


def main(options: argparse.Namespace) -> None:
    from tritonclient import http

    budget = QUICK_SECONDS if options.quick else SECONDS
    os.environ["OMP_NUM_THREADS"] = "1"  # nothing is computed
    installation = find_installation()
    require_python(installation)
    WORKPLACE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tensors-", dir=WORKPLACE) as folder:
        repository = Path(folder) / "repository"
        for way, model in MODELS.items():
            write_model(repository / model, _GIVING_BACK_CONFIG, _GIVING_BACK.replace("ROWS", BACK[way]))
        write_model(repository / "asking", _ASKING_CONFIG, _ASKING)
        with (
            TritonServer(repository, installation, Path(folder) / "log", deadline_seconds=READY_SECONDS) as server,
            http.InferenceServerClient(server.http_url, network_timeout=READY_SECONDS) as client,
        ):
            print(f"a tensor there and back, Triton {server.version}; {benchmark.machine()}")
            for size, (count, repeats) in SIZES.items():
                compare(size, client, count, repeats, budget)


def write_model(folder: Path, config: str, code: str) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(_CONFIG + config)
    (folder / "1" / "model.py").write_text(PROLOGUE + code)


def compare(size: str, client: Any, count: int, repeats: int, budget: float) -> None:
    """All ways in turn with tensors of so many bytes, and what came of it."""
    spent, requests = 0.0, dict.fromkeys(MODELS, 0.0)

    def run(way: str) -> None:
        nonlocal spent
        seconds = ask(client, MODELS[way], count, repeats)
        spent += seconds
        requests[way] = min(requests[way] or seconds, seconds)

    result = benchmark.race(
        {way: partial(run, way) for way in MODELS},
        ARRAYS,
        setting=benchmark.machine(),
        clock=lambda: spent,
        budget_seconds=budget,
    )
    fastest = ", ".join(f"{way} {1e6 * seconds / repeats:.0f} µs" for way, seconds in requests.items())
    print(f"\n{size}, {repeats} requests a round, {result.rounds} rounds; in the fastest: {fastest}")
    print_contrasts("times as fast", rates_of(result), CONTRASTS)


def ask(client: Any, model: str, count: int, repeats: int) -> float:
    """Seconds that so many requests of a model took.

    Raises:
        SystemExit: it answers wrongly.
    """
    from tritonclient import http
    from tritonclient.utils import InferenceServerException

    inputs = [http.InferInput("model", [1], "BYTES"), http.InferInput("numbers", [2], "INT64")]
    inputs[0].set_data_from_numpy(np.array([model.encode()], object))
    inputs[1].set_data_from_numpy(np.array([count, repeats]))
    try:
        return float(client.infer("asking", inputs).as_numpy("seconds")[0])
    except InferenceServerException as fault:
        sys.exit(f"{model}: {fault}")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tensors")
    parser.add_argument("--quick", action="store_true", help="few rounds: shows that it works, and no figures")
    return parser.parse_args()


if __name__ == "__main__":
    main(parse_options())
