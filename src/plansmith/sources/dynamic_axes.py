"""Input plans with fewer dynamic axes: some axes are fixed, others are tied to another axis."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from plansmith.data.reference import Sizes, first_sizes
from plansmith.data.sample import Sample
from plansmith.errors import SourceError, UsageError
from plansmith.records.model import BATCH, AxisRange, Dim, FixedAxis, Tensor, TiedAxis
from plansmith.sources.axis_search import AxisProbe, Search, alike
from plansmith.sources.collate import require_one_size
from plansmith.sources.loaded_model import SEQUENCE, Align, Encoded, InputPlan

if TYPE_CHECKING:
    from plansmith.sources.axis_search import Ask


T = TypeVar("T")


def with_fixed(plan: InputPlan, sizes: Mapping[str, int]) -> InputPlan:
    """Return a plan in which some axes are fixed to one size."""
    if not sizes:
        return plan
    ranges = {axis: AxisRange(min=size, opt=size, max=size) for axis, size in sizes.items()}
    return replace(
        _without(plan, sizes, lambda axis: sizes[axis]),
        make=lambda requested: plan.make({**requested, **sizes}),
        encode=lambda samples, axes, align: plan.encode(samples, {**axes, **ranges}, align),
    )


def with_tied(plan: InputPlan, tied: Mapping[str, str]) -> InputPlan:
    """Return a plan in which some axes are tied to others: their dims share a name, in one tensor or in two."""
    if not tied:
        return plan
    changed = _without(plan, tied, lambda axis: tied[axis])

    def encode(samples: Sequence[Sample], axes: Mapping[str, AxisRange], align: Align) -> Encoded:
        encoded = plan.encode(samples, with_followers(axes, tied), align)
        require_one_size(changed.tensors, samples, encoded.feed)
        return encoded

    return replace(changed, make=lambda requested: plan.make(with_followers(requested, tied)), encode=encode)


def with_followers(base: Mapping[str, T], tied: Mapping[str, str]) -> dict[str, T]:
    """Extend facts on axes to the axes tied to them."""
    return {**base, **{axis: base[leader] for axis, leader in tied.items()}}


def _without(plan: InputPlan, axes: Mapping[str, object], replacement: Callable[[str], Dim]) -> InputPlan:
    """Return a plan with some axes replaced by other dims."""

    def changed(tensor: Tensor) -> Tensor:
        dims = tuple(replacement(d) if isinstance(d, str) and d in axes else d for d in tensor.dims)
        return tensor.model_copy(update={"dims": dims})

    return replace(
        plan,
        tensors=tuple(changed(tensor) for tensor in plan.tensors),
        axes={axis: r for axis, r in plan.axes.items() if axis not in axes},
        limits={axis: limit for axis, limit in plan.limits.items() if axis not in axes},
    )


@dataclass(frozen=True)
class DynamicAxes:
    """Dynamic axes that were found.

    Args:
        plan: as it was, but that refused axes are fixed dims, and tied ones have the name of another.
        fixed: the refused ones.
        able: the sizes that the others can take, as far as they were tried.
        traced: a shape that the model answers at.
        untraced: another one; every axis that can have two sizes differs.
        settled: the sizes of the axes that have only one.
        tied: the axes that move only with another one, of which alone the rest tells.
    """

    plan: InputPlan
    fixed: tuple[FixedAxis, ...]
    able: dict[str, AxisRange]
    traced: Sizes
    untraced: Sizes
    settled: Sizes = field(default_factory=dict)
    tied: tuple[TiedAxis, ...] = ()

    def full(self, sizes: Sizes) -> dict[str, int]:
        """Complete a shape with the sizes of fixed and tied axes: the shape that the model ran at."""
        return with_followers({**sizes, **self.settled}, {tie.axis: tie.to for tie in self.tied})

    def without(self, sizes: Sizes) -> DynamicAxes:
        """Return the result with more fixed axes."""
        plan, settled = with_fixed(self.plan, sizes), {**self.settled, **sizes}
        return replace(self, plan=plan, settled=settled, **self._fields_without(sizes))

    def following(self, tied: tuple[TiedAxis, ...]) -> DynamicAxes:
        """Return the result with more axes tied to another one."""
        followers = {tie.axis: tie.to for tie in tied}
        return replace(self, plan=with_tied(self.plan, followers), tied=tied, **self._fields_without(followers))

    def _fields_without(self, excluded: Collection[str]) -> dict[str, Any]:
        """Return the fields of the axes, without those of some axes."""

        def exclude(mapping: Mapping[str, T]) -> dict[str, T]:
            return {axis: value for axis, value in mapping.items() if axis not in excluded}

        return {"able": exclude(self.able), "traced": exclude(self.traced), "untraced": exclude(self.untraced)}


def least_needed_first(axes: Iterable[str]) -> tuple[str, ...]:
    """Return axes in the order of giving them up: sides and lengths of media, then sequences, then the batch."""
    rank = {SEQUENCE: 1, BATCH: 2}
    return tuple(sorted(axes, key=lambda axis: rank.get(axis, 0)))


def find_dynamic_axes(
    ask: Ask, plan: InputPlan, axes: Mapping[str, AxisRange], user_axes: Collection[str] = ()
) -> DynamicAxes:
    """Test at which of its axes a model accepts other sizes.

    Args:
        ask: runs the model at given sizes; raises anything where it fails.
        plan: what it is fed with; where its inputs are guessed, the axes are the user's, and nothing is asked.
        axes: the ranges that it is to be compiled for.
        user_axes: axes whose range a person gave. Two with different ranges, which the model takes, are never tied.

    Raises:
        SourceError: it answers at no shape at all.
    """
    able = plan.able(axes)
    traced, untraced = first_sizes(able)
    if plan.guessed or not able:
        return DynamicAxes(plan, (), dict(able), traced, untraced)
    model = AxisProbe(ask)
    small, traced = traced, _first_that_works(model, able, axes, traced)
    untraced = {axis: size if size != traced[axis] else small[axis] for axis, size in untraced.items()}
    untraced = {axis: _apart(able[axis], traced[axis], untraced[axis]) for axis in able}
    if model.takes(untraced) and all(model.takes(_corner(traced, able, *pair)) for pair in alike(traced, able)):
        return DynamicAxes(plan, (), dict(able), traced, untraced)
    pairs = [pair for pair in alike(traced, able) if not _differ_as_given(model, traced, pair, axes, user_axes)]
    search = Search(model, able, traced, untraced, pairs)
    search.run(_only_together(model, traced, able, pairs))
    return _settled(search, plan, axes)


def _settled(search: Search, plan: InputPlan, axes: Mapping[str, AxisRange]) -> DynamicAxes:
    """Return the search result, with axes fixed until the remaining ones vary together.

    Args:
        search: ended.
        plan: what the model is fed with.
        axes: the ranges that it is to be compiled for.
    """
    model, traced = search.model, search.traced
    usual = {**traced, **{axis: axes[axis].opt for axis in search.refused}}
    base = usual if model.takes(usual) else traced
    fixed = {axis: _fixed(model, axis, axes[axis].opt, base, message) for axis, message in search.refused.items()}
    followers = {entry.axis: entry.to for entry in search.tied}
    alone = [axis for axis in search.able if axis not in followers]
    for axis in ("", *least_needed_first(alone)):
        if axis and axis not in fixed:
            fixed[axis] = _fixed(model, axis, axes[axis].opt, traced, f"not together with others: {model.message}")
        sizes = {a: fixed[a].size if a in fixed else search.untraced[a] for a in alone}
        if model.takes(with_followers(sizes, followers)):
            break
    everything = DynamicAxes(plan, tuple(fixed.values()), search.ranges, traced, search.untraced)
    return everything.following(tuple(search.tied)).without({axis: entry.size for axis, entry in fixed.items()})


def _differ_as_given(
    model: AxisProbe, traced: Sizes, pair: tuple[str, str], axes: Mapping[str, AxisRange], user_axes: Collection[str]
) -> bool:
    """Whether the user gave two axes different ranges, and the model accepts their ends and the usual sizes."""
    first, second = (axes[axis] for axis in pair)
    if not set(pair) <= set(user_axes) or first == second:
        return False
    shapes = zip((first.min, first.opt, first.max), (second.min, second.opt, second.max), strict=True)
    return all(model.takes({**traced, **dict(zip(pair, shape, strict=True))}) for shape in shapes)


def _corner(traced: Sizes, ranges: Mapping[str, AxisRange], axis: str, partner: str) -> dict[str, int]:
    """Return a shape in which two axes differ most."""
    return {**traced, axis: ranges[axis].min, partner: ranges[partner].max}


def _only_together(
    model: AxisProbe, traced: Sizes, able: Mapping[str, AxisRange], pairs: Iterable[tuple[str, str]]
) -> dict[str, str]:
    """Return axes that reject an end of their range alone but accept it with another axis, with the model's message.

    Sizes between the ends may be taken by chance: strides round.
    """
    refusals: dict[str, str] = {}
    for axis, partner in pairs:
        for end in (able[axis].min, able[axis].max):
            if model.takes(_corner(traced, able, axis, partner)) or model.takes({**traced, axis: end}):
                continue
            message = model.message
            if model.takes({**traced, axis: end, partner: end}):
                refusals |= dict.fromkeys((axis, partner), message)
    return refusals


def _first_that_works(
    model: AxisProbe, able: Mapping[str, AxisRange], axes: Mapping[str, AxisRange], small: Sizes
) -> dict[str, int]:
    """Return the small shape, or the usual one, with a batch of two or, if the model rejects that, another size."""
    usual = {axis: r.opt for axis, r in axes.items()}
    batches = dict.fromkeys([small.get(BATCH, 1), *([axes[BATCH].opt, 1] if BATCH in axes else [])])
    for shape in (small, usual):
        for batch in batches:
            sizes = {axis: batch if axis == BATCH else shape[axis] for axis in able}
            if model.takes(sizes):
                return sizes
    at = ", ".join(f"{axis} {size}" for axis, size in usual.items())
    raise SourceError(
        f"the model fails on its own kind of inputs at {at}: {model.message}",
        remedy="say which shapes it takes (--shapes), or describe its inputs in a spec",
    )


def _apart(axis: AxisRange, traced: int, target: int) -> int:
    """Return the target size; if it is the traced one, an adjacent size within the axis range."""
    if target != traced:
        return target
    return next((size for size in (traced + 1, traced - 1) if axis.min <= size <= axis.max), traced)


def _fixed(model: AxisProbe, axis: str, target: int, traced: Sizes, message: str) -> FixedAxis:
    """Return the fixed size of an axis: the usual one, if the model accepts it."""
    size = target if model.takes({**traced, axis: target}) else traced[axis]
    return FixedAxis(axis=axis, size=size, by="model", reason=message)


def narrow_ranges(
    ask: Ask, moving_axes: DynamicAxes, axes: Mapping[str, AxisRange], user_axes: Collection[str]
) -> dict[str, AxisRange]:
    """Return the ranges to compile for: only dynamic axes, without end sizes that the model refuses.

    Args:
        ask: runs the model at given sizes.
        moving_axes: what moves.
        axes: the ranges that were thought of.
        user_axes: axes whose range a person gave; those stay as they are.

    Raises:
        UsageError: the model refuses an end of the ranges, and no single axis whose range nobody gave is to blame.
    """
    ranges = {a: axes[a] if a in user_axes else r for a, r in moving_axes.able.items()}
    if moving_axes.plan.guessed:
        return ranges
    for end in ("min", "max"):
        model = AxisProbe(lambda sizes: ask(moving_axes.full(sizes)))
        shape = {axis: r.min if axis == BATCH else getattr(r, end) for axis, r in ranges.items()}
        if model.takes(shape):
            continue
        message = model.message
        narrower = {
            a: r if a in user_axes else _narrowed(model, moving_axes.traced, a, r, end) for a, r in ranges.items()
        }
        if narrower == ranges:
            raise _failing(shape, message)
        ranges = narrower
    return _without_corners(
        AxisProbe(lambda sizes: ask(moving_axes.full(sizes))), moving_axes.traced, ranges, user_axes
    )


def _failing(shape: Sizes, message: str) -> UsageError:
    at = ", ".join(f"{axis} {size}" for axis, size in shape.items())
    return UsageError(f"the model fails at {at}: {message}", remedy="give other shapes: --shapes")


def _without_corners(
    model: AxisProbe, traced: Sizes, ranges: Mapping[str, AxisRange], user_axes: Collection[str]
) -> dict[str, AxisRange]:
    """Return ranges without the sizes that two axes of one range reject when they differ most.

    Raises:
        UsageError: a person gave both ranges, or the model refuses either end with the other axis at its usual size.
    """
    narrower = dict(ranges)
    for axis, partner in alike(traced, ranges):
        shape = _corner(traced, ranges, axis, partner)
        if model.takes(shape):
            continue
        message = model.message
        ends = [(candidate, end) for candidate, end in ((partner, "max"), (axis, "min")) if candidate not in user_axes]
        good = next(
            (candidate for candidate in ends if model.takes({**shape, candidate[0]: traced[candidate[0]]})), None
        )
        if good is None:
            raise _failing(shape, message)
        candidate, end = good
        narrower[candidate] = _narrowed(
            model, {**shape, candidate: traced[candidate]}, candidate, ranges[candidate], end
        )
    return narrower


def _narrowed(model: AxisProbe, traced: Sizes, axis: str, old: AxisRange, end: str) -> AxisRange:
    """Return a range without the sizes that the model rejects at one end, found by bisection."""
    good, bad = traced[axis], getattr(old, end)
    if axis == BATCH or model.takes({**traced, axis: bad}):
        return old
    while abs(bad - good) > old.step:
        middle = (good + bad) // 2 // old.step * old.step
        if middle in {good, bad}:
            break
        good, bad = (middle, bad) if model.takes({**traced, axis: middle}) else (good, middle)
    low, high = (old.min, good) if end == "max" else (good, old.max)
    return AxisRange(min=low, opt=min(max(old.opt, low), high), max=high, step=old.step)
