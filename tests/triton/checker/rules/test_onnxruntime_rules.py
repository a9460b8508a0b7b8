"""What Triton's ONNX Runtime backend refuses of a graph and its configuration is found, and what it loads is not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import pytest
from onnx import TensorProto, helper

from plansmith.config.targets import load_target
from plansmith.triton.config.model_config import make_config, text_of

from ....support.checker.backend_rules import broken, findings
from ....support.checker.graphs import content, graph, outside, weights

if TYPE_CHECKING:
    from ....support.checker.written import Written

INT64 = {"ids": (TensorProto.INT64, ["batch", "length"])}
PLAIN = """backend: "onnxruntime"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 3 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 3 ] }
instance_group { kind: KIND_CPU count: 1 }
"""


def of(changes: Mapping[str, str], text: str = PLAIN) -> str:
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def put(written: Written, config: str | None, model: onnx.ModelProto | bytes | None = None, **more: bytes) -> Path:
    """A repository of one model."""
    source = graph() if model is None else model
    file = source if isinstance(source, bytes) else content(source)
    written.add("m", config, {"1/model.onnx": file, **{f"1/{n.replace('_', '.')}": c for n, c in more.items()}})
    return written.root


X, Y = 'name: "x" data_type: TYPE_FP32 dims: [ 3 ]', 'name: "y" data_type: TYPE_FP32 dims: [ 3 ]'
NO_BATCH = {"max_batch_size: 8": "max_batch_size: 0"}
FULL = {X: X.replace("3 ]", "-1, 3 ]"), Y: Y.replace("3 ]", "-1, 3 ]")}
FIXED = graph(inputs={"x": (TensorProto.FLOAT, [4, 3])}, outputs={"y": (TensorProto.FLOAT, [4, 3])})
DEFAULT = graph(
    inputs={"x": (TensorProto.FLOAT, ["b", 3]), "w": (TensorProto.FLOAT, [2])},
    outputs={"y": (TensorProto.FLOAT, ["b", 3])},
    initializer=[weights("w", 2)],
)
TWO = graph(inputs={"x": (TensorProto.FLOAT, ["b", 3]), "mask": (TensorProto.INT64, ["b"])})
NAMED = graph(outputs={"y": (TensorProto.FLOAT, ["b", "wide"])})
HALF = graph(inputs={"x": (TensorProto.BFLOAT16, ["b", 3])})

MISTAKES: dict[str, tuple[str, onnx.ModelProto | None, str]] = {
    "an input of another name (R23)": (of({'"x"': '"input"'}), None, "tensor-name missing-input"),
    "an output of another name (R23)": (of({'"y"': '"output"'}), None, "tensor-name"),
    "an input that is missing": (PLAIN, TWO, "missing-input"),
    "INT32 for INT64 (R4)": (
        of({X: 'name: "ids" data_type: TYPE_INT32 dims: [ -1 ]', "[ 3 ]": "[ -1 ]"}),
        graph(inputs=INT64, outputs={"y": (TensorProto.FLOAT, ["batch", "length"])}),
        "dtype",
    ),
    "FP16 for FP32 in an output (R4)": (of({Y: Y.replace("FP32", "FP16")}), None, "dtype"),
    "BF16, which the backend does not have": (of({X: X.replace("FP32", "BF16")}), HALF, "dtype"),
    "a rank with the batch, where Triton adds it (R7)": (of(FULL), None, "rank"),
    "a rank without the batch, where nobody adds it (R7)": (of(NO_BATCH), None, "rank"),
    "another size": (of({X: X.replace("3 ]", "4 ]")}), None, "dims"),
    "a free dim that the graph fixes": (of({X: X.replace("3 ]", "-1 ]")}), None, "dims"),
    "an output's size that the graph leaves open": (PLAIN, NAMED, "free-output"),
    "a batch that the graph fixes (R6)": (PLAIN, FIXED, "fixed-batch"),
    "a scalar in a batch": (
        of({X: X.replace("3 ]", "1 ]")}),
        graph(inputs={"x": (TensorProto.FLOAT, [])}),
        "fixed-batch",
    ),
    "an optional input in a batch": (
        of({X: f'{X} }} input {{ optional: true name: "w" data_type: TYPE_FP32 dims: [ 2 ]'}),
        DEFAULT,
        "optional-input",
    ),
    "an input with a default that is not optional": (
        of({X: f'{X} }} input {{ name: "w" data_type: TYPE_FP32 dims: [ 2 ]', **NO_BATCH, "[ 3 ]": "[ -1, 3 ]"}),
        DEFAULT,
        "optional-input",
    ),
    "a ragged input of two dims": (of({X: f"{X} allow_ragged_batch: true"}), None, "ragged-input"),
    "an optional input without a default": (
        of({X: f"optional: true {X}", **NO_BATCH, "[ 3 ]": "[ -1, 3 ]"}),
        None,
        "optional-input",
    ),
    "instances that the backend does not know (R9)": (of({"KIND_CPU": "KIND_MODEL"}), None, "kind"),
    "a batch that is left to the backend": ('backend: "onnxruntime"', None, "completed-batch"),
    "dims in full, where the batch is completed": (
        f'backend: "onnxruntime" input {{ {X.replace("3 ]", "-1, 3 ]")} }}',
        None,
        "completed-batch rank",
    ),
    "dims without the batch, where it is completed": (
        f'backend: "onnxruntime" input {{ {X} }}',
        None,
        "completed-batch",
    ),
    "a batch that cannot be, and all else completed": (
        'backend: "onnxruntime" max_batch_size: 4',
        FIXED,
        "fixed-batch",
    ),
    "a control input that is none of the graph": (
        PLAIN + 'sequence_batching { control_input { name: "START" control { kind: CONTROL_SEQUENCE_START'
        " int32_false_true: [ 0, 1 ] } } }",
        None,
        "tensor-name",
    ),
}


@pytest.mark.parametrize(("config", "model", "rule"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistake_found_alone(config: str, model: onnx.ModelProto | None, rule: str, written: Written) -> None:
    """A mistake is found, and no other."""
    assert broken(put(written, config, model)) == {f"onnxruntime.{name}" for name in rule.split()}


SOUND: dict[str, tuple[str | None, onnx.ModelProto | None]] = {
    "all as it is": (PLAIN, None),
    "dims in full without batching": (of({**NO_BATCH, **FULL}), None),
    "a fixed size for a free dim of an input": (
        of({**NO_BATCH, X: X.replace("3 ]", "2, 3 ]"), Y: Y.replace("3 ]", "-1, 3 ]")}),
        None,
    ),
    "a fixed batch without batching": (of({**NO_BATCH, "[ 3 ]": "[ 4, 3 ]"}), FIXED),
    "an input with a default that is left out": (PLAIN, DEFAULT),
    "an optional input with a default": (
        of(
            {
                X: f'{X} }} input {{ optional: true name: "w" data_type: TYPE_FP32 dims: [ 2 ]',
                **NO_BATCH,
                "[ 3 ]": "[ -1, 3 ]",
            }
        ),
        DEFAULT,
    ),
    "outputs that are not all served": (PLAIN, graph(outputs={"y": (TensorProto.FLOAT, ["b", 3])})),
    "an output of unknown rank": (PLAIN, graph(outputs={"y": (TensorProto.FLOAT, None)})),
    "one value a sample": (
        of({X: X.replace("[ 3 ]", "[ 1 ] reshape: { }"), Y: Y.replace("[ 3 ]", "[ 1 ] reshape { shape: [ ] }")}),
        graph(inputs={"x": (TensorProto.FLOAT, ["b"])}, outputs={"y": (TensorProto.FLOAT, ["b"])}),
    ),
    "a reshape to the graph's dims": (
        of({X: X.replace("[ 3 ]", "[ 1, 3 ] reshape { shape: [ 3 ] }")}),
        None,
    ),
    "a scalar without batching": (
        of({**NO_BATCH, X: X.replace("3 ]", "1 ]"), Y: Y.replace("3 ]", "1 ]")}),
        graph(inputs={"x": (TensorProto.FLOAT, [])}, outputs={"y": (TensorProto.FLOAT, [])}),
    ),
    "inputs without outputs, and so with a completed batch": (
        f'backend: "onnxruntime" max_batch_size: 2 input {{ {X} }}',
        None,
    ),
    "a completed configuration with a batch": ('backend: "onnxruntime" max_batch_size: 4', None),
    "weights that are inputs, too, as in files of IR 3": (
        'backend: "onnxruntime" max_batch_size: 4',
        graph(
            inputs={"x": (TensorProto.FLOAT, ["b", 3]), "w": (TensorProto.FLOAT, [2])},
            initializer=[weights("w", 2)],
            ir_version=3,
        ),
    ),
    "strings": (
        of({X: X.replace("FP32", "STRING"), Y: Y.replace("FP32", "STRING")}),
        graph(inputs={"x": (TensorProto.STRING, ["b", 3])}, outputs={"y": (TensorProto.STRING, ["b", 3])}),
    ),
    "a ragged input, and what Triton makes of the batch": (
        of({X: X.replace("3 ]", "-1 ] allow_ragged_batch: true")})
        + 'batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "ends" data_type: TYPE_FP32'
        ' source_input: "x" } batch_output { target_name: "y" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "x" }',
        graph(
            inputs={"x": (TensorProto.FLOAT, ["all"]), "ends": (TensorProto.FLOAT, ["batch"])},
            outputs={"y": (TensorProto.FLOAT, ["all"])},
        ),
    ),
    "instances on GPUs": (of({"KIND_CPU": "KIND_GPU"}), None),
    "a control input of the graph": (
        PLAIN + 'sequence_batching { control_input { name: "mask" control { kind: CONTROL_SEQUENCE_START'
        " int32_false_true: [ 0, 1 ] } } }",
        TWO,
    ),
}


@pytest.mark.parametrize(("config", "model"), SOUND.values(), ids=SOUND.keys())
def test_what_loads_is_passed(config: str, model: onnx.ModelProto | None, written: Written) -> None:
    assert broken(put(written, config, model)) == set()


def test_finding_names_place_and_remedy(written: Written) -> None:
    """A finding names the place and what to write."""
    (finding,) = findings(put(written, of({X: X.replace("FP32", "INT32")})))
    assert (finding.model, finding.place, finding.line, finding.severity) == ("m", "m/config.pbtxt", 3, "error")
    assert finding.message == "x is TYPE_INT32, and float32 in the graph"
    assert finding.remedy == "write data_type: TYPE_FP32"


def test_loaded_versions_looked_at_only(written: Written) -> None:
    """Every version that is loaded is looked at, and no other."""
    text = PLAIN + "version_policy { specific { versions: [ 1, 3 ] } }"
    files = {"1/model.onnx": content(graph()), "2/model.onnx": b"broken", "3/model.onnx": content(FIXED)}
    written.add("m", text, files)
    results = findings(written.root)
    assert {finding.rule for finding in results} == {"onnxruntime.fixed-batch"}
    assert all("(version 3)" in finding.message for finding in results)


@pytest.mark.parametrize(
    ("opset", "ir_version", "rule"),
    [(24, 9, {"onnxruntime.opset"}), (17, 12, {"onnxruntime.ir-version"}), (22, 10, set())],
)
def test_too_new_graph_found(opset: int, ir_version: int, rule: set[str], written: Written) -> None:
    """A graph that is too new for the target's runtime is found."""
    root = put(written, PLAIN, graph(opset=opset, ir_version=ir_version))
    assert broken(root, target=load_target("sagemaker-25.04-cpu")) == rule
    assert broken(root, target=load_target("triton-26.08-cpu")) == set()
    assert broken(root) == set()


