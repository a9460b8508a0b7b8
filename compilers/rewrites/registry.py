"""The rewrites, and which of them a module needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plansmith.types import Exporter

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


def rewrites() -> tuple[Rewrite, ...]:
    """All that there are, in the order in which they are put in force."""
    from plansmith.compilers.rewrites import attention, images

    return (*attention.REWRITES, *images.REWRITES)


@contextmanager
def in_force(module: torch.nn.Module, exporter: Exporter) -> Iterator[tuple[str, ...]]:
    """Put every rewrite in force that a module needs for an exporter; gives their names."""
    with ExitStack() as stack:
        names = []
        for rewrite in rewrites():
            if exporter in rewrite.exporters and rewrite.applies(module):
                stack.enter_context(rewrite.put(module))
                names.append(rewrite.name)
        yield tuple(names)
