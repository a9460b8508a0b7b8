"""What flows through a graph: the values of inner tensors, batch by batch, in bounded memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.compilers import onnx_files
from plansmith.compilers.onnxrt import open_session

if TYPE_CHECKING:
    import numpy as np
    import onnx
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]


def stream(model: onnx.ModelProto, feeds: Iterable[Arrays], tensors: Sequence[str]) -> Iterator[Arrays]:
    """The values of some tensors, one mapping a feed; the graph runs as it is written, without rewrites.

    Args:
        model: the graph, with its weights in memory; not changed.
        feeds: inputs, a batch each.
        tensors: inner tensors or outputs; all are held at once for one batch, so ask for as many as fit into memory.
    """
    with tempfile.TemporaryDirectory(prefix="plansmith-activations-") as folder:
        path = _save_with_outputs(model, tensors, Path(folder))
        session = open_session(path, rewrites="none", in_order=True)
        for feed in feeds:
            yield dict(zip(tensors, session.run(list(tensors), dict(feed)), strict=True))


def difference(before: onnx.ModelProto, after: onnx.ModelProto, feeds: Sequence[Arrays]) -> float:
    """The largest error between two graphs' floating-point outputs, relative to each output's magnitude."""
    outputs = [value.name for value in before.graph.output]
    worst = 0.0
    for expected, found in zip(*(stream(m, feeds, outputs) for m in (before, after)), strict=True):
        errors = [_relative(expected[name], found[name]) for name in outputs if expected[name].dtype.kind == "f"]
        worst = max([worst, *errors])
    return worst


def _relative(exact: NDArray[np.generic], found: NDArray[np.generic]) -> float:
    """The largest error, in parts of the magnitude; infinite where only one of the two is a number."""
    import numpy as np

    left, right = exact.astype(np.float64), found.astype(np.float64)
    finite = np.isfinite(left)
    same = left.shape == right.shape and np.array_equal(left[~finite], right[~finite], equal_nan=True)
    if not same or not np.isfinite(right[finite]).all():
        return float("inf")
    magnitude = float(np.sqrt(np.square(left[finite]).mean())) if finite.any() else 0.0
    return float(np.abs(right[finite] - left[finite]).max(initial=0.0)) / (magnitude or 1.0)


def _save_with_outputs(model: onnx.ModelProto, tensors: Sequence[str], folder: Path) -> Path:
    """Write the graph with further outputs; they stand in the model meanwhile, as a copy would hold all weights."""
    import onnx

    outputs = model.graph.output
    own = len(outputs)
    known = {value.name for value in outputs}
    outputs.extend(onnx.ValueInfoProto(name=name) for name in tensors if name not in known)
    try:
        return onnx_files.save(model, folder)
    finally:
        del outputs[own:]