OUTSIDE: dict[str, tuple[str, bytes | None, bool]] = {
    "there and whole": ("w.data", bytes(20), True),
    "longer than it has to be": ("w.data", bytes(99), True),
    "not there": ("w.data", None, False),
    "cut off": ("w.data", bytes(19), False),
    "elsewhere on the disk": ("/etc/hostname", bytes(20), False),
    "in another version": ("../2/w.data", bytes(20), False),
    "without a name": ("", bytes(20), False),
}


@pytest.mark.parametrize(("location", "data", "sound"), OUTSIDE.values(), ids=OUTSIDE.keys())
@pytest.mark.parametrize("in_folder", [False, True], ids=["as a file", "as a folder"])
def test_external_weights_beside_graph(
    location: str, data: bytes | None, sound: bool, in_folder: bool, written: Written
) -> None:
    """Weights that lie outside have to be beside the graph."""
    model = content(graph(initializer=[outside("w", location, 5)]))
    inner = "1/model.onnx/" if in_folder else "1/"
    written.add("m", PLAIN, {f"{inner}model.onnx": model, **({f"{inner}w.data": data} if data else {})})
    assert broken(written.root) == (set() if sound else {"onnxruntime.external-data"})


def test_non_graph_file_found(written: Written) -> None:
    """A file that is no graph is found in its place."""
    (finding,) = findings(put(written, PLAIN, b"<html>not found</html>"))
    assert (finding.rule, finding.place) == ("onnxruntime.graph", "m/1/model.onnx")


