"""What a run of a model, or an exporter, may leave in a module, undone: modes, attributes, caches, buffers.

Models keep what they saw: tables of positions for the next time, which after a trace are the tracer's own tensors; Swin
of transformers has a smaller window for good once it was asked about a smaller image. Exporters and wrappers turn modes
of training on and off.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from operator import is_
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


class ModuleSnapshot:
    """A module as it was when this was made, to be put back after every run, for a small part of what a run costs.

    As `left_as_it_was`, and what was written into a buffer in place is told by PyTorch's count of such writes: a model
    with hundreds of buffers would compare them all, for every request.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        hooks = _plain_attributes()
        self._known: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._lists: list[tuple[list[Any], list[Any]]] = []
        self._buffers = [(one, one.detach().clone()) for one in module.buffers() if not one.is_inference()]
        self._writes = [writes_into(one) for one, _ in self._buffers]
        for part in module.modules():
            self._known.append((part.__dict__, dict(part.__dict__)))
            for name, held in part.__dict__.items():
                if isinstance(held, dict) and name not in hooks:
                    self._known.append((held, dict(held)))
                elif isinstance(held, list):
                    self._lists.append((held, list(held)))

    def put_back(self) -> None:
        """Undo whatever happened to the module and its parts since, but for changes inside of other tensors."""
        import torch

        for held, before in self._known:
            if len(held) != len(before) or not all(map(is_, held.values(), before.values())):
                _refill(held, before)
        for listed, earlier in self._lists:
            if len(listed) != len(earlier) or not all(map(is_, listed, earlier)):
                _refill(listed, earlier)
        for number, (buffer, content) in enumerate(self._buffers):
            if writes_into(buffer) != self._writes[number]:
                with torch.no_grad():
                    buffer.copy_(content)
                self._writes[number] = writes_into(buffer)


def writes_into(tensor: torch.Tensor) -> int:
    """How often a tensor was written into: see "In-place correctness checks" in PyTorch's notes on autograd."""
    return tensor._version  # noqa: SLF001 - its name there, too


def _plain_attributes() -> set[str]:
    """The attributes in which every module keeps its hooks."""
    import torch

    return set(vars(torch.nn.Module())) - {"_parameters", "_buffers", "_modules"}


def _refill(held: Any, before: Any) -> None:
    held.clear()
    if isinstance(held, dict):
        held.update(before)
    else:
        held.extend(before)
