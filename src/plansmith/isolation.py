"""What a run of a model, or an exporter, may leave in a module, undone: modes, attributes, caches, buffers.

Models keep what they saw: tables of positions for the next time, which after a trace are the tracer's own tensors; Swin
of transformers has a smaller window for good once it was asked about a smaller image. Exporters and wrappers turn modes
of training on and off.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@contextmanager
def left_as_it_was(module: torch.nn.Module) -> Iterator[None]:
    """Undo at the end whatever happens to a module and its parts, but for changes inside of parameters."""
    import torch

    attributes = [(part, dict(part.__dict__)) for part in module.modules()]
    containers = [
        (held, held.copy()) for _, known in attributes for held in known.values() if isinstance(held, dict | list)
    ]
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        for part, known in attributes:
            part.__dict__.clear()
            part.__dict__.update(known)
        for held, before in containers:
            _refill(held, before)
        with torch.no_grad():
            for buffer, content in buffers:
                if not torch.equal(buffer, content):
                    buffer.copy_(content)


def _refill(held: Any, before: Any) -> None:
    held.clear()
    if isinstance(held, dict):
        held.update(before)
    else:
        held.extend(before)
