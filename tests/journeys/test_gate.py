"""What is wrong is refused before anybody is served it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import numpy_helper

from plansmith.steps.worker import __main__ as worker

from ..support.cli.command import check_nothing_made, check_refusal
from ..support.cli.in_process import InProcess
from ..support.faults.compiles import write_tiny_bert
from ..support.models.graphs import save_product


def test_broken_graph_is_refused(run: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine with a weight turned around ends with exit code 5, says by how much, and is not published."""

    compile_rightly = worker.FUNCTIONS["compile_engine"]

    def compile_wrongly(request: dict[str, Any], **more: Any) -> Any:
        engine = compile_rightly(request=request, **more)
        turn_around_a_weight(Path(request["out"]) / engine["components"]["model"]["file"])
        return engine

    monkeypatch.setitem(worker.FUNCTIONS, "compile_engine", compile_wrongly)
    model = write_tiny_bert(run.folder / "bert")
    command = ("compile", f"hf:{model}", "--name", "wrong", "--random-weights", "--no-check-served", "--json")
    check_refusal(run(*command), 5, ("wrong · validate: the engine differs from the model", "output '", "allowed"))
    check_nothing_made(run.folder)


def turn_around_a_weight(path: Path) -> None:
    """Reverse the largest square weight of a graph."""
    model = onnx.load(path)
    weights = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    square = {name: array for name, array in weights.items() if array.ndim == 2 and len({*array.shape}) == 1}
    name = max(square, key=lambda item: square[item].size)
    (tensor,) = [item for item in model.graph.initializer if item.name == name]
    tensor.CopyFrom(numpy_helper.from_array(square[name][::-1].copy(), name))
    onnx.save(model, path)


def test_tensorrt_dry_run_prints_plan(run: InProcess) -> None:
    """Without a GPU a dry run names the target's TensorRT, the GPU and the call of trtexec, and builds nothing."""
    save_product(run.folder)
    arguments = ("onnx:net.onnx", "--shapes", "x=1x3x64:8x3x64:32x3x64", "--engine", "tensorrt")
    answer = run("compile", *arguments, "--target", "triton-26.03", "--gpu", "L4", "--dry-run")
    assert answer.status == 0, answer.stderr
    assert "TensorRT 10.16.0.72 of triton-26.03, for NVIDIA L4 (compute capability 8.9)" in answer.stdout
    building = answer.stdout.partition("trtexec \\\n")[2].partition("Its speed")[0]
    call = shlex.split(building.replace("\\\n", " "))
    assert "--stronglyTyped" in call
    assert {"--minShapes=x:1x3x64", "--optShapes=x:8x3x64", "--maxShapes=x:32x3x64"} < set(call)
    assert not list(run.folder.glob("artifacts/cache/compile/*"))


def test_check_finds_triton_refusals(run: InProcess) -> None:
    """In a repository of anybody's, `plansmith check` names the file, the line and what to write, and exits with 7."""
    folder = run.folder / "models" / "theirs"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text("class TritonPythonModel:\n    def execute(self, requests): ...\n")
    config = (
        'backend: "python"\nmax_batch_size: -8\n'
        'input [ { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } ]\n'
        'output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] } ]\n'
        "instance_group [ { kind: KIND_CPU count: 1 } ]\n"
    )
    (folder / "config.pbtxt").write_text(config)
    answer = run("check", "models")
    assert (answer.status, answer.stderr) == (7, "")
    assert "config.pbtxt:2  error  [config.max-batch-size]" in answer.stdout
    assert "→ write 0" in answer.stdout
    (folder / "config.pbtxt").write_text(config.replace("-8", "8"))
    assert run("check", "models").stdout == "1 model checked: nothing found.\n"
