"""What a rewrite is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plansmith.records.model import Exporter

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Rewrite:
    """Another form of the same computation, which an exporter gets right.

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


EVERY: frozenset[Exporter] = frozenset({"torchscript", "dynamo", "patched"})

CAPTURES: frozenset[Exporter] = frozenset({"dynamo", "patched"})

TRACER: frozenset[Exporter] = frozenset({"torchscript"})
