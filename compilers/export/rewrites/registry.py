"""Rewrite registry, and the selection of the rewrites that a module needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from plansmith.compilers.export.rewrites.base import TRACER, Rewrite
from plansmith.records.model import Exporter

if TYPE_CHECKING:
    import torch

    from plansmith.compilers.export.rewrites.functions import FunctionRewrite


def module_rewrites() -> tuple[Rewrite, ...]:
    """Return the module rewrites, in order of application."""
    from plansmith.compilers.export.rewrites import attention, layers

    of_sequences = (*attention.WINDOW_REWRITES, *layers.RECURRENT_REWRITES, *attention.POSITION_REWRITES)
    return (*attention.REWRITES, *layers.EXPERT_REWRITES, *of_sequences, *layers.PADDING_REWRITES)


def function_rewrites() -> tuple[FunctionRewrite, ...]:
    """Return the rewrites of torch functions."""
    from plansmith.compilers.export.rewrites import attention, functions

    return (*functions.REWRITES, *functions.IMAGE_REWRITES, *functions.SCATTER_REWRITES, *attention.FUNCTIONS)


@contextmanager
def in_force(module: torch.nn.Module, exporter: Exporter, used: list[str], *, follow: bool = True) -> Iterator[None]:
    """Apply every rewrite that a module needs for an exporter; the names of those used are added to a list.

    Args:
        module: in whose parts and files they act.
        exporter: the one that is about to see the module.
        used: the list.
        follow: what Python makes of sizes, where the exporter writes constants of that.
    """
    from plansmith.compilers.export.rewrites import functions, numbers

    with ExitStack() as stack:
        for rewrite in module_rewrites():
            if exporter in rewrite.exporters and rewrite.applies(module):
                stack.enter_context(rewrite.put(module))
                used.append(rewrite.name)
        if follow and exporter in TRACER:
            stack.enter_context(numbers.followed(module, used))
        calls = [entry for entry in function_rewrites() if exporter in entry.exporters and entry.applies(module)]
        if calls:
            stack.enter_context(functions.in_their_place(calls, used))
        yield
