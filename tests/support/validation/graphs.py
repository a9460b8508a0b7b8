"""An ONNX graph under the knife: the few operations that defects and rewrites are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from plansmith.compilers import onnx_files
from plansmith.records.engine import Engine
from plansmith.records.model import Component, EngineKind, OnnxModel, Precision
from plansmith.records.validation import ValidationReport
from plansmith.validation.gate import Candidate, validate

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
    from numpy.typing import NDArray

WEIGHTS_FILE = "weights.bin"


class Graph:
    """A graph whose weights stay in a file beside it; only those that are changed are carried inside.

    Args:
        model: the graph, without its external data.
        folder: holds the weights, and is where changed graphs go: external data has relative paths, and
            onnx refuses links.
    """

    def __init__(self, model: ModelProto, folder: Path) -> None:
        self.model = model
        self.folder = folder
        self._added = 0

    @property
    def nodes(self) -> RepeatedCompositeFieldContainer[NodeProto]:
        """The nodes, in order."""
        return self.model.graph.node

    def node(self, ending: str) -> NodeProto:
        """The one node whose name ends so."""
        (match,) = [n for n in self.nodes if n.name.endswith(ending)]
        return match

    def of_type(self, op_type: str) -> list[NodeProto]:
        """All nodes of an operator."""
        return [n for n in self.nodes if n.op_type == op_type]

    def maker(self, tensor: str) -> NodeProto:
        """The node that makes a tensor."""
        (match,) = [n for n in self.nodes if tensor in n.output]
        return match

    def value(self, tensor: str) -> NDArray[Any]:
        """What a Constant node makes."""
        return numpy_helper.to_array(attribute(self.maker(tensor), "value").t)

    def add(
        self, op_type: str, inputs: Sequence[str], *, before: NodeProto, outputs: Sequence[str] = (), **attributes: Any
    ) -> str:
        """Put a node before another; the name of its first output, which is new unless `outputs` are given."""
        self._added += 1
        name = f"added_{self._added}"
        new_node = helper.make_node(op_type, inputs, outputs or [name], name=name, **attributes)
        self.nodes.insert(self._place(before), new_node)
        return new_node.output[0]

    def follow(self, node: NodeProto, op_type: str, others: Sequence[str] = (), **attributes: Any) -> None:
        """Send what a node makes through another operator, for all its users; `others` are its further inputs."""
        output_name = node.output[0]
        node.output[0] = f"{output_name}_before"
        new_node = helper.make_node(
            op_type, [node.output[0], *others], [output_name], name=f"{node.name}_after", **attributes
        )
        self.nodes.insert(self._place(node) + 1, new_node)

    def bypass(self, node: NodeProto, *, kept: int) -> None:
        """Remove a node: its users get its input number `kept`."""
        self.give_users(node.output[0], node.input[kept])
        self.nodes.remove(node)

    def give_users(self, old: str, new: str) -> None:
        """Give every user of a tensor another one."""
        for node in self.nodes:
            node.input[:] = [new if name == old else name for name in node.input]

    def constant(self, value: NDArray[Any]) -> str:
        """A new initialiser; its name."""
        name = f"constant_{len(self.model.graph.initializer)}"
        self.model.graph.initializer.append(numpy_helper.from_array(value, name))
        return name

    def weight(self, name: str) -> NDArray[Any]:
        """An initialiser's values, to be changed and set again."""
        return numpy_helper.to_array(self._initialiser(name), base_dir=str(self.folder)).copy()

    def set_weight(self, name: str, array: NDArray[Any]) -> None:
        """Write an initialiser's values into the graph."""
        self._initialiser(name).CopyFrom(numpy_helper.from_array(array, name))

    def _initialiser(self, name: str) -> TensorProto:
        (match,) = [t for t in self.model.graph.initializer if t.name == name]
        return match

    def _place(self, node: NodeProto) -> int:
        return next(i for i, n in enumerate(self.nodes) if n.name == node.name)


Change = Callable[[Graph], None]
"""A defect or a rewrite: changes a graph in place."""


def attribute(node: NodeProto, name: str) -> AttributeProto:
    """A node's attribute, to be changed."""
    (match,) = [a for a in node.attribute if a.name == name]
    return match


def scalar(number: float, dtype: type[np.generic]) -> NDArray[Any]:
    """A number as an array without axes."""
    return np.array(number, dtype)


@dataclass(frozen=True)
class Exported:
    """What plansmith exported of a model, and its graph to be changed.

    Args:
        onnx: the record of the export; the reference's files lie in `folder`.
        folder: where the export lies; its graph keeps its weights in a file of their own.
    """

    onnx: OnnxModel
    folder: Path

    def graph(self) -> Graph:
        """The exported graph, to be changed."""
        return Graph(onnx.load(self.folder / self.onnx.components["model"].file, load_external_data=False), self.folder)

    def judge(self, graph: Graph, name: str) -> ValidationReport:
        """Write a changed graph and send it through the gate.

        Args:
            graph: the candidate.
            name: of its file, which is removed again; no other test may use it.
        """
        path = graph.folder / f"{name}.onnx"
        try:
            onnx.save(graph.model, path)
            return self.judge_file(path)
        finally:
            path.unlink(missing_ok=True)

    def judge_file(self, path: Path) -> ValidationReport:
        """Send a graph, which must be a valid one, through the gate."""
        onnx.checker.check_model(path)
        component = onnx_files.describe(path).model_copy(update={"file": path.name})
        return validate(
            Candidate(engine_of(component), path.parent), self.onnx, self.folder, overrides={}, progress=silent
        )


def engine_of(component: Component) -> Engine:
    """The record of an engine of one graph."""
    return Engine(
        kind=EngineKind.ONNXRUNTIME,
        components={"model": component},
        precision=Precision.FP32,
        options={},
        toolchain={"onnxruntime": "of the tests"},
    )


def silent(_: str) -> None:
    """Be told of progress and say nothing."""
