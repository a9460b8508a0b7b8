"""An ONNX file tells its inputs and outputs without its weights being read, and a broken one is told as such."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from plansmith.compilers.onnx_files import check_skeleton
from plansmith.errors import RepositoryError
from plansmith.records.model import Tensor
from plansmith.sources.onnx_file import read_skeleton, write_graph
from plansmith.triton.checker.model_files import graph_facts

from ...support.checker.graphs import content, graph, outside, weights


def saved(folder: Path, model: onnx.ModelProto) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(content(model))
    return path


def test_graph_tells_tensors_and_outside(tmp_path: Path) -> None:
    """A graph tells its tensors, versions and what lies outside."""
    model = graph(
        inputs={"ids": (TensorProto.INT64, ["batch", None]), "w": (TensorProto.FLOAT, [2])},
        outputs={"y": (TensorProto.BFLOAT16, ["batch", 7]), "z": (TensorProto.STRING, None)},
        nodes=[helper.make_node("Spin", ["ids"], ["z"], domain="com.example")],
        initializer=[weights("w", 2), outside("v", "v.data", 5)],
    )
    facts = graph_facts(saved(tmp_path, model))
    assert facts.inputs == (Tensor(name="ids", dtype="int64", dims=("batch", "")),)
    assert [tensor.name for tensor in facts.defaults] == ["w"]
    assert facts.tensors["y"] == Tensor(name="y", dtype="bfloat16", dims=("batch", 7))
    assert facts.tensors["z"].dtype == "string"
    assert facts.shaped == {"ids", "w", "y"}
    assert (facts.opset, facts.ir_version, facts.foreign) == (17, 9, ("com.example",))
    assert facts.external == {"v.data": 20}


def test_a_negative_size_is_none(tmp_path: Path) -> None:
    facts = graph_facts(saved(tmp_path, graph(inputs={"x": (TensorProto.FLOAT, [-1, 0, 3])})))
    assert facts.tensors["x"].dims == ("", 0, 3)


def test_nested_operators_told_apart(tmp_path: Path) -> None:
    """Operators inside of branches and of the file's own functions are told apart."""
    branch = helper.make_graph(
        [helper.make_node("Deep", [], ["inner"], domain="com.deep")],
        "branch",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, [1])],
        initializer=[outside("hidden", "hidden.data", 3)],
    )
    model = graph(
        nodes=[
            helper.make_node("If", ["x"], ["z"], then_branch=branch, else_branch=branch),
            helper.make_node("Mine", ["x"], ["m"], domain="com.own"),
        ]
    )
    model.functions.append(
        helper.make_function("com.own", "Mine", ["a"], ["b"], [helper.make_node("Identity", ["a"], ["b"])], [])
    )
    facts = graph_facts(saved(tmp_path, model))
    assert facts.foreign == ("com.deep",)
    assert facts.external == {"hidden.data": 12}


def test_weights_never_read(tmp_path: Path) -> None:
    """Weights are not read however large they are."""
    shape = 16 * 2**20 // 4
    path = saved(tmp_path, graph(initializer=[weights("w", shape)]))
    assert path.stat().st_size > 16 * 2**20
    tracemalloc.start()
    facts = graph_facts(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert facts.inputs
    assert peak < 2**20


def test_skeleton_judged_without_weights(tmp_path: Path) -> None:
    """The checker of ONNX takes a graph without its weights, and refuses it for anything else that is wrong with it."""
    size = 4096
    double = helper.make_node("Add", ["x", "w"], ["z"])
    whole = graph(inputs={"x": (TensorProto.FLOAT, [size])}, nodes=[double], initializer=[weights("w", size)])
    skeleton = read_skeleton(saved(tmp_path, whole))
    assert skeleton.ByteSize() < size
    check_skeleton(skeleton)
    double.attribute.append(helper.make_attribute("unknown", 1))
    wrong = graph(inputs={"x": (TensorProto.FLOAT, [size])}, nodes=[double], initializer=[weights("w", size)])
    with pytest.raises(onnx.checker.ValidationError, match="unknown"):
        check_skeleton(read_skeleton(saved(tmp_path, wrong)))


def test_copy_differs_in_declarations_alone(tmp_path: Path) -> None:
    """A graph that is written with other inputs and outputs from a skeleton is otherwise the file, weights included."""
    path = saved(tmp_path, graph(initializer=[weights("w", 4096)], doc_string="words", value_info=[]))
    skeleton, whole = read_skeleton(path), onnx.load(path)
    for model in (skeleton, whole):
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
        model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "rows"
        model.graph.value_info.append(helper.make_tensor_value_info("known", TensorProto.FLOAT, ["rows"]))
    write_graph(skeleton, path, tmp_path / "copy.onnx")
    assert onnx.load(tmp_path / "copy.onnx") == whole
    with (tmp_path / "copy.onnx").open("r+b") as cut:
        cut.truncate(2000)
    with pytest.raises(ValueError, match="cut off"):
        write_graph(skeleton, tmp_path / "copy.onnx", tmp_path / "again.onnx")


def test_facts_match_library_on_export(tmp_path: Path) -> None:
    """What the library reads of a real export is what is told."""
    model = graph(initializer=[weights("w", 4)], doc_string="words", value_info=[])
    path = saved(tmp_path, model)
    facts, whole = graph_facts(path), onnx.load(path)
    assert [t.name for t in facts.inputs] == [tensor.name for tensor in whole.graph.input]
    assert facts.opset == whole.opset_import[0].version


@pytest.mark.parametrize("part", [0.1, 0.35, 0.5, 0.75, 0.9, 0.99])
def test_cut_file_is_no_graph(part: float, tmp_path: Path) -> None:
    """A file that is cut off is no graph."""
    path = saved(tmp_path, graph(initializer=[weights("w", 100)]))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])
    with pytest.raises(RepositoryError, match="no ONNX graph") as refused:
        graph_facts(path)
    assert refused.value.remedy


@pytest.mark.parametrize(
    "content",
    [b"", b"no ONNX at all", b"\x00" * 64, b"\xff" * 64, b"ftrt" + bytes(60), b"\x3a\xff\xff\xff\xff\x0f"],
    ids=["nothing", "text", "zeros", "ones", "a plan", "a length beyond its end"],
)
def test_non_graph_told(content: bytes, tmp_path: Path) -> None:
    """What is no graph is told as such."""
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(RepositoryError, match="no ONNX graph"):
        graph_facts(path)


def test_endless_nesting_refused(tmp_path: Path) -> None:
    """A graph that is nested without end is refused."""
    nested = b""
    for _ in range(400):  # a graph (7) in an attribute (6) of a node (5) of a graph (1), and so on
        for number in (6, 5, 1):
            nested = bytes([number << 3 | 2]) + _length(nested) + nested
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x3a" + _length(nested) + nested)
    with pytest.raises(RepositoryError, match="nested too deeply"):
        graph_facts(path)


def test_missing_file_named(tmp_path: Path) -> None:
    """A file that is not there is named."""
    with pytest.raises(RepositoryError, match=r"cannot read model\.onnx: No such file"):
        graph_facts(tmp_path / "model.onnx")


def test_exchanged_file_read_again(tmp_path: Path) -> None:
    """A file that was exchanged is read again."""
    path = saved(tmp_path, graph())
    assert graph_facts(path).opset == 17
    saved(tmp_path, graph(opset=18, ir_version=10))
    assert graph_facts(path).opset == 18


def _length(inner: bytes) -> bytes:
    value, result = len(inner), bytearray()
    while value >= 0x80:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*result, value])
