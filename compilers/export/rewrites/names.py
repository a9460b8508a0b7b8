"""Others in place of what the parts of a model call by a name: of their module of Python, or of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def holders(module: torch.nn.Module, name: str) -> list[Any]:
    """The modules of Python that hold a name, of those that the parts of a model come from."""
    found = {type(part).__module__: sys.modules.get(type(part).__module__) for part in module.modules()}
    return [holder for holder in found.values() if hasattr(holder, name)]


@contextmanager
def in_place_of(module: torch.nn.Module, name: str, other: Callable[[Any], Any]) -> Iterator[None]:
    """Put something in place of what a name stands for, made from that, in every module of Python that holds it."""
    originals = [(holder, getattr(holder, name)) for holder in holders(module, name)]
    for holder, original in originals:
        setattr(holder, name, other(original))
    try:
        yield
    finally:
        for holder, original in originals:
            setattr(holder, name, original)


_NOTHING = object()


@contextmanager
def attributes_set(parts: Sequence[Any], name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Give parts an attribute, made from each; in the end they have again what was their own, or their class's."""
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
