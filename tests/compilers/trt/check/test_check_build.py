"""The check of a graph by TensorRT-RTX: what it says of a graph that it takes or refuses, and of its own end."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from plansmith.compilers.trt import rtx
from plansmith.compilers.trt.layers import stored_layers
from plansmith.compilers.trt.rtx_check import check_build
from plansmith.errors import EngineError, EnvironmentFault
from plansmith.records.engine import BuildCheck, BuildSpec, CheckRequest
from plansmith.records.model import HighPrecisionNode, Precision

from ....support.tensorrt import rtx as rtx_library

pytestmark = [pytest.mark.services, pytest.mark.xdist_group("rtx")]

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16


@pytest.fixture
def rtx_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library, for this process and for those that it starts."""
    rtx_library.install(monkeypatch)


def graph(nodes: list[Any], weights: dict[str, Any], dtype: int = HALF, opset: int = 17) -> bytes:
    """A graph from x to y, whose first axis varies and whose others are 8."""
    onnx_graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", dtype, ["batch", 8, 8, 8])],
        [helper.make_tensor_value_info("y", dtype, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(onnx_graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return bytes(model.SerializeToString())


def convolution(dtype: Any = np.float16, name: str = "conv") -> bytes:
    weights = {"w": np.ones((8, 8, 3, 3), dtype)}
    conv = helper.make_node("Conv", ["x", "w"], ["y"], name=name, pads=[1, 1, 1, 1])
    return graph([conv], weights, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def checked(folder: Path, content: bytes, **changed: Any) -> BuildCheck:
    """What a check says of a graph."""
    file = folder / "model.onnx"
    file.write_bytes(content)
    shapes = {"x": {key: [size, 8, 8, 8] for key, size in (("min", 1), ("opt", 2), ("max", 4))}}
    request = CheckRequest(
        graph=str(file),
        out=str(folder),
        spec=BuildSpec.model_validate({"profiles": [{"name": "all", "shapes": shapes}]}),
        compute_capabilities=("8.9",),
        in_place_of=(),
        precision=Precision.FP16,
        in_fp32=(),
        deadline_seconds=60,
    ).model_copy(update=changed)
    return check_build(request, log=folder / "check.log", progress=lambda _: None)


@pytest.mark.usefixtures("rtx_installed")
def test_layers_told_with_precision(tmp_path: Path) -> None:
    """Layers are told with what they compute in."""
    report = checked(tmp_path, convolution())
    assert (report.library, report.verdict) == (f"TensorRT-RTX {rtx.VERSION}", "built")
    assert report.layers is not None
    assert [c.count for c in report.layers.counts if (c.kind, c.dtype) == ("correlation", "float16")] == [1]
    (layer,) = [layer for layer in stored_layers(tmp_path / report.layers_file) if layer.computes]
    assert (layer.nodes, layer.operands, layer.dtypes) == (("conv",), "float16", ("float16",))


@pytest.mark.usefixtures("rtx_installed")
def test_several_gpus_built_at_once(tmp_path: Path) -> None:
    """Several kinds of GPU are built for at once."""
    report = checked(tmp_path, convolution(), compute_capabilities=("8.0", "12.0"))
    assert (report.verdict, report.compute_capabilities) == ("built", ("8.0", "12.0"))


@pytest.mark.usefixtures("rtx_installed")
def test_fp32_layers_refused(tmp_path: Path) -> None:
    """Layers in FP32 are refused unless they are meant to be."""
    with pytest.raises(EngineError, match="1 of 1 layers of the plan that compute came out in FP32, and FP16 was ask"):
        checked(tmp_path, convolution(np.float32))
    high_precision = (HighPrecisionNode(node="conv", op_type="Conv", reason="FP32 in the graph"),)
    with pytest.raises(EngineError, match="no layer of the plan computes in FP16"):
        checked(tmp_path, convolution(np.float32), in_fp32=high_precision)


@pytest.mark.usefixtures("rtx_installed")
def test_refusal_names_node(tmp_path: Path) -> None:
    """A refusal names the node and who refuses."""
    pool = helper.make_node("MaxPool", ["x"], ["y"], name="räume / 部屋", kernel_shape=[2, 2], dilations=[2, 2])
    with pytest.raises(
        EngineError, match=r"TensorRT-RTX 1\.7\.1\.116 on model\.onnx: .*räume / 部屋 \(MaxPool\)"
    ) as refused:
        checked(tmp_path, graph([pool], {}))
    assert "leave out check_build" in refused.value.remedy


@pytest.mark.usefixtures("rtx_installed")
def test_node_names_take_any_alphabet(tmp_path: Path) -> None:
    """A node is known by a name in any alphabet."""
    name = "block, Dimensions: [1] / 畳み込み"
    high_precision = (HighPrecisionNode(node=name, op_type="Conv", reason="FP32 in the graph"),)
    conv = helper.make_node("Conv", ["x", "w"], ["h"], name=name, pads=[1, 1, 1, 1])
    cast = helper.make_node("Cast", ["h"], ["c"], to=HALF)
    second = helper.make_node("Conv", ["c", "v"], ["d"], name="second", pads=[1, 1, 1, 1])
    back = helper.make_node("Cast", ["d"], ["y"], to=FLOAT)
    weights = {"w": np.ones((8, 8, 3, 3), np.float32), "v": np.ones((8, 8, 3, 3), np.float16)}
    report = checked(tmp_path, graph([conv, cast, second, back], weights, FLOAT), in_fp32=high_precision)
    assert report.verdict == "built"
    assert report.layers is not None
    assert [layer.nodes[0] for layer in report.layers.above] == [name]


def attention() -> bytes:
    return graph([helper.make_node("Attention", ["x", "x", "x"], ["y"], name="attend")], {}, opset=23)


def deformed() -> bytes:
    weights = {"w": np.ones((8, 8, 1, 1), np.float16), "offset": np.zeros((1, 2, 8, 8), np.float16)}
    return graph([helper.make_node("DeformConv", ["x", "w", "offset"], ["y"], name="deform")], weights, opset=19)


def scattered() -> bytes:
    weights = {"indices": np.zeros((1, 8, 8, 8), np.int64)}
    nodes = [helper.make_node("ScatterElements", ["x", "indices", "x"], ["y"], name="scatter", reduction="add")]
    return graph(nodes, weights, opset=18)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (attention, "crashed (signal SIGSEGV)"),
        (deformed, "no operator for deform (DeformConv)"),
        (scattered, "Unsupported reduction type"),
    ],
    ids=["a crash", "a plugin that it lacks", "what a plugin does"],
)
@pytest.mark.usefixtures("rtx_installed")
def test_library_limits_leave_graph_unjudged(made: Callable[[], bytes], reason: str, tmp_path: Path) -> None:
    """What the library cannot do says nothing of the graph."""
    report = checked(tmp_path, made())
    assert (report.verdict, reason in report.reason) == ("unknown", True), report.reason


@pytest.mark.usefixtures("rtx_installed")
def test_slow_check_leaves_graph_unjudged(tmp_path: Path) -> None:
    """A check that lasts too long says nothing of the graph."""
    report = checked(tmp_path, convolution(), deadline_seconds=0)
    assert (report.verdict, report.reason) == ("unknown", "the plan was not built within 0 minutes")


@pytest.mark.slow
@pytest.mark.usefixtures("rtx_installed")
def test_large_outside_weights_are_read(tmp_path: Path) -> None:
    """Weights of more than two gigabytes beside the graph are read."""
    side, count = 12288, 4
    model = onnx.ModelProto.FromString(convolution())
    model.graph.ClearField("node")
    model.graph.ClearField("initializer")
    for number in range(count):
        location = {"location": "weights", "offset": number * side**2 * 4, "length": side**2 * 4}
        tensor = model.graph.initializer.add(name=f"w{number}", data_type=FLOAT, dims=[side, side], data_location=1)
        for key, value in location.items():
            tensor.external_data.add(key=key, value=str(value))
        model.graph.node.append(helper.make_node("MatMul", [f"h{number}", f"w{number}"], [f"h{number + 1}"]))
    for tensors, name in ((model.graph.input, "h0"), (model.graph.output, f"h{count}")):
        del tensors[:]
        tensors.append(helper.make_tensor_value_info(name, FLOAT, [1, side]))
    with (tmp_path / "weights").open("wb") as zeros:
        zeros.truncate(count * side**2 * 4)
    report = checked(tmp_path, model.SerializeToString(), spec=BuildSpec(profiles=()), precision=Precision.FP32)
    assert (report.verdict, report.layers and report.layers.computing) == ("built", {"float32": count})


def _without(folder: Path, left_out: str) -> Path:
    """The library's packages in a folder, but for what has a text in its name."""
    for path in rtx_library.fetched().rglob("*"):
        copy = folder / path.relative_to(rtx_library.fetched())
        if path.is_file() and left_out not in path.name:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.symlink_to(path)
    return folder


def test_missing_parser_is_machine_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library without its parser is an error of the machine."""
    folder = _without(tmp_path / "rtx", "onnxparser")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with pytest.raises(EnvironmentFault, match=r"TensorRT-RTX .* does not load: .*onnxparser"):
        checked(tmp_path, convolution())