def test_foreign_operators_need_library(written: Written) -> None:
    """Operators of others need their library."""
    strange = graph(nodes=[helper.make_node("Spin", ["x"], ["z"], domain="com.example")])
    contrib = graph(nodes=[helper.make_node("Gelu", ["x"], ["z"], domain="com.microsoft")])
    named = PLAIN + 'model_operations { op_library_filename: "/opt/ops.so" }'
    for name, config, model in (("a", PLAIN, strange), ("b", PLAIN, contrib), ("c", named, strange)):
        written.add(name, config, {"1/model.onnx": content(model)})
    assert {(finding.model, finding.rule) for finding in findings(written.root)} == {
        ("a", "onnxruntime.custom-operators")
    }


def test_tensorrt_operators_need_accelerator(written: Written) -> None:
    """Operators of TensorRT need its accelerator."""
    model = content(graph(nodes=[helper.make_node("Spin", ["x"], ["z"], domain="trt.plugins")]))
    on_gpu = of({"KIND_CPU": "KIND_GPU"})
    named = "optimization { execution_accelerators { gpu_execution_accelerator { name: '%s' } } }"
    for name, config in (("a", on_gpu), ("b", on_gpu + named % "tensorrt"), ("c", on_gpu + named % "cuda")):
        written.add(name, config, {"1/model.onnx": model})
    models = {finding.model for finding in findings(written.root) if finding.rule == "onnxruntime.custom-operators"}
    assert models == {"a", "c"}


