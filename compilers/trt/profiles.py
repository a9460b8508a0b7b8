"""Optimization profiles: the shapes that a plan takes and is tuned for, of the graph's axes or as a person names them.

A profile gives every input that may vary a smallest, usual and largest shape; several serve several regimes of use,
each with kernels of its own. What holds for profiles: TensorRT's guide, "Working with Dynamic Shapes".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from plansmith.config.tensorrt import TensorRTOptions
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
    """The profiles of a plan: those that the options name, else one of the graph's own axes; none for fixed shapes.

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
    drafts = [_Draft(graph, name, given) for name, given in (options.profiles or {DEFAULT: {}}).items()]
    problems = [problem for draft in drafts for problem in draft.problems]
    made = [draft.profile for draft in drafts if not draft.problems]
    problems += [
        _Problem(f"{one.name} and {two.name} are the same", "give them different ranges, or leave one out")
        for place, one in enumerate(made)
        for two in made[place + 1 :]
        if (one.shapes, one.values) == (two.shapes, two.values)
    ]
    _refuse(problems)
    return tuple(made)


def shapes_of(profiles: Mapping[str, Mapping[str, InputRange]]) -> dict[str, InputRange]:
    """What to ask a model for before there is a graph: of every input that all profiles name, the range of all.

    An input that some profile leaves out takes what the model suggests, there and here.

    Raises:
        UsageError: two profiles give an input different ranks.
    """
    named = set[str].intersection(*map(set, profiles.values())) if profiles else set()
    found: dict[str, InputRange] = {}
    for name in sorted(named):
        ranges = [given[name] for given in profiles.values()]
        if len({len(r.opt) for r in ranges}) > 1:
            raise UsageError(f"tensorrt.profiles: {name} has different ranks", remedy="give it the same rank in all")
        found[name] = InputRange(
            min=tuple(map(min, zip(*(r.min for r in ranges), strict=True))),
            opt=ranges[0].opt,
            max=tuple(map(max, zip(*(r.max for r in ranges), strict=True))),
        )
    return found


@dataclass(frozen=True)
class _Problem:
    words: str
    remedy: str


@dataclass(frozen=True)
class _Graph:
    """What a profile has to fit: inputs by name, the ranges of named axes, the inputs that hold a shape."""

    inputs: dict[str, Tensor]
    axes: dict[str, AxisRange]
    shape_inputs: frozenset[str]


