"""Layer rewrites: mixtures of experts, padding to whole patches, recurrences."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from plansmith.compilers.export.rewrites.base import CAPTURES, EVERY, Rewrite, attributes_set, holders, in_place_of

if TYPE_CHECKING:
    import torch


_REACHED = "expert_hit"
"""What transformers calls the experts that got a token, in all its loops."""

EXPERT_REWRITES = (
    Rewrite(
        name="every expert asked",
        reason="a loop over the experts that got a token is written down with those of the traced text",
        link="https://github.com/huggingface/transformers/issues/38518",
        exporters=EVERY,
        applies=lambda module: bool(loops(module)),
        put=lambda module: attributes_set(loops(module), "forward", _asking_all),
    ),
    Rewrite(
        name="routers left in place",
        reason="torch.export cannot swap the weights of a layer that is moved to the kind it is of already",
        link="https://github.com/pytorch/pytorch/issues/186796",
        exporters=CAPTURES,
        applies=lambda module: bool(_routers(module)),
        put=lambda module: attributes_set([router.classifier for router in _routers(module)], "to", _moved),
    ),
)
_PADS = "maybe_pad"
_SAME = "apply_tf_padding"
PADDING_REWRITES = (
    Rewrite(
        name="padding to the same size",
        reason="sizes made whole numbers of Python's own, and what is chosen by them, are constants in a trace",
        link="https://github.com/huggingface/transformers/blob/main/src/transformers/models/mobilenet_v2/"
        "modeling_mobilenet_v2.py",
        exporters=EVERY,
        applies=lambda module: bool(holders(module, _SAME)),
        put=lambda module: in_place_of(module, _SAME, _with_other_form),
    ),
    Rewrite(
        name="padding without branches",
        reason="a branch that pads only sizes that are not whole is written down as it was taken",
        link="https://github.com/huggingface/transformers/blob/main/src/transformers/models/swin/modeling_swin.py",
        exporters=EVERY,
        applies=lambda module: bool(_padded(module)),
        put=lambda module: attributes_set(_padded(module), _PADS, _padding),
    ),
)
_DOUBLINGS = 16
"""Steps of the scan: enough for 65,536 positions, and the longest shape of an export is always compared."""

_NEVER = -1e38
"""The exponent of what has no weight."""

_GATED = "_rnn_scan"
_UNROLLED = "a loop over the positions of a sequence is unrolled at the length that was traced"


def loops(module: torch.nn.Module) -> list[Any]:
    """Return the parts of a model that loop over the experts."""
    return [part for part in module.modules() if _is_loop(part)]


def _is_loop(part: Any) -> bool:
    code = getattr(inspect.unwrap(type(part).forward), "__code__", None)
    if code is None or _REACHED not in code.co_varnames:
        return False
    # Where transformers lets one choose how experts are computed, the loop is but one of the ways.
    return getattr(getattr(part, "config", None), "_experts_implementation", None) in (None, "eager")


class _Number(int):
    """An expert's index, in place of its row in the result of `nonzero`."""

    def __getitem__(self, place: int) -> int:
        return int(self)

    def item(self) -> int:
        """Return the index, as a tensor would."""
        return int(self)


class _Numbers(list[_Number]):
    """The indices of all experts, in place of the column of `nonzero` with only those that have a token."""

    def squeeze(self, *_: int) -> _Numbers:
        """Return self, as squeezing a column would: its rows are numbers already."""
        return self

    view = squeeze


