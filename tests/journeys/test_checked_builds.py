"""From a source to a plan by a real parser and builder, TensorRT-RTX's on a CPU: a transformer and a CNN."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import yaml
from onnx import TensorProto, helper

from ..support.cli.command import CommandLine
from ..support.real_sentences import real_sentences
from ..support.tensorrt import rtx

pytestmark = pytest.mark.services

SHAPES = "1x4:2x16:4x32"
OUTPUTS = ("last_hidden_state", "sentence_embedding")
LOOSE = {"quantile_relative": 10.0, "min_cosine": 0.8}
"""So few sentences make a poor INT8; how near a good one is, others say."""
CALIBRATION, EVALUATION = 16, 16


COMPUTING = {
    "fp16": {"minilm": {"float16": 30}, "resnet": {"float16": 16}},
    "int8": {"minilm": {"int8": 24, "float32": 12}, "resnet": {"int8": 15, "float32": 1}},
}
"""How many layers of each plan multiply or convolve in what."""


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    """One folder for all: a model is exported once."""
    return CommandLine(tmp_path_factory.mktemp("checked"))


@pytest.fixture(scope="module")
def spec(terminal: CommandLine, minilm_folder: Path) -> Path:
    """MiniLM and a small ResNet, for TensorRT."""
    (terminal.folder / "sentences.txt").write_text("\n".join(real_sentences()[: CALIBRATION + EVALUATION]))
    sentences = {"path": "sentences.txt", "calibration": CALIBRATION, "evaluation": EVALUATION}
    source = {"source": f"hf:{minilm_folder}", "shapes": {"input_ids": SHAPES}, "data": sentences}
    minilm = {"name": "minilm", **source, "tolerances": dict.fromkeys(OUTPUTS, LOOSE)}
    models = [minilm, {"name": "resnet", "source": "timm:test_resnet", "random_weights": True}]
    tensorrt = {"check_build": True, "gpus": ["L4"]}
    defaults = {"engine": "tensorrt", "target": "triton-26.10", "tensorrt": tensorrt, "lowering": {"budget": 0}}
    path = terminal.folder / "spec.yaml"
    path.write_text(yaml.safe_dump({"defaults": defaults, "models": models}))
    return path


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_lowered_graph_becomes_plan(
    precision: str, terminal: CommandLine, spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is lowered becomes a plan that computes in the lower precision."""
    rtx.install(monkeypatch)
    plan = terminal.document("compile", str(spec), "--precision", precision, "--dry-run")
    assert {m["name"]: m["build_check"]["layers"]["computing"] for m in plan["models"]} == COMPUTING[precision]


def test_silent_check_done_again(terminal: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that says nothing is done again."""
    rtx.install(monkeypatch)
    nodes = [
        helper.make_node("Sub", ["x", "x"], ["zero"]),
        helper.make_node("Cast", ["zero"], ["indices"], to=TensorProto.INT64),
        helper.make_node("ScatterElements", ["x", "indices", "x"], ["y"], axis=1, reduction="add"),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 8]) for name in "xy")
    opsets = [helper.make_opsetid("", 18)]
    graph = helper.make_graph(nodes, "scatter", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), terminal.folder / "scatter.onnx")
    arguments = (
        "onnx:scatter.onnx",
        "--engine",
        "tensorrt",
        "--target",
        "triton-26.10",
        "--gpu",
        "L4",
        "--check-build",
        "--dry-run",
    )
    checks = [terminal.document("compile", *arguments)["build_check"] for _ in range(2)]
    assert [check["verdict"] for check in checks] == ["unknown", "unknown"]
    assert checks[0]["seconds"] != checks[1]["seconds"], "the first was kept"
