"""What every way of lowering a graph offers to the search for a recipe."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from plansmith.types import Precision

if TYPE_CHECKING:
    import onnx


class Method(Protocol):
    """One way to lower one graph, with all that it needs to know of the data measured once.

    Attributes:
        name: in words, such as "INT8, dynamic, per channel".
        precision: what it lowers to.
        settings: what decides its result, for the recipe.
        lowerable: names of the nodes that it lowers when nobody keeps one high, in the graph's order.
        kept: nodes that it leaves high by itself, by name, with the reason.
        not_validated: what cannot be tried on this machine, in words; empty for nothing.
    """

    name: str
    precision: Precision
    settings: Mapping[str, str]
    lowerable: tuple[str, ...]
    kept: Mapping[str, str]
    not_validated: tuple[str, ...]

    def lower(self, keep: Collection[str]) -> onnx.ModelProto:
        """A lowered copy of the graph.

        Args:
            keep: names of nodes among `lowerable` that stay high.
        """
        ...

    def runnable(self, lowered: onnx.ModelProto) -> onnx.ModelProto:
        """The same numbers as a graph that ONNX Runtime can run on a CPU; most often the lowered graph itself."""
        ...
