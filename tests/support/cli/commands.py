"""Commands as a person runs them: compile, serve, and a served model that is asked by Triton's own client."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from .command import COMMAND

SERVE_SECONDS = 180


def run(*arguments: str) -> str:
    """What a command prints that ends well."""
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def compile_model(folder: Path, *arguments: str) -> dict[str, Any]:
    """Run `plansmith compile --json` and return its document."""
    document: dict[str, Any] = json.loads(run("compile", *arguments, "--json", "--artifacts", str(folder)))
    return document


@contextmanager
def serve(repository: str, model: str, said: Path, *options: str) -> Iterator[tuple[str, str]]:
    """Run `plansmith serve` on free ports until the block ends with a person's Ctrl-C; its two URLs."""
    ports = ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
    command = [sys.executable, "-m", "plansmith", "serve", model, "--repository", repository, *ports, *options]
    with said.open("w") as output:
        process = subprocess.Popen(command, stdout=output, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    deadline = time.monotonic() + SERVE_SECONDS
    while "Ctrl-C" not in said.read_text():
        assert process.poll() is None, said.read_text()
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.1)
    http, grpc = re.search(r"http://(\S+?)/v2", said.read_text()), re.search(r"gRPC +grpc://(\S+)", said.read_text())
    assert http is not None
    assert grpc is not None
    try:
        yield http[1], grpc[1]
    finally:
        process.send_signal(signal.SIGINT)
        status = process.wait(timeout=SERVE_SECONDS)
    assert status == 0


def ask(url: str, model: str, feed: dict[str, np.ndarray], *, over_http: bool) -> dict[str, np.ndarray]:
    """One request by Triton's own client."""
    from tritonclient import grpc, http
    from tritonclient.utils import np_to_triton_dtype

    protocol: Any = http if over_http else grpc
    inputs = []
    for name, array in feed.items():
        tensor = protocol.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    with protocol.InferenceServerClient(url) as client:
        answer = client.infer(model, inputs)
        names = [
            output["name"]
            for output in client.get_model_metadata(model, **({} if over_http else {"as_json": True}))["outputs"]
        ]
        return {name: answer.as_numpy(name) for name in names}
