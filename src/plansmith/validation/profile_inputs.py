"""Profile inputs: inputs for the corners of optimization profiles, made of the stored real ones; and profile selection.

An axis that is shorter at a corner is cut, one that is longer begins again with what it began with: a batch repeats
its samples, a text its tokens, an image itself. An axis of the mask is cut where its padding is, so that what is left
are values of the data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plansmith.data.reference import StoredCases, read_case
from plansmith.errors import UsageError
from plansmith.records.engine import OptimizationProfile
from plansmith.records.model import BATCH, Case, Component, InputRange, Tensor
from plansmith.records.validation import Corner

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic]
    Arrays = Mapping[str, Array]

CORNERS: tuple[Corner, ...] = ("min", "opt", "max")

FIXED = "fixed"
"""The name of what a plan has in place of a profile whose shapes are all fixed."""

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class CornerCase:
    """Real inputs at one corner of an optimization profile; `profile` is its index in the plan."""

    profile: int
    name: str
    corner: Corner
    feed: Arrays

    @property
    def case(self) -> Case:
        """The corner case as a case without a file."""
        return Case(name=f"{self.corner} of profile {self.name!r}", axes=self._sizes, file="")

    @property
    def shapes(self) -> str:
        """The shapes of the inputs, for display."""
        return ", ".join(f"{name} {'x'.join(map(str, array.shape)) or 'scalar'}" for name, array in self.feed.items())

    @property
    def _sizes(self) -> dict[str, int]:
        return {str(place): size for place, size in enumerate(next(iter(self.feed.values())).shape)}


def every_profile(profiles: Sequence[OptimizationProfile], component: Component) -> tuple[OptimizationProfile, ...]:
    """Return the optimization profiles; for a graph of static shapes, one with these."""
    if profiles:
        return tuple(profiles)
    shapes = {t.name: _fixed_shape(t, FIXED) for t in component.inputs}
    ranges = {name: InputRange(min=shape, opt=shape, max=shape) for name, shape in shapes.items()}
    return (OptimizationProfile(name=FIXED, shapes=ranges),)


def profile_cases(
    profiles: Sequence[OptimizationProfile],
    stored: StoredCases,
    component: Component,
    mask_input: str | None = None,
    *,
    corners: Sequence[Corner] = CORNERS,
) -> Iterator[CornerCase]:
    """Yield real inputs at every corner of every profile, one at a time; identical corners only once.

    Args:
        profiles: of the plan, in its order; none for a graph whose shapes are all fixed.
        stored: what the inputs are made of.
        component: the graph's interface.
        mask_input: the input that is 0 where there is padding; None: there is none.
        corners: which of them.

    Raises:
        UsageError: a profile does not fit the graph's inputs.
    """
    for place, profile in enumerate(every_profile(profiles, component)):
        visited: list[object] = []
        for corner in corners:
            shapes = {t.name: _shape_at(profile, corner, t) for t in component.inputs}
            values = {name: getattr(value_range, corner) for name, value_range in profile.values.items()}
            if (shapes, values) in visited:
                continue
            visited.append((shapes, values))
            feed = _feed(shapes, stored, component, mask_input)
            yield CornerCase(place, profile.name, corner, {**feed, **_contents(values, feed)})


def profile_for(profiles: Sequence[OptimizationProfile], feed: Arrays) -> int | None:
    """Return the index of the profile that accepts the inputs; None if none does.

    Of several, the one whose opt is nearest, by the sum of the differences of all dims and of all contents of inputs
    that hold a shape, and the first of equals: so Triton chooses (`EvaluateTensorRTContext` of its TensorRT backend).
    """
    holding = [(place, profile) for place, profile in enumerate(profiles) if _holds(profile, feed)]
    if not holding:
        return None
    return min(holding, key=lambda pair: _distance(pair[1], feed))[0]


def _holds(profile: OptimizationProfile, feed: Arrays) -> bool:
    """Whether every input's shape, and the values of shape tensors, lie inside the profile."""
    shapes = all(
        name not in feed or _within(feed[name].shape, input_range) for name, input_range in profile.shapes.items()
    )
    values = all(
        name not in feed or _within([int(n) for n in feed[name].ravel()], input_range)
        for name, input_range in profile.values.items()
    )
    return shapes and values


def _within(sizes: Sequence[int], input_range: InputRange) -> bool:
    if len(sizes) != len(input_range.min):
        return False
    return all(low <= n <= high for low, n, high in zip(input_range.min, sizes, input_range.max, strict=True))


