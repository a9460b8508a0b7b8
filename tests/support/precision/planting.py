"""What a mistake of lowering is, and what it takes to plant one into a graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from plansmith.compilers.precision.graph import Graph
from plansmith.records.model import EngineKind

Plant = Callable[[Graph], onnx.ModelProto | None]
BOTH = (EngineKind.TENSORRT, EngineKind.ONNXRUNTIME)
TENSORRT = (EngineKind.TENSORRT,)


@dataclass(frozen=True)
class Mistake:
    """What is planted, into which graph, and what has to be found by the lint for which engines."""

    name: str
    into: str
    finding: str
    engines: tuple[EngineKind, ...]
    plant: Plant


def registrar(mistakes: list[Mistake]) -> Callable[..., Callable[[Plant], Plant]]:
    """A decorator that adds a function to a list, as the mistake that it plants."""

    def mistake(into: str, finding: str, *engines: EngineKind) -> Callable[[Plant], Plant]:
        def add(plant: Plant) -> Plant:
            mistakes.append(Mistake(plant.__name__, into, finding, engines, plant))
            return plant

        return add

    return mistake


def node_of(graph: Graph, name: str) -> onnx.NodeProto:
    return next(node for node in graph.model.graph.node if node.name == name)


def value_of(graph: Graph, name: str) -> NDArray[Any]:
    return onnx.numpy_helper.to_array(next(t for t in graph.model.graph.initializer if t.name == name))


def give(graph: Graph, name: str, value: NDArray[np.generic]) -> None:
    tensor = next(t for t in graph.model.graph.initializer if t.name == name)
    tensor.CopyFrom(onnx.numpy_helper.from_array(value, name))


def scale_of(value: float) -> NDArray[np.float32]:
    return np.asarray(value, np.float32)
