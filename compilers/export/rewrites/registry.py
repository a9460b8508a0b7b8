"""The rewrites, and which of them a module needs."""

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
    """Those of modules, in the order in which they are put in force."""
    from plansmith.compilers.export.rewrites import attention, experts, padding, positions, recurrent, windowed

    of_sequences = (*windowed.REWRITES, *recurrent.REWRITES, *positions.REWRITES)
    return (*attention.REWRITES, *experts.REWRITES, *of_sequences, *padding.REWRITES)


def function_rewrites() -> tuple[FunctionRewrite, ...]:
    """Those of functions of torch."""
    from plansmith.compilers.export.rewrites import attention, functions, images, scatters

    return (*functions.REWRITES, *images.REWRITES, *scatters.REWRITES, *attention.FUNCTIONS)


@contextmanager
def in_force(module: torch.nn.Module, exporter: Exporter, used: list[str], *, follow: bool = True) -> Iterator[None]:
    """Put every rewrite in force that a module needs for an exporter; the names of the used ones go to a list.

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
        calls = [one for one in function_rewrites() if exporter in one.exporters and one.applies(module)]
        if calls:
            stack.enter_context(functions.in_their_place(calls, used))
        yield
