"""Small ONNX files with data: a normalisation written out by hand, whose squares leave FP16, and plain products."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from plansmith.config.data import DataSpec

WIDTH, CLASSES = 64, 10
LARGE = 400.0
"""About the largest activation; its square, 160 000, is beyond FP16's 65 504."""

_ROWS = 160


def rows() -> NDArray[np.float32]:
    return np.random.default_rng(3).standard_normal((_ROWS, WIDTH)).astype(np.float32)


def write_rows(folder: Path) -> DataSpec:
    """Data for a graph with an input x."""
    path = folder / "rows.npz"
    np.savez(path, x=rows())
    return DataSpec(path=str(path), calibration=32, evaluation=128)


def normalising(folder: Path) -> Path:
    """x, a product with large results, a normalisation as Pow and ReduceMean, and a product that makes y."""
    rng = np.random.default_rng(4)
    first = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32)
    first *= LARGE / np.abs(rows() @ first).max()
    make = onnx.helper.make_node
    nodes = [
        make("MatMul", ["x", "first"], ["large"], name="first_product"),
        make("ReduceMean", ["large", "last_axis"], ["mean"], name="mean"),
        make("Sub", ["large", "mean"], ["centred"], name="centre"),
        make("Pow", ["centred", "two"], ["squares"], name="square"),
        make("ReduceMean", ["squares", "last_axis"], ["variance"], name="variance"),
        make("Add", ["variance", "epsilon"], ["lifted"], name="lift"),
        make("Sqrt", ["lifted"], ["deviation"], name="root"),
        make("Div", ["centred", "deviation"], ["normal"], name="normalise"),
        make("MatMul", ["normal", "head"], ["y"], name="head_product"),
    ]
    constants: dict[str, NDArray[np.generic]] = {
        "first": first,
        "last_axis": np.array([-1], np.int64),
        "two": np.array(2, np.float32),
        "epsilon": np.array(1e-5, np.float32),
        "head": rng.standard_normal((WIDTH, CLASSES)).astype(np.float32),
    }
    return _write(nodes, constants, CLASSES, folder / "normalising.onnx")


def squares(rows_: NDArray[np.float32], path: Path) -> NDArray[np.float32]:
    """What the Pow of that graph gives."""
    first = onnx.numpy_helper.to_array(onnx.load(path).graph.initializer[0])
    large = rows_ @ first
    result: NDArray[np.float32] = (large - large.mean(axis=1, keepdims=True)) ** 2
    return result


def products(folder: Path) -> Path:
    """x through two products with a Relu between them to y."""
    rng = np.random.default_rng(5)
    make = onnx.helper.make_node
    nodes = [
        make("MatMul", ["x", "first"], ["a"], name="first_product"),
        make("Relu", ["a"], ["b"], name="relu"),
        make("MatMul", ["b", "second"], ["c"], name="second_product"),
        make("Relu", ["c"], ["d"], name="second_relu"),
        make("MatMul", ["d", "third"], ["y"], name="third_product"),
    ]
    constants: dict[str, NDArray[np.generic]] = {
        name: rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) for name in ("first", "second", "third")
    }
    return _write(nodes, constants, WIDTH, folder / "products.onnx")


def elementwise(folder: Path) -> Path:
    """x, multiplied and added to, is y: nothing that INT8 gains from."""
    rng = np.random.default_rng(6)
    make = onnx.helper.make_node
    nodes = [make("Mul", ["x", "factors"], ["m"], name="scale"), make("Add", ["m", "terms"], ["y"], name="shift")]
    constants: dict[str, NDArray[np.generic]] = {
        name: rng.standard_normal(WIDTH).astype(np.float32) for name in ("factors", "terms")
    }
    return _write(nodes, constants, WIDTH, folder / "elementwise.onnx")


def _write(nodes: list[onnx.NodeProto], constants: dict[str, NDArray[np.generic]], width: int, path: Path) -> Path:
    def form(name: str, size: int) -> onnx.ValueInfoProto:
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", size])

    tensors = [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = onnx.helper.make_graph(nodes, path.stem, [form("x", WIDTH)], [form("y", width)], tensors)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9), path)
    return path
