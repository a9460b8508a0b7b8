"""The main job through the real command and the real Triton."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ..compilers.python_backend.models import ODD_INPUTS, write_odd
from ..support import warm

SERVE_SECONDS = 180
README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def run(*words: str) -> str:
    """What a command prints that ends well."""
    done = warm.run([*warm.COMMAND, *words])
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


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory, minilm_folder: Path) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("minilm")
    return compile_model(folder, f"hf:{minilm_folder}", "--name", "minilm", "--shapes", "input_ids=1x1:4x32:8x64")


@pytest.mark.xdist_group("end-to-end")
def test_real_weights_are_published_and_served_over_both_protocols_like_pytorch(
    minilm: dict[str, Any], minilm_folder: Path, tmp_path: Path
) -> None:
    import torch
    from sentence_transformers import SentenceTransformer

    assert minilm["verdict"] == "passed"
    assert minilm["served"]["backend"] in {"real", "stand-in"}
    model: Any = SentenceTransformer(str(minilm_folder), device="cpu").eval()
    texts = ["a cat on a mat", "the quarterly report is late again, as everyone expected", "ja"]
    feed = dict(model.tokenizer(texts, padding=True, return_tensors="np"))
    with torch.inference_mode():
        expected = model({k: torch.from_numpy(v) for k, v in feed.items()})
    counts = feed["attention_mask"].astype(bool)
    with serve(minilm["repository"], "minilm", tmp_path / "said") as (http, grpc):
        for url, over_http in ((http, True), (grpc, False)):
            answer = ask(url, "minilm", feed, over_http=over_http)
            np.testing.assert_allclose(
                answer["last_hidden_state"][counts], expected["token_embeddings"].numpy()[counts], atol=2e-5
            )
            embedding = expected["sentence_embedding"].numpy()
            np.testing.assert_allclose(answer["sentence_embedding"], embedding, atol=2e-6)


@pytest.mark.slow
@pytest.mark.xdist_group("end-to-end")
def test_a_served_model_is_asked_as_the_readme_says(
    minilm: dict[str, Any], minilm_folder: Path, tmp_path: Path
) -> None:
    text = README.partition("### Asking a model")[2].partition("\n### ")[0]
    commands = [line.removeprefix("$ plansmith ") for line in text.splitlines() if line.startswith("$ ")]
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)

    def run(*words: str) -> str:
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    with serve(minilm["repository"], "minilm", tmp_path / "said") as (http, grpc):
        said = [
            run(
                "-m",
                "plansmith",
                *shlex.split(command.replace("127.0.0.1:8001", grpc)),
                *(() if "--url" in command else ("--url", http)),
            )
            for command in commands
        ]
        printed = run(
            "-c", code.replace('"all-MiniLM-L6-v2"', repr(str(minilm_folder))).replace("127.0.0.1:8000", http)
        )
    assert said[0].splitlines()[:2] == text.splitlines()[4:6]
    with np.load(tmp_path / "answer.npz") as found:
        assert found["last_hidden_state"].shape == (1, 3, 384)
    assert said[2].startswith("minilm, version 1, answered in 3 requests\n")
    assert "100 requests, one after the other" in said[2]
    assert printed.startswith("input ")
    assert printed.endswith("(2, 384)\n")


@pytest.mark.xdist_group("end-to-end")
def test_the_release_holds_all_that_explains_it(minilm: dict[str, Any]) -> None:
    release = Path(minilm["model_path"])
    manifest = json.loads((release / "manifest.json").read_text())
    assert manifest["version"] == minilm["version"] == 1
    assert manifest["source"]["licence"] == "apache-2.0"
    assert [a["problem"] for a in manifest["onnx"]["attempts"]] == [None]
    assert manifest["served"]["requests"] == len(manifest["served"]["checks"]) > 10
    assert {c["protocol"] for c in manifest["served"]["checks"]} == {"http", "grpc"}
    assert {c["batch"] for c in manifest["served"]["checks"]} >= {1, 2, 3, 4}
    for name in ("config.pbtxt", "spec.yaml", "reproduce.sh", "build.log", "reference/max.npz", "model/model.onnx"):
        assert (release / name).is_file(), name
    view = Path(minilm["repository"]) / "minilm"
    assert sorted(p.name for p in view.iterdir()) == ["1", "config.pbtxt"]
    assert (view / "1" / "model.onnx").samefile(release / "model" / "model.onnx")


@pytest.mark.slow
@pytest.mark.xdist_group("end-to-end")
def test_a_timm_model_with_random_weights_goes_the_same_way(tmp_path: Path) -> None:
    shapes = "pixel_values=1x3x160x160:2x3x160x160:4x3x160x160"
    document = compile_model(tmp_path, "timm:test_resnet", "--random-weights", "--shapes", shapes)
    assert document["verdict"] == "passed"
    assert document["name"] == "test_resnet"
    assert len(document["served"]["checks"]) > 5
    again = compile_model(tmp_path, "timm:test_resnet", "--random-weights", "--shapes", shapes)
    assert again["unchanged"]
    assert again["version"] == 1
    assert all(step["cached"] for step in again["steps"])


@pytest.mark.slow
@pytest.mark.xdist_group("end-to-end")
def test_a_model_that_no_exporter_can_follow_is_published_and_served_as_pytorch(tmp_path: Path) -> None:
    odd = write_odd(tmp_path / "odd")
    spec = tmp_path / "odd.yaml"
    spec.write_text(
        f"source: hf:{odd}\nname: odd\nengine: python\nprecision: bf16\ntrust_remote_code: true\n"
        f"inputs: {json.dumps(ODD_INPUTS)}\nshapes: {{input_ids: '1x1:2x8:4x16'}}\n"
    )
    made = compile_model(tmp_path / "artifacts", str(spec))
    assert (made["engine"], made["precision"], made["verdict"]) == ("python", "bf16", "passed")
    assert made["served"]["backend"] == "real"
    again = compile_model(tmp_path / "artifacts", str(spec))
    assert again["unchanged"]
    assert all(step["cached"] for step in again["steps"])
    release, place = made["model_path"], ["--repository", made["repository"]]
    for words in (
        ["inspect", release],
        ["show", "odd", *place],
        ["validate", "odd", *place],
        ["report", "odd", *place],
        ["compile", str(spec), "--artifacts", str(tmp_path / "artifacts"), "--dry-run"],
    ):
        run(*words)
    ids = np.arange(6, dtype=np.int64).reshape(2, 3)
    with serve(made["repository"], "odd", tmp_path / "said") as (http, _):
        answer = ask(http, "odd", {"input_ids": ids}, over_http=True)["last_hidden_state"]
    assert answer.shape == (2, 3, 8)
    assert answer.dtype == np.float32
    assert np.abs(answer).max(axis=(1, 2)).min() >= 100  # as often as each row wants it
