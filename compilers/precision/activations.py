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
