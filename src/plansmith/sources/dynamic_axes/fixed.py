"""Plans of inputs with fewer axes: some have one size for good, others always have that of another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from plansmith.data.sample import Sample
from plansmith.records.model import AxisRange, Dim, Tensor
from plansmith.sources.inputs.collate import require_one_size
from plansmith.sources.loaded_model import Align, Encoded, InputPlan

T = TypeVar("T")


def with_fixed(plan: InputPlan, sizes: Mapping[str, int]) -> InputPlan:
    """A plan in which some axes have one size for good."""
    if not sizes:
        return plan
    ranges = {axis: AxisRange(min=size, opt=size, max=size) for axis, size in sizes.items()}
    return replace(
        _without(plan, sizes, lambda axis: sizes[axis]),
        make=lambda asked: plan.make({**asked, **sizes}),
        encode=lambda samples, axes, align: plan.encode(samples, {**axes, **ranges}, align),
    )


def with_tied(plan: InputPlan, tied: Mapping[str, str]) -> InputPlan:
    """A plan in which some axes are others: the dims of both have one name, be they of one tensor or of two."""
    if not tied:
        return plan
    changed = _without(plan, tied, lambda axis: tied[axis])

    def encode(samples: Sequence[Sample], axes: Mapping[str, AxisRange], align: Align) -> Encoded:
        encoded = plan.encode(samples, with_followers(axes, tied), align)
        require_one_size(changed.tensors, samples, encoded.feed)
        return encoded

    return replace(changed, make=lambda asked: plan.make(with_followers(asked, tied)), encode=encode)


def with_followers(known: Mapping[str, T], tied: Mapping[str, str]) -> dict[str, T]:
    """What is known of axes, and the same of those that are tied to them."""
    return {**known, **{axis: known[leader] for axis, leader in tied.items()}}


def _without(plan: InputPlan, axes: Mapping[str, object], other: Callable[[str], Dim]) -> InputPlan:
    """A plan with other dims in the place of some axes."""

    def changed(tensor: Tensor) -> Tensor:
        dims = tuple(other(d) if isinstance(d, str) and d in axes else d for d in tensor.dims)
        return tensor.model_copy(update={"dims": dims})

    return replace(
        plan,
        tensors=tuple(changed(tensor) for tensor in plan.tensors),
        axes={axis: r for axis, r in plan.axes.items() if axis not in axes},
        limits={axis: limit for axis, limit in plan.limits.items() if axis not in axes},
    )
