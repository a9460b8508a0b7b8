"""Functions that the parts of a model call by a name of their own module of Python: others in their place."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
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
