"""Mixtures of experts whose code goes through the experts that got a token: every expert is asked instead.

The number of experts that a text reaches depends on the text. A tracer writes down those that its own text reached, and
fails, or leaves some out, at another one; torch.export refuses. Asked for every token, with a weight of zero where the
router chose others, all experts have the same shapes for every text. The price is what those others compute.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from plansmith.compilers.export.rewrites.base import CAPTURES, EVERY, Rewrite
from plansmith.compilers.export.rewrites.names import attributes_set

if TYPE_CHECKING:
    import torch

_REACHED = "expert_hit"
"""What transformers calls the experts that got a token, in all its loops."""


def loops(module: torch.nn.Module) -> list[Any]:
    """The parts of a model that go through the experts with a token."""
    return [part for part in module.modules() if _is_loop(part)]


def _is_loop(part: Any) -> bool:
    code = getattr(inspect.unwrap(type(part).forward), "__code__", None)
    if code is None or _REACHED not in code.co_varnames:
        return False
    # Where transformers lets one choose how experts are computed, the loop is but one of the ways.
    return getattr(getattr(part, "config", None), "_experts_implementation", None) in (None, "eager")


class _Number(int):
    """The number of an expert, as the row of `nonzero` that would tell of it."""

    def __getitem__(self, place: int) -> int:
        return int(self)

    def item(self) -> int:
        """As of a tensor."""
        return int(self)


class _Numbers(list[_Number]):
    """The numbers of all experts, as the column of `nonzero` that would hold those with a token."""

    def squeeze(self, *_: int) -> _Numbers:
        """As of a column: its rows are numbers already."""
        return self

    view = squeeze


class _Chosen:
    """What an expert's loop does with its tokens, done with all of them.

    Args:
        experts: how many there are; a mask may have one more row, for no expert.
    """

    def __init__(self, experts: int | None) -> None:
        self._experts = experts
        self._mask: Any = None
        self._places: Any = None
        self._tokens: Any = None

    def instead(self, name: str, args: Sequence[Any]) -> Any:
        """The result of a call of torch in the loop, NotImplemented where it stays as it is."""
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
        """Every token in place of those in a mask [choices, tokens]; the choices are told apart by the weight."""
        import torch

        self._mask = mask
        self._tokens = torch.arange(mask.shape[1], device=mask.device)
        self._places = torch.zeros_like(self._tokens)
        return self._places, self._tokens

    def _is_weight(self, key: Any) -> bool:
        """Whether a key takes the weights [tokens, choices] of an expert's tokens, with one more dim or without."""
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
    """As `Module.to`, but that weights which are of the wanted kind stay the tensors that they are."""
    import torch

    original = part.to

    def to(*args: Any, **kwargs: Any) -> Any:
        wanted = args[0] if len(args) == 1 and not kwargs else None
        if isinstance(wanted, torch.dtype) and all(weight.dtype is wanted for weight in part.parameters()):
            return part
        return original(*args, **kwargs)

    return to


REWRITES = (
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
