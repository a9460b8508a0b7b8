"""Optimization profiles: the shapes that a plan accepts and is tuned for, from graph axes or set by the user.

A profile gives every input that may vary a smallest, usual and largest shape; several serve several regimes of use,
each with kernels of its own. What holds for profiles: TensorRT's guide, "Working with Dynamic Shapes".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from plansmith.config.engine_options import TensorRTOptions
from plansmith.errors import UsageError
from plansmith.records.engine import OptimizationProfile
from plansmith.records.model import ANONYMOUS, AxisRange, InputRange, Tensor

DEFAULT = "default"
MOST_SHAPE_VALUES = 64
_POINTS = ("min", "opt", "max")


def profiles_of(
    options: TensorRTOptions,
    inputs: Sequence[Tensor],
    axes: Mapping[str, AxisRange],
    shape_inputs: Collection[str] = (),
) -> tuple[OptimizationProfile, ...]:
    """Return the optimization profiles of a plan: the options', else one of the graph's axes; none for static shapes.

    What a named profile leaves out takes the range of its axis; inputs that share an axis share its range.

    Args:
        options: as a person wrote them.
        inputs: of the graph, with named dims where they vary.
        axes: the range of every named axis.
        shape_inputs: the inputs whose contents are a shape: a profile's range for one is of its contents.

    Raises:
        UsageError: a profile and the graph do not fit together; names all that is wrong, in all profiles.
    """
    varying = [t.name for t in inputs if t.name in shape_inputs or any(isinstance(dim, str) for dim in t.dims)]
    if not varying:
        if options.profiles:
            raise UsageError("tensorrt.profiles: all shapes of this model are fixed", remedy="leave the profiles out")
        return ()
    graph = _Graph({t.name: t for t in inputs}, dict(axes), frozenset(shape_inputs))
    drafts = [_Draft(graph, name, ranges) for name, ranges in (options.profiles or {DEFAULT: {}}).items()]
    problems = [problem for draft in drafts for problem in draft.problems]
    valid_profiles = [draft.profile for draft in drafts if not draft.problems]
    problems += [
        _Problem(f"{first.name} and {two.name} are the same", "give them different ranges, or leave one out")
        for place, first in enumerate(valid_profiles)
        for two in valid_profiles[place + 1 :]
        if (first.shapes, first.values) == (two.shapes, two.values)
    ]
    _refuse(problems)
    return tuple(valid_profiles)


def shapes_of(profiles: Mapping[str, Mapping[str, InputRange]]) -> dict[str, InputRange]:
    """Return the input shapes to export with: the combined range of every input that all profiles name.

    An input that some profile leaves out takes what the model suggests, there and here.

    Raises:
        UsageError: two profiles give an input different ranks.
    """
    named = set[str].intersection(*map(set, profiles.values())) if profiles else set()
    result: dict[str, InputRange] = {}
    for name in sorted(named):
        ranges = [profile[name] for profile in profiles.values()]
        if len({len(r.opt) for r in ranges}) > 1:
            raise UsageError(f"tensorrt.profiles: {name} has different ranks", remedy="give it the same rank in all")
        result[name] = InputRange(
            min=tuple(map(min, zip(*(r.min for r in ranges), strict=True))),
            opt=ranges[0].opt,
            max=tuple(map(max, zip(*(r.max for r in ranges), strict=True))),
        )
    return result


@dataclass(frozen=True)
class _Problem:
    message: str
    remedy: str


@dataclass(frozen=True)
class _Graph:
    """The constraints on a profile: inputs by name, ranges of named axes, and the shape inputs."""

    inputs: dict[str, Tensor]
    axes: dict[str, AxisRange]
    shape_inputs: frozenset[str]


@dataclass
class _Draft:
    """A profile draft: user-given ranges are checked first, then all inputs are filled in."""

    graph: _Graph
    name: str
    ranges: Mapping[str, InputRange]
    problems: list[_Problem] = field(default_factory=list)
    axes: dict[str, AxisRange] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, input_range in self.ranges.items():
            self._take(name, input_range)
        missing = [name for name in self.graph.inputs if name in self.graph.shape_inputs and name not in self.ranges]
        for name in missing:
            message = f"{name} holds a shape, and nothing says which values it takes"
            self._problem(
                message, "make it a constant of the model, or give its values as min:opt:max in every profile"
            )
        for tensor in self.graph.inputs.values():
            for place, dim in enumerate(tensor.dims):
                if tensor.name not in self.graph.shape_inputs and self._range(tensor, place, dim) is None:
                    subject = f"axis {place} of {tensor.name}" + ("" if dim == ANONYMOUS else f", {dim!r}")
                    self._problem(f"nothing gives a range for {subject}", f"give min:opt:max of {tensor.name}")

    @property
    def profile(self) -> OptimizationProfile:
        """Return the profile: shapes of all inputs with axes, and the values of shape inputs."""
        tensors = [t for t in self.graph.inputs.values() if t.dims and t.name not in self.graph.shape_inputs]
        shapes = {tensor.name: self._shape(tensor) for tensor in tensors}
        values = {name: input_range for name, input_range in self.ranges.items() if name in self.graph.shape_inputs}
        return OptimizationProfile(name=self.name, shapes=shapes, values=values)

    def _take(self, name: str, input_range: InputRange) -> None:
        tensor = self.graph.inputs.get(name)
        if tensor is None:
            self._problem(f"the model has no input {name!r}", f"its inputs are {', '.join(sorted(self.graph.inputs))}")
            return
        if not _is_ordered(input_range):
            self._problem(f"{name}: {input_range} is not min <= opt <= max in every place", "order the three shapes")
        elif name in self.graph.shape_inputs:
            self._take_values(tensor, input_range)
        elif len(tensor.dims) != len(input_range.min):
            form = " x ".join(map(str, tensor.dims))
            message = (
                f"{name}: {input_range} has rank {len(input_range.min)}, the model's input has rank {len(tensor.dims)}"
            )
            self._problem(message, f"give sizes for {form}")
        else:
            for place, dim in enumerate(tensor.dims):
                axis_range = AxisRange(
                    min=input_range.min[place], opt=input_range.opt[place], max=input_range.max[place]
                )
                self._take_dim(name, place, dim, axis_range)

    def _take_values(self, tensor: Tensor, input_range: InputRange) -> None:
        count = tensor.dims[0] if tensor.dims else 1
        if isinstance(count, int) and len(input_range.min) != count:
            message = f"{tensor.name}: {input_range} has {len(input_range.min)} values, the input holds {count}"
            self._problem(message, f"give {count} values, joined by x")
        elif len(input_range.min) > MOST_SHAPE_VALUES:
            message = f"{tensor.name}: {len(input_range.min)} values are more than TensorRT reads of a shape"
            self._problem(message, f"give at most {MOST_SHAPE_VALUES}")

    def _take_dim(self, name: str, place: int, dim: int | str, axis_range: AxisRange) -> None:
        sizes = (axis_range.min, axis_range.opt, axis_range.max)
        if isinstance(dim, int):
            if set(sizes) != {dim}:
                self._problem(f"{name}: axis {place} is fixed at {dim} in this model", f"write {dim} there")
            return
        if dim == ANONYMOUS:
            return
        if dim in self.axes and self.axes[dim] != axis_range:
            message = f"{name} and {self.sources[dim]} give different ranges for their common axis {dim!r}"
            self._problem(message, f"give the range of {dim!r} once")
            return
        self.axes[dim], self.sources[dim] = axis_range, name
        allowed = self.graph.axes.get(dim)
        if allowed is not None and not allowed.min <= axis_range.min <= axis_range.max <= allowed.max:
            message = (
                f"{name}: {axis_range.min} to {axis_range.max} is outside of {allowed.min} to {allowed.max} for {dim!r}"
            )
            self._problem(message, "stay inside of it, or widen `shapes`")
        elif allowed is not None and any(size % allowed.step for size in sizes):
            message = f"{name}: the model takes multiples of {allowed.step} only for {dim!r}"
            self._problem(message, f"give multiples of {allowed.step}")

    def _shape(self, tensor: Tensor) -> InputRange:
        ranges = [self._range(tensor, place, dim) for place, dim in enumerate(tensor.dims)]
        assert None not in ranges, "a draft without problems has them all"
        return InputRange(**{point: tuple(getattr(r, point) for r in ranges) for point in _POINTS})

    def _range(self, tensor: Tensor, place: int, dim: int | str) -> AxisRange | None:
        if isinstance(dim, int):
            return AxisRange(min=dim, opt=dim, max=dim)
        if dim != ANONYMOUS:
            return self.axes.get(dim) or self.graph.axes.get(dim)
        input_range = self.ranges.get(tensor.name)
        if input_range is None or len(input_range.min) != len(tensor.dims):
            return None
        return AxisRange(min=input_range.min[place], opt=input_range.opt[place], max=input_range.max[place])

    def _problem(self, message: str, remedy: str) -> None:
        self.problems.append(_Problem(f"{self.name}: {message}", remedy))


def _is_ordered(input_range: InputRange) -> bool:
    sizes: Iterator[tuple[int, ...]] = zip(input_range.min, input_range.opt, input_range.max, strict=False)
    same_rank = len(input_range.min) == len(input_range.opt) == len(input_range.max)
    return same_rank and all(low <= usual <= high for low, usual, high in sizes)


def _refuse(problems: Iterable[_Problem]) -> None:
    """Raise one error for all problems.

    Raises:
        UsageError: there are some.
    """
    unique = list(dict.fromkeys(problems))
    if unique:
        messages = [problem.message for problem in unique]
        remedies = dict.fromkeys(problem.remedy for problem in unique)
        message = messages[0] if len(messages) == 1 else "\n  ".join([f"{len(messages)} problems:", *messages])
        raise UsageError(f"tensorrt.profiles: {message}", remedy="; ".join(remedies))
