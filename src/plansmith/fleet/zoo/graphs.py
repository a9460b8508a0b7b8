"""A written graph, asked at the shapes that PyTorch took."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.compilers.onnxrt import open_session
from plansmith.errors import first_line
from plansmith.fleet.zoo.compare import difference

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from plansmith.fleet.zoo.axes import Shape


class Graph:
    """An ONNX graph in ONNX Runtime.

    Args:
        path: its file.
        outputs: what its outputs are called in PyTorch's answers, in order.
    """

    def __init__(self, path: Path, outputs: Sequence[str]) -> None:
        self._session = open_session(path)
        self._takes = {tensor.name for tensor in self._session.get_inputs()}
        self._outputs = tuple(outputs)
        self._known: dict[str, str] = {}

    def problem_at(self, shape: Shape) -> str:
        """What is not right at a shape, in words; empty where all is. Each form of inputs is run once."""
        form = ", ".join(f"{name} {'x'.join(map(str, array.shape))}" for name, array in shape.feed.items())
        if form not in self._known:
            self._known[form] = self._problem(shape, form)
        return self._known[form]

    def _problem(self, shape: Shape, form: str) -> str:
        try:
            answer = self._answer(shape)
        except Exception as error:  # noqa: BLE001 - ONNX Runtime's errors have no common base
            return f"at {form} ONNX Runtime fails: {first_line(error)}"
        problem = difference(shape.answer, answer)
        return f"at {form} {problem}" if problem else ""

    def _answer(self, shape: Shape) -> dict[str, NDArray[np.generic]]:
        given = {name: array for name, array in shape.feed.items() if name in self._takes}
        return dict(zip(self._outputs, self._session.run(None, given), strict=True))
