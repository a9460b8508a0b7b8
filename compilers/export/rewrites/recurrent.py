"""Recurrences along a sequence, by doubling instead of a step at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from plansmith.compilers.export.rewrites.base import EVERY, Rewrite
from plansmith.compilers.export.rewrites.names import attributes_set, holders, in_place_of

if TYPE_CHECKING:
    import torch

_DOUBLINGS = 16
"""Steps of the scan: enough for 65,536 positions, and the longest shape of an export is always compared."""


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


def weighted_average(
    time_decay: Any, time_first: Any, key: Any, value: Any, state: Any = None, return_state: bool = False
) -> tuple[Any, Any]:
    """As transformers' rwkv_linear_attention: averages over the past, weighted by e to keys and to decays.

    Args:
        time_decay: [width]; e to it is what an exponent loses at every position.
        time_first: [width]; added to a key at its own position.
        key: [batch, length, width].
        value: likewise.
        state: numerator, denominator and largest exponent of what came before, each [batch, width].
        return_state: give that of all positions, too.
    """
    import torch

    decay = -torch.exp(time_decay)
    before = _nothing(key) if state is None else tuple(state)
    numerator, denominator, largest = _summed(decay, before, key.float(), value.float())
    own = key.float() + time_first
    top = torch.maximum(largest[:, :-1], own)
    past, now = torch.exp(largest[:, :-1] - top), torch.exp(own - top)
    output = (past * numerator[:, :-1] + now * value) / (past * denominator[:, :-1] + now)
    after = [numerator[:, -1], denominator[:, -1], largest[:, -1]] if return_state or state is not None else None
    return output.to(key.dtype), after


_NEVER = -1e38
"""The exponent of what has no weight."""


def _nothing(key: Any) -> tuple[Any, Any, Any]:
    import torch

    zeros = torch.zeros_like(key[:, 0], dtype=torch.float32)
    return zeros, zeros, zeros + _NEVER


def _summed(decay: Any, before: Sequence[Any], key: Any, value: Any) -> tuple[Any, Any, Any]:
    """Numerators, denominators and exponents of the sums up to each position; the first are those from before."""
    import torch

    numerator = torch.cat([before[0][:, None], value], 1)
    denominator = torch.cat([before[1][:, None], torch.ones_like(value)], 1)
    largest = torch.cat([before[2][:, None], key], 1)
    places = torch.arange(largest.shape[1], device=key.device)
    for round_ in range(_DOUBLINGS):
        earlier = places - 2**round_
        reached = (earlier >= 0)[:, None]
        earlier = earlier.clamp(min=0)
        reaching = torch.where(reached, largest.index_select(1, earlier) + decay * 2**round_, _NEVER)
        top = torch.maximum(largest, reaching)
        own, other = torch.exp(largest - top), torch.where(reached, torch.exp(reaching - top), 0.0)
        numerator = own * numerator + other * numerator.index_select(1, earlier)
        denominator = own * denominator + other * denominator.index_select(1, earlier)
        largest = top
    return numerator, denominator, largest


def _gated(hidden_states: Any, recurrent_gate: Any, reset: Any, **_: Any) -> tuple[Any, Any]:
    """As RecurrentGemmaRglru._rnn_scan: whatever came before ends where `reset` says that a text begins.

    Args:
        hidden_states: [batch, length, width].
        recurrent_gate: likewise.
        reset: [batch, length, 1].
    """
    states = scanned((recurrent_gate * ~reset).float(), hidden_states.float())
    return states.to(hidden_states.dtype), states[:, -1]


_GATED = "_rnn_scan"


def _with_gates(module: torch.nn.Module) -> list[Any]:
    return [part for part in module.modules() if hasattr(part, _GATED)]


def _doubled(name: str, reference: str, form: Callable[..., Any]) -> Rewrite:
    """A rewrite of a function that transformers calls by a name."""
    return Rewrite(
        name=reference,
        reason=_UNROLLED,
        link="https://github.com/huggingface/optimum/issues/2094",
        exporters=EVERY,
        applies=lambda module: bool(holders(module, name)),
        put=partial(in_place_of, name=name, other=lambda _: form),
    )


_UNROLLED = "a loop over the positions of a sequence is unrolled at the length that was traced"

REWRITES = (
    _doubled("mamba_selective_scan", "selective scan by doubling", selective_scan),
    _doubled("rwkv_linear_attention", "weighted averages by doubling", weighted_average),
    Rewrite(
        name="gated recurrence by doubling",
        reason=_UNROLLED,
        link="https://github.com/huggingface/transformers/blob/main/src/transformers/models/recurrent_gemma/"
        "modeling_recurrent_gemma.py",
        exporters=EVERY,
        applies=lambda module: bool(_with_gates(module)),
        put=lambda module: attributes_set(_with_gates(module), _GATED, lambda _: _gated),
    ),
)