def _distance(profile: OptimizationProfile, feed: Arrays) -> int:
    shapes = [(feed[name].shape, input_range) for name, input_range in profile.shapes.items() if name in feed]
    values = [
        ([int(n) for n in feed[name].ravel()], input_range)
        for name, input_range in profile.values.items()
        if name in feed
    ]
    return sum(
        abs(size - opt)
        for sizes, input_range in [*shapes, *values]
        for size, opt in zip(sizes, input_range.opt, strict=True)
    )


def _shape_at(profile: OptimizationProfile, corner: Corner, tensor: Tensor) -> tuple[int, ...]:
    """The shape of an input at a corner, which must be one that the graph accepts."""
    input_range = profile.shapes.get(tensor.name)
    if input_range is None:
        return _fixed_shape(tensor, profile.name)
    shape: tuple[int, ...] = getattr(input_range, corner)
    fits = len(shape) == len(tensor.dims) and all(
        isinstance(dim, str) or dim == size for dim, size in zip(tensor.dims, shape, strict=True)
    )
    if not fits:
        raise UsageError(
            f"profile {profile.name!r} gives {tensor.name} {'x'.join(map(str, shape))} at its {corner}, and the graph"
            f" takes [{', '.join(map(str, tensor.dims))}]",
            remedy="correct it under `tensorrt: {profiles: ...}`, or leave it out there",
        )
    return shape


def _fixed_shape(tensor: Tensor, profile: str) -> tuple[int, ...]:
    sizes = tuple(dim for dim in tensor.dims if isinstance(dim, int))
    if len(sizes) != len(tensor.dims):
        raise UsageError(
            f"profile {profile!r} says nothing of {tensor.name} [{', '.join(map(str, tensor.dims))}], whose shape"
            " varies",
            remedy=f"give {tensor.name} its min:opt:max under `tensorrt: {{profiles: ...}}`",
        )
    return sizes


def _feed(shapes: Shapes, stored: StoredCases, component: Component, mask_input: str | None) -> dict[str, Array]:
    """The stored inputs that need the least change, cut or repeated to these shapes."""
    target_sizes = _sizes(shapes, component)
    case = min(stored.cases, key=lambda case: _change(case.axes, target_sizes))
    arrays = read_case(case, stored.folder).feed
    from_end = _padded_before(arrays, component, mask_input)
    return {
        t.name: _fitted(arrays[t.name], shapes[t.name], [axis in from_end for axis in t.dims]) for t in component.inputs
    }


def _sizes(shapes: Shapes, component: Component) -> dict[str, int]:
    return {
        axis: size
        for tensor in component.inputs
        for axis, size in zip(tensor.dims, shapes[tensor.name], strict=True)
        if isinstance(axis, str)
    }


def _change(sizes: Mapping[str, int], targets: Mapping[str, int]) -> tuple[float, float]:
    """The cost of resizing stored inputs: how much is repeated, and how much is cut, as logarithms."""
    ratios = [
        math.log(targets[axis] / size) for axis, size in sizes.items() if axis in targets and size and targets[axis]
    ]
    return sum(max(ratio, 0.0) for ratio in ratios), sum(max(-ratio, 0.0) for ratio in ratios)


def _padded_before(feed: Arrays, component: Component, mask_input: str | None) -> set[object]:
    """The mask's axes, except the batch, if padding comes before the content."""
    mask = next((t for t in component.inputs if t.name == mask_input), None)
    if mask is None or len(mask.dims) != 2:
        return set()
    shown = feed[mask.name].astype(bool)
    return {axis for axis in mask.dims[1:] if axis != BATCH} if shown[:, 0].sum() < shown[:, -1].sum() else set()


def _fitted(array: Array, shape: tuple[int, ...], from_end: Sequence[bool]) -> Array:
    """Resize an array to a shape: cut at the end or at the beginning where too long, repeat where too short."""
    import numpy as np

    for place, (size, target) in enumerate(zip(array.shape, shape, strict=True)):
        if size != target:
            start = size - target if from_end[place] and target < size else 0
            array = np.take(array, (np.arange(target) + start) % size, axis=place)
    return array


def _contents(values: Mapping[str, tuple[int, ...]], feed: Arrays) -> dict[str, Array]:
    """The values of shape tensors at a corner."""
    import numpy as np

    return {name: np.array(numbers, feed[name].dtype).reshape(feed[name].shape) for name, numbers in values.items()}