class _Chosen:
    """Dense expert evaluation: runs an expert's loop body on all tokens in place of its own.

    Args:
        experts: how many there are; a mask may have one more row, for no expert.
    """

    def __init__(self, experts: int | None) -> None:
        self._experts = experts
        self._mask: Any = None
        self._places: Any = None
        self._tokens: Any = None

    def instead(self, name: str, args: Sequence[Any]) -> Any:
        """The replacement for a torch call in the loop; NotImplemented where the call stays as it is."""
        if name == "nonzero" and args[0].dim() == 1:
            rows = int(args[0].shape[0])
            return _Numbers(map(_Number, range(self._experts if self._experts == rows - 1 else rows)))
        if name == "where" and len(args) == 1:
            return self._all_tokens(args[0])
        if name == "__getitem__" and isinstance(args[1], _Number):
            return args[0][int(args[1])].unsqueeze(0)
        if name == "squeeze" and args[0].dim() == 2:
            return args[0]  # [choices, tokens] already; what is one of them by chance is no dim to take away
        if name == "__getitem__" and self._is_weight(args[1]):
            return (args[0] * self._mask.transpose(0, 1).to(args[0].dtype)).sum(-1, keepdim=len(args[1]) == 3)
        return NotImplemented

    def _all_tokens(self, mask: Any) -> tuple[Any, Any]:
        """Select every token in place of those in a mask [choices, tokens]; the weight distinguishes the choices."""
        import torch

        self._mask = mask
        self._tokens = torch.arange(mask.shape[1], device=mask.device)
        self._places = torch.zeros_like(self._tokens)
        return self._places, self._tokens

    def _is_weight(self, key: Any) -> bool:
        """Whether a key indexes the weights [tokens, choices] of an expert's tokens, with or without one more dim."""
        return isinstance(key, tuple) and len(key) in (2, 3) and key[0] is self._tokens and key[1] is self._places


