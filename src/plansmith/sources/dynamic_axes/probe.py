"""Finding out which axis a model refuses, where nothing says what it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from plansmith.errors import UsageError, first_line
from plansmith.records.model import AxisRange, Dim, InputRange
from plansmith.sources.loaded_model import InputPlan

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ask = Callable[[Mapping[str, int]], Mapping[str, NDArray[np.generic]]]

_SMALL = {"batch": 2}
_SMALL_LENGTH = 16


def explain_failure(
    ask: Ask, plan: InputPlan, axes: Mapping[str, AxisRange], sizes: Mapping[str, int], error: Exception
) -> UsageError:
    """What to tell a person about a model that failed at sizes that were guessed.

    Args:
        ask: runs the model; raises anything where it fails.
        plan: what it is fed with.
        axes: the ranges that it was to be compiled for.
        sizes: where it failed.
        error: how.
    """
    at = ", ".join(f"{axis} {size}" for axis, size in sizes.items()) or "its fixed shape"
    said = first_line(error).rpartition("Status Message: ")[2]  # ONNX Runtime puts its own codes before it
    message = f"the model fails at {at}: {said}"
    base = {a: min(max(_SMALL.get(a, _SMALL_LENGTH), r.min), r.max) for a, r in axes.items()}
    if not sizes:
        return UsageError(message, remedy=f"give low and high of its values in a spec:\n{_inputs_example(plan)}")
    if not _works(ask, base):
        return UsageError(
            message,
            remedy=f"say which sizes it takes: --shapes {_shapes_example(plan, axes)}\n"
            f"or describe them in a spec, with low and high for their values:\n{_inputs_example(plan)}",
        )
    guilty = next((a for a in sizes if sizes[a] != base[a] and not _works(ask, {**base, a: sizes[a]})), None)
    if guilty is None or _is_tied(ask, base, guilty, sizes[guilty]):
        return UsageError(
            message,
            remedy="if two of these axes are one, give them the same name in the spec:\n"
            f"{_inputs_example(plan)}\nelse give smaller shapes: --shapes {_shapes_example(plan, axes)}",
        )
    good = _boundary(ask, base, guilty, sizes[guilty])
    old = axes[guilty]
    low, high = (old.min, good) if sizes[guilty] > base[guilty] else (good, old.max)
    allowed = AxisRange(min=low, opt=min(max(old.opt, low), high), max=high)
    word = "up to" if sizes[guilty] > base[guilty] else "from"
    return UsageError(
        f"{message}\nIt is {guilty!r}: the model works {word} {good}",
        remedy=f"give that range: --shapes {_shapes_example(plan, {**axes, guilty: allowed}, guilty)}",
    )


def _works(ask: Ask, sizes: Mapping[str, int]) -> bool:
    try:
        ask(sizes)
    except Exception:  # noqa: BLE001 - what a model raises is not known; that it does is the answer
        return False
    return True


def _is_tied(ask: Ask, base: Mapping[str, int], axis: str, size: int) -> bool:
    """Whether an axis may have a size when another one, of the same size before, has it too."""
    others = [a for a in base if a != axis and base[a] == base[axis]]
    return any(_works(ask, {**base, axis: size, other: size}) for other in others)


def _boundary(ask: Ask, base: Mapping[str, int], axis: str, bad: int) -> int:
    """The size nearest to `bad` at which the model works, by halving; it works at the base's own size."""
    good = base[axis]
    while abs(bad - good) > 1:
        middle = (good + bad) // 2
        if _works(ask, {**base, axis: middle}):
            good = middle
        else:
            bad = middle
    return good


def _shapes_example(plan: InputPlan, axes: Mapping[str, AxisRange], axis: str = "") -> str:
    """What to type after --shapes: the range of the first input with an axis; of all that vary, without one."""
    told: set[Dim] = set()
    parts = []
    for tensor in plan.tensors:
        names = {d for d in tensor.dims if isinstance(d, str)}
        if not names - told or (axis and (told or axis not in names)):
            continue
        told |= names
        low, usual, high = (
            tuple(getattr(axes[d], end) if isinstance(d, str) else d for d in tensor.dims)
            for end in ("min", "opt", "max")
        )
        parts.append(f"{tensor.name}={InputRange(min=low, opt=usual, max=high)}")
    return f'"{",".join(parts)}"'


def _inputs_example(plan: InputPlan) -> str:
    rows = [f"    {t.name}: {{dims: [{', '.join(map(str, t.dims))}]}}" for t in plan.tensors]
    return "\n".join(["  inputs:", *rows[:4]])