@dataclass
class _Draft:
    """One profile in the making: what a person gave is checked first, then all inputs are filled in."""

    graph: _Graph
    name: str
    given: Mapping[str, InputRange]
    problems: list[_Problem] = field(default_factory=list)
    axes: dict[str, AxisRange] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, wanted in self.given.items():
            self._take(name, wanted)
        missing = [name for name in self.graph.inputs if name in self.graph.shape_inputs and name not in self.given]
        for name in missing:
            words = f"{name} holds a shape, and nothing says which values it takes"
            self._problem(words, "make it a constant of the model, or give its values as min:opt:max in every profile")
        for tensor in self.graph.inputs.values():
            for place, dim in enumerate(tensor.dims):
                if tensor.name not in self.graph.shape_inputs and self._range(tensor, place, dim) is None:
                    what = f"axis {place} of {tensor.name}" + ("" if dim == ANONYMOUS else f", {dim!r}")
                    self._problem(f"nothing gives a range for {what}", f"give min:opt:max of {tensor.name}")

    @property
    def profile(self) -> OptimizationProfile:
        """Shapes of all inputs that have axes; of inputs that hold a shape, their contents."""
        tensors = [t for t in self.graph.inputs.values() if t.dims and t.name not in self.graph.shape_inputs]
        shapes = {tensor.name: self._shape(tensor) for tensor in tensors}
        values = {name: wanted for name, wanted in self.given.items() if name in self.graph.shape_inputs}
        return OptimizationProfile(name=self.name, shapes=shapes, values=values)

    def _take(self, name: str, wanted: InputRange) -> None:
        tensor = self.graph.inputs.get(name)
        if tensor is None:
            self._problem(f"the model has no input {name!r}", f"its inputs are {', '.join(sorted(self.graph.inputs))}")
            return
        if not _is_ordered(wanted):
            self._problem(f"{name}: {wanted} is not min <= opt <= max in every place", "order the three shapes")
        elif name in self.graph.shape_inputs:
            self._take_values(tensor, wanted)
        elif len(tensor.dims) != len(wanted.min):
            form = " x ".join(map(str, tensor.dims))
            words = f"{name}: {wanted} has rank {len(wanted.min)}, the model's input has rank {len(tensor.dims)}"
            self._problem(words, f"give sizes for {form}")
        else:
            for place, dim in enumerate(tensor.dims):
                found = AxisRange(min=wanted.min[place], opt=wanted.opt[place], max=wanted.max[place])
                self._take_dim(name, place, dim, found)

    def _take_values(self, tensor: Tensor, wanted: InputRange) -> None:
        count = tensor.dims[0] if tensor.dims else 1
        if isinstance(count, int) and len(wanted.min) != count:
            words = f"{tensor.name}: {wanted} has {len(wanted.min)} values, the input holds {count}"
            self._problem(words, f"give {count} values, joined by x")
        elif len(wanted.min) > MOST_SHAPE_VALUES:
            words = f"{tensor.name}: {len(wanted.min)} values are more than TensorRT reads of a shape"
            self._problem(words, f"give at most {MOST_SHAPE_VALUES}")

    def _take_dim(self, name: str, place: int, dim: int | str, found: AxisRange) -> None:
        sizes = (found.min, found.opt, found.max)
        if isinstance(dim, int):
            if set(sizes) != {dim}:
                self._problem(f"{name}: axis {place} is fixed at {dim} in this model", f"write {dim} there")
            return
        if dim == ANONYMOUS:
            return
        if dim in self.axes and self.axes[dim] != found:
            words = f"{name} and {self.said[dim]} give different ranges for their common axis {dim!r}"
            self._problem(words, f"give the range of {dim!r} once")
            return
        self.axes[dim], self.said[dim] = found, name
        allowed = self.graph.axes.get(dim)
        if allowed is not None and not allowed.min <= found.min <= found.max <= allowed.max:
            words = f"{name}: {found.min} to {found.max} is outside of {allowed.min} to {allowed.max} for {dim!r}"
            self._problem(words, "stay inside of it, or widen `shapes`")
        elif allowed is not None and any(size % allowed.step for size in sizes):
            words = f"{name}: the model takes multiples of {allowed.step} only for {dim!r}"
            self._problem(words, f"give multiples of {allowed.step}")

    def _shape(self, tensor: Tensor) -> InputRange:
        ranges = [self._range(tensor, place, dim) for place, dim in enumerate(tensor.dims)]
        assert None not in ranges, "a draft without problems has them all"
        return InputRange(**{point: tuple(getattr(r, point) for r in ranges) for point in _POINTS})

    def _range(self, tensor: Tensor, place: int, dim: int | str) -> AxisRange | None:
        if isinstance(dim, int):
            return AxisRange(min=dim, opt=dim, max=dim)
        if dim != ANONYMOUS:
            return self.axes.get(dim) or self.graph.axes.get(dim)
        given = self.given.get(tensor.name)
        if given is None or len(given.min) != len(tensor.dims):
            return None
        return AxisRange(min=given.min[place], opt=given.opt[place], max=given.max[place])

    def _problem(self, words: str, remedy: str) -> None:
        self.problems.append(_Problem(f"{self.name}: {words}", remedy))


def _is_ordered(wanted: InputRange) -> bool:
    sizes: Iterator[tuple[int, ...]] = zip(wanted.min, wanted.opt, wanted.max, strict=False)
    same_rank = len(wanted.min) == len(wanted.opt) == len(wanted.max)
    return same_rank and all(low <= usual <= high for low, usual, high in sizes)


def _refuse(problems: Iterable[_Problem]) -> None:
    """All problems at once.

    Raises:
        UsageError: there are some.
    """
    found = list(dict.fromkeys(problems))
    if found:
        words = [problem.words for problem in found]
        remedies = dict.fromkeys(problem.remedy for problem in found)
        message = words[0] if len(words) == 1 else "\n  ".join([f"{len(words)} problems:", *words])
        raise UsageError(f"tensorrt.profiles: {message}", remedy="; ".join(remedies))