@pytest.mark.parametrize(("size", "rules"), [(4, set()), (5, {"warmup.batch-size"})])
@pytest.mark.parametrize("inputs", [f"input {{ {X} }}", ""], ids=["inputs without outputs", "neither"])
def test_warm_up_held_against_batch(inputs: str, size: int, rules: set[str], written: Written) -> None:
    """A warm-up is held against the batch that the backend completes."""
    value = "data_type: TYPE_FP32 dims: [ 3 ] zero_data: true"
    warmup = f'model_warmup {{ batch_size: {size} inputs {{ key: "x" value {{ {value} }} }} }}'
    put(written, f'backend: "onnxruntime" {inputs} {warmup}')
    assert {finding.rule for finding in written.findings() if finding.rule.startswith("warmup.")} == rules


def test_uncompleting_server_left_to_core(written: Written) -> None:
    """A server that completes nothing is left to the rules of its core."""
    root = put(written, 'backend: "onnxruntime"')
    assert broken(root, arguments=["--disable-auto-complete-config"]) == set()


def test_other_backends_left_alone(written: Written) -> None:
    """Models of other backends are left alone."""
    written.add("m", PLAIN.replace("onnxruntime", "openvino"), {"1/model.onnx": b"whatever"})
    assert broken(written.root) == set()


def test_own_configuration_passes(written: Written) -> None:
    """A configuration of ours is passed."""
    from plansmith.records.model import Component, Device, EngineKind, Tensor
    from plansmith.records.release import Package
    from plansmith.triton.config.model_config import interface_of

    tensors = {"x": Tensor(name="x", dtype="float32", dims=("batch", 3))}
    component = Component(
        file="model.onnx",
        external_files=(),
        inputs=(tensors["x"],),
        outputs=(Tensor(name="y", dtype="float32", dims=("batch", 3)),),
        opset=17,
        ir_version=9,
    )
    for batch in (0, 1, 8):
        package = Package(
            model=f"ours{batch}",
            config_file="config.pbtxt",
            model_files=("model.onnx",),
            max_batch_size=batch,
            interface=interface_of(component),
        )
        device: Device = "cpu"
        text = text_of(make_config(package, EngineKind.ONNXRUNTIME, device))
        written.add(package.model, text, {"1/model.onnx": content(graph())})
    assert broken(written.root, target=load_target("local-cpu")) == set()
