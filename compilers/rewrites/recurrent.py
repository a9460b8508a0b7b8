"""Recurrences along a sequence, by doubling instead of a step at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from plansmith.compilers.rewrites.registry import EVERY, Rewrite

if TYPE_CHECKING:
    import torch

_SCAN = "mamba_selective_scan"

_DOUBLINGS = 16
"""Steps of the scan: enough for 65,536 positions, and the longest shape of an export is always compared."""


def _owners(module: torch.nn.Module) -> list[Any]:
    """The modules of Python whose selective scan the parts of a model call."""
    owners = {type(part).__module__: sys.modules.get(type(part).__module__) for part in module.modules()}
    return [owner for owner in owners.values() if hasattr(owner, _SCAN)]


@contextmanager
def _doubled(module: torch.nn.Module) -> Iterator[None]:
    originals = [(owner, getattr(owner, _SCAN)) for owner in _owners(module)]
    for owner, _ in originals:
        setattr(owner, _SCAN, selective_scan)
    try:
        yield
    finally:
        for owner, original in originals:
            setattr(owner, _SCAN, original)


def scanned(factors: Any, terms: Any) -> Any:
    """The states s[t] = factors[t] * s[t - 1] + terms[t], with s[-1] = 0.

    After k rounds a state holds the terms of its last 2^k positions (Hillis and Steele, 1986, "Data parallel
    algorithms").

    Args:
        factors: [..., length, width].
        terms: likewise.
    """
    import torch

    places = torch.arange(terms.shape[-2], device=terms.device)
    for round_ in range(_DOUBLINGS):
        earlier = places - 2**round_
        reached = (earlier >= 0)[:, None]
        earlier = earlier.clamp(min=0)
        terms = terms + factors * torch.where(reached, terms.index_select(terms.dim() - 2, earlier), 0.0)
        factors = factors * torch.where(reached, factors.index_select(factors.dim() - 2, earlier), 1.0)
    return terms


def selective_scan(hidden_states: Any, dt: Any, A: Any, B: Any, C: Any, **given: Any) -> Any:  # noqa: N803 - the paper's
    """As transformers' mamba_selective_scan, for a sequence from its beginning.

    Args:
        hidden_states: [batch, inner, length].
        dt: [batch, inner, length].
        A: [inner, state].
        B: [batch, state, length].
        C: likewise.
        given: D, z, delta_bias, delta_softplus and return_last_state; what else there is chooses a kernel.
    """
    import torch

    kind = hidden_states.dtype
    if given.get("delta_bias") is not None:
        dt = dt + given["delta_bias"].to(dt.dtype)[..., None]
    if given.get("delta_softplus"):
        dt = torch.nn.functional.softplus(dt)
    factors = torch.exp(A[None, :, None, :] * dt[..., None])
    terms = dt[..., None] * B.transpose(1, 2)[:, None].float() * hidden_states[..., None].float()
    states = scanned(factors, terms)
    output = (states.to(kind) * C.transpose(1, 2)[:, None]).sum(-1)
    if given.get("D") is not None:
        output = output + hidden_states * given["D"][None, :, None]
    if given.get("z") is not None:
        output = output * torch.nn.functional.silu(given["z"])
    return (output, states[:, :, -1]) if given.get("return_last_state") else output


REWRITES = (
    Rewrite(
        name="selective scan by doubling",
        reason="a loop over the positions of a sequence is unrolled at the length that was traced",
        link="https://github.com/huggingface/optimum/issues/2094",
        exporters=EVERY,
        applies=lambda module: bool(_owners(module)),
        put=_doubled,
    ),
)