def _asking_all(part: Any) -> Callable[..., Any]:
    from torch.overrides import TorchFunctionMode

    original = part.forward

    class All(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self._chosen = _Chosen(getattr(part, "num_experts", None))

        def __torch_function__(
            self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            result = self._chosen.instead(getattr(func, "__name__", ""), args)
            return func(*args, **(kwargs or {})) if result is NotImplemented else result

    def forward(*args: Any, **kwargs: Any) -> Any:
        with All():
            return original(*args, **kwargs)

    return forward


def _routers(module: torch.nn.Module) -> list[Any]:
    return [part for part in module.modules() if hasattr(part, "classifier") and hasattr(part, "expert_capacity")]


def _moved(part: Any) -> Callable[..., Any]:
    """Like `Module.to`, but weights already of the requested type stay the same tensors."""
    import torch

    original = part.to

    def to(*args: Any, **kwargs: Any) -> Any:
        target = args[0] if len(args) == 1 and not kwargs else None
        if isinstance(target, torch.dtype) and all(weight.dtype is target for weight in part.parameters()):
            return part
        return original(*args, **kwargs)

    return to


def _padding(part: Any) -> Callable[..., Any] | None:
    """A replacement for a part's `maybe_pad`, for any input; None where its kind is unknown."""
    if not hasattr(part, _PADS):
        return None
    if hasattr(part, "projection") and hasattr(part, "patch_size"):
        sides = part.patch_size if isinstance(part.patch_size, tuple | list) else (part.patch_size,) * 2
        return _to_patches(int(sides[0]), int(sides[1]))
    return _to_pairs if hasattr(part, "reduction") else None


def _to_patches(rows: int, columns: int) -> Callable[..., Any]:
    """Pad images [batch, channels, height, width] to whole patches."""

    def pad(pixel_values: Any, height: Any, width: Any) -> Any:
        import torch

        missing = (0, (columns - width % columns) % columns, 0, (rows - height % rows) % rows)
        return torch.nn.functional.pad(pixel_values, missing)

    return pad


def _to_pairs(input_feature: Any, height: Any, width: Any) -> Any:
    """Pad feature maps [batch, height, width, channels] to pairs of rows and columns."""
    import torch

    return torch.nn.functional.pad(input_feature, (0, 0, 0, width % 2, 0, height % 2))


def _padded(module: torch.nn.Module) -> list[Any]:
    return [part for part in module.modules() if _padding(part) is not None]


def padded_to_same(features: Any, conv_layer: Any) -> Any:
    """Padding as transformers' apply_tf_padding, so that a convolution gives ceil(size / stride); [..., height, width].

    TensorFlow's "SAME": https://www.tensorflow.org/api_docs/python/tf/nn#notes_on_padding_2
    """
    import torch

    if any(1 < kernel < stride for kernel, stride in zip(conv_layer.kernel_size, conv_layer.stride, strict=True)):
        return NotImplemented
    missing: list[Any] = []
    for place in (1, 0):
        kernel, stride, gap = (getattr(conv_layer, name)[place] for name in ("kernel_size", "stride", "dilation"))
        size = features.shape[place - 2]
        # Never negative: a kernel of one takes every stride-th element as it is.
        whole = ((size + stride - 1) // stride - 1) * stride + kernel - size if kernel >= stride else 0
        missing += [whole // 2 * gap, (whole - whole // 2) * gap]
    return torch.nn.functional.pad(features, missing)


def _with_other_form(original: Callable[..., Any]) -> Callable[..., Any]:
    def pad(features: Any, conv_layer: Any) -> Any:
        padded = padded_to_same(features, conv_layer)
        return original(features, conv_layer) if padded is NotImplemented else padded

    return pad


def scanned(factors: Any, terms: Any) -> Any:
    """Scan: return the states s[t] = factors[t] * s[t - 1] + terms[t], with s[-1] = 0.

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


def selective_scan(hidden_states: Any, dt: Any, A: Any, B: Any, C: Any, **options: Any) -> Any:  # noqa: N803 - the paper's
    """Selective scan as transformers' mamba_selective_scan, for a sequence from its start.

    Args:
        hidden_states: [batch, inner, length].
        dt: [batch, inner, length].
        A: [inner, state].
        B: [batch, state, length].
        C: likewise.
        options: D, z, delta_bias, delta_softplus and return_last_state; what else there is chooses a kernel.
    """
    import torch

    kind = hidden_states.dtype
    if options.get("delta_bias") is not None:
        dt = dt + options["delta_bias"].to(dt.dtype)[..., None]
    if options.get("delta_softplus"):
        dt = torch.nn.functional.softplus(dt)
    factors = torch.exp(A[None, :, None, :] * dt[..., None])
    terms = dt[..., None] * B.transpose(1, 2)[:, None].float() * hidden_states[..., None].float()
    states = scanned(factors, terms)
    output = (states.to(kind) * C.transpose(1, 2)[:, None]).sum(-1)
    if options.get("D") is not None:
        output = output + hidden_states * options["D"][None, :, None]
    if options.get("z") is not None:
        output = output * torch.nn.functional.silu(options["z"])
    return (output, states[:, :, -1]) if options.get("return_last_state") else output


def weighted_average(
    time_decay: Any, time_first: Any, key: Any, value: Any, state: Any = None, return_state: bool = False
) -> tuple[Any, Any]:
    """Linear attention as transformers' rwkv_linear_attention.

    Averages over the past, weighted by e to keys and decays.

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


def _nothing(key: Any) -> tuple[Any, Any, Any]:
    import torch

    zeros = torch.zeros_like(key[:, 0], dtype=torch.float32)
    return zeros, zeros, zeros + _NEVER


def _summed(decay: Any, before: Sequence[Any], key: Any, value: Any) -> tuple[Any, Any, Any]:
    """Numerators, denominators and exponents of the prefix sums at each position; the first are the incoming state."""
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
        own, earlier_weight = torch.exp(largest - top), torch.where(reached, torch.exp(reaching - top), 0.0)
        numerator = own * numerator + earlier_weight * numerator.index_select(1, earlier)
        denominator = own * denominator + earlier_weight * denominator.index_select(1, earlier)
        largest = top
    return numerator, denominator, largest


def _gated(hidden_states: Any, recurrent_gate: Any, reset: Any, **_: Any) -> tuple[Any, Any]:
    """Like RecurrentGemmaRglru._rnn_scan: `reset` clears the state where a text begins.

    Args:
        hidden_states: [batch, length, width].
        recurrent_gate: likewise.
        reset: [batch, length, 1].
    """
    states = scanned((recurrent_gate * ~reset).float(), hidden_states.float())
    return states.to(hidden_states.dtype), states[:, -1]


def _with_gates(module: torch.nn.Module) -> list[Any]:
    return [part for part in module.modules() if hasattr(part, _GATED)]


def _doubled(name: str, reference: str, form: Callable[..., Any]) -> Rewrite:
    """A rewrite of a function that transformers calls by name."""
    return Rewrite(
        name=reference,
        reason=_UNROLLED,
        link="https://github.com/huggingface/optimum/issues/2094",
        exporters=EVERY,
        applies=lambda module: bool(holders(module, name)),
        put=partial(in_place_of, name=name, other=lambda _: form),
    )


RECURRENT_REWRITES = (
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
