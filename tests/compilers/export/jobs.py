"""Jobs for exporters: a module, its inputs at three shapes, and PyTorch's answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from plansmith.compilers.export.exporters import ExportJob, Probe
from plansmith.compilers.export.torch_export import output_tensors
from plansmith.records.model import Tensor

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Feed = Mapping[str, NDArray[np.generic]]

Sizes = Mapping[str, int]


def drawn(tensors: tuple[Tensor, ...]) -> Callable[[Sizes], Feed]:
    """Standard normal values for every input, others for other sizes."""

    def make(sizes: Sizes) -> Feed:
        rng = np.random.default_rng(sum(sizes.values()))
        shapes = {t.name: [sizes[d] if isinstance(d, str) else d for d in t.dims] for t in tensors}
        return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}

    return make


def job_at(
    module: torch.nn.Module,
    tensors: tuple[Tensor, ...],
    shapes: Mapping[str, Sizes],
    folder: Path,
    make: Callable[[Sizes], Feed] | None = None,
) -> ExportJob:
    """What to export: one output, `y`, of the module."""
    module = module.eval()
    probes = []
    for name, sizes in shapes.items():
        feed = (make or drawn(tensors))(sizes)
        with torch.inference_mode():
            answer = module(*(torch.from_numpy(feed[t.name]) for t in tensors))
        probes.append(Probe(name, sizes, feed, {"y": answer[0].numpy()}))
    return ExportJob(
        module=module,
        inputs=tensors,
        outputs=output_tensors(("y",), probes),
        probes=probes,
        mask_input=None,
        opset=18,
        folder=folder,
    )
