"""Rewrite base class, and rewrites that replace a function by its name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plansmith.records.model import Exporter

if TYPE_CHECKING:
    import torch

EVERY: frozenset[Exporter] = frozenset({"torchscript", "dynamo", "patched"})
CAPTURES: frozenset[Exporter] = frozenset({"dynamo", "patched"})
TRACER: frozenset[Exporter] = frozenset({"torchscript"})
_NOTHING = object()


@dataclass(frozen=True)
class Rewrite:
    """Rewrite: an equivalent form of a computation that an exporter handles correctly.

    Args:
        name: what is recorded of it.
        reason: what goes wrong without it.
        link: where that is known, or where the code stands that it is about.
        exporters: those that need it.
        applies: whether a module holds what it is about.
        put: puts it in force for a module; the end of the context takes it away.
    """

    name: str
    reason: str
    link: str
    exporters: frozenset[Exporter]
    applies: Callable[[torch.nn.Module], bool]
    put: Callable[[torch.nn.Module], AbstractContextManager[None]]


def holders(module: torch.nn.Module, name: str) -> list[Any]:
    """Return the Python modules of a model's parts that define a name."""
    candidates = {type(part).__module__: sys.modules.get(type(part).__module__) for part in module.modules()}
    return [holder for holder in candidates.values() if hasattr(holder, name)]


@contextmanager
def in_place_of(module: torch.nn.Module, name: str, other: Callable[[Any], Any]) -> Iterator[None]:
    """Patch a name in every Python module that defines it; the replacement is made from the original."""
    originals = [(holder, getattr(holder, name)) for holder in holders(module, name)]
    for holder, original in originals:
        setattr(holder, name, other(original))
    try:
        yield
    finally:
        for holder, original in originals:
            setattr(holder, name, original)


@contextmanager
def attributes_set(parts: Sequence[Any], name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Set an attribute on parts, made from each, and restore the original afterwards."""
    own = [vars(part).get(name, _NOTHING) for part in parts]
    for part, value in [(part, make(part)) for part in parts]:
        setattr(part, name, value)
    try:
        yield
    finally:
        for part, value in zip(parts, own, strict=True):
            if value is _NOTHING:
                delattr(part, name)
            else:
                setattr(part, name, value)
