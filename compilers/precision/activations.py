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
    import onnx

    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    known = {value.name for value in probe.graph.output}
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in tensors if name not in known)
    with tempfile.TemporaryDirectory(prefix="plansmith-activations-") as folder:
        session = open_session(onnx_files.save(probe, Path(folder)), rewrites="none")
        for feed in feeds:
            yield dict(zip(tensors, session.run(list(tensors), dict(feed)), strict=True))
