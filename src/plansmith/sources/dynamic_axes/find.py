"""Which axes of a model's inputs move: the model itself is asked, at other sizes than the usual ones.

A plan names the axes that might move. Asked at two shapes that differ in all of them, most models answer; where one
does not, its axes are moved one at a time, then two of one size at once (models of square images): those that move so
are tied, and what is left becomes a fixed dim of the plan, with the model's own words.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from plansmith.data.reference import Sizes, first_sizes
from plansmith.errors import SourceError, UsageError
from plansmith.records.model import BATCH, AxisRange, FixedAxis, TiedAxis
from plansmith.sources.dynamic_axes.fixed import with_fixed, with_followers, with_tied
from plansmith.sources.dynamic_axes.search import AxisProbe, Search, alike
from plansmith.sources.loaded_model import SEQUENCE, InputPlan

if TYPE_CHECKING:
    from plansmith.sources.dynamic_axes.search import Ask

T = TypeVar("T")


@dataclass(frozen=True)
class DynamicAxes:
    """What was found.

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
        """A shape with the sizes of the axes that do not move, or not by themselves: what the model was asked at."""
        return with_followers({**sizes, **self.settled}, {one.axis: one.to for one in self.tied})

    def without(self, sizes: Sizes) -> DynamicAxes:
        """The same with more axes at one size for good."""
        plan, settled = with_fixed(self.plan, sizes), {**self.settled, **sizes}
        return replace(self, plan=plan, settled=settled, **self._left(sizes))

    def following(self, tied: tuple[TiedAxis, ...]) -> DynamicAxes:
        """The same with axes that have the size of another one."""
        followers = {one.axis: one.to for one in tied}
        return replace(self, plan=with_tied(self.plan, followers), tied=tied, **self._left(followers))

    def _left(self, gone: Collection[str]) -> dict[str, Any]:
        """What is known of the axes, but of some."""

        def left(known: Mapping[str, T]) -> dict[str, T]:
            return {axis: value for axis, value in known.items() if axis not in gone}

        return {"able": left(self.able), "traced": left(self.traced), "untraced": left(self.untraced)}


def least_needed_first(axes: Iterable[str]) -> tuple[str, ...]:
    """Axes in the order in which they may be given up: sides and lengths of media, then sequences, then the batch."""
    rank = {SEQUENCE: 1, BATCH: 2}
    return tuple(sorted(axes, key=lambda axis: rank.get(axis, 0)))


def find_dynamic_axes(
    ask: Ask, plan: InputPlan, axes: Mapping[str, AxisRange], given: Collection[str] = ()
) -> DynamicAxes:
    """Ask a model which of its axes it takes at other sizes.

    Args:
        ask: runs the model at given sizes; raises anything where it fails.
        plan: what it is fed with; where its inputs are guessed, the axes are the user's, and nothing is asked.
        axes: the ranges that it is to be compiled for.
        given: axes whose range a person gave; two of them with different ones, which the model takes, are never tied.

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
    pairs = [pair for pair in alike(traced, able) if not _differ_as_given(model, traced, pair, axes, given)]
    search = Search(model, able, traced, untraced, pairs)
    search.run(_only_together(model, traced, able, pairs))
    return _settled(search, plan, axes)


def _settled(search: Search, plan: InputPlan, axes: Mapping[str, AxisRange]) -> DynamicAxes:
    """What a search found, with axes given up until those that are left move together.

    Args:
        search: ended.
        plan: what the model is fed with.
        axes: the ranges that it is to be compiled for.
    """
    model, traced = search.model, search.traced
    usual = {**traced, **{axis: axes[axis].opt for axis in search.refused}}
    base = usual if model.takes(usual) else traced
    fixed = {axis: _fixed(model, axis, axes[axis].opt, base, said) for axis, said in search.refused.items()}
    followers = {one.axis: one.to for one in search.tied}
    alone = [axis for axis in search.able if axis not in followers]
    for axis in ("", *least_needed_first(alone)):
        if axis and axis not in fixed:
            fixed[axis] = _fixed(model, axis, axes[axis].opt, traced, f"not together with others: {model.said}")
        sizes = {a: fixed[a].size if a in fixed else search.untraced[a] for a in alone}
        if model.takes(with_followers(sizes, followers)):
            break
    everything = DynamicAxes(plan, tuple(fixed.values()), search.ranges, traced, search.untraced)
    return everything.following(tuple(search.tied)).without({axis: one.size for axis, one in fixed.items()})


def _differ_as_given(
    model: AxisProbe, traced: Sizes, pair: tuple[str, str], axes: Mapping[str, AxisRange], given: Collection[str]
) -> bool:
    """Whether a person gave two axes different ranges, and the model takes their ends and the usual sizes."""
    one, other = (axes[axis] for axis in pair)
    if not set(pair) <= set(given) or one == other:
        return False
    shapes = zip((one.min, one.opt, one.max), (other.min, other.opt, other.max), strict=True)
    return all(model.takes({**traced, **dict(zip(pair, shape, strict=True))}) for shape in shapes)


def _corner(traced: Sizes, ranges: Mapping[str, AxisRange], axis: str, other: str) -> dict[str, int]:
    """A shape in which two axes differ most."""
    return {**traced, axis: ranges[axis].min, other: ranges[other].max}


def _only_together(
    model: AxisProbe, traced: Sizes, able: Mapping[str, AxisRange], pairs: Iterable[tuple[str, str]]
) -> dict[str, str]:
    """The axes that refuse an end of their range by themselves and take it with another one; what the model said.

    Sizes between the ends may be taken by chance: strides round.
    """
    found: dict[str, str] = {}
    for axis, other in pairs:
        for end in (able[axis].min, able[axis].max):
            if model.takes(_corner(traced, able, axis, other)) or model.takes({**traced, axis: end}):
                continue
            said = model.said
            if model.takes({**traced, axis: end, other: end}):
                found |= dict.fromkeys((axis, other), said)
    return found


def _first_that_works(
    model: AxisProbe, able: Mapping[str, AxisRange], axes: Mapping[str, AxisRange], small: Sizes
) -> dict[str, int]:
    """The small shape, or the usual one, with a batch of two samples or, where the model refuses that, another."""
    usual = {axis: r.opt for axis, r in axes.items()}
    batches = dict.fromkeys([small.get(BATCH, 1), *([axes[BATCH].opt, 1] if BATCH in axes else [])])
    for shape in (small, usual):
        for batch in batches:
            sizes = {axis: batch if axis == BATCH else shape[axis] for axis in able}
            if model.takes(sizes):
                return sizes
    at = ", ".join(f"{axis} {size}" for axis, size in usual.items())
    raise SourceError(
        f"the model fails on its own kind of inputs at {at}: {model.said}",
        remedy="say which shapes it takes (--shapes), or describe its inputs in a spec",
    )


def _apart(axis: AxisRange, traced: int, wanted: int) -> int:
    """The wanted size, unless it is the traced one and the axis has another."""
    if wanted != traced:
        return wanted
    return next((size for size in (traced + 1, traced - 1) if axis.min <= size <= axis.max), traced)


def _fixed(model: AxisProbe, axis: str, wanted: int, traced: Sizes, said: str) -> FixedAxis:
    """The size that an axis has for good: the usual one, where the model takes that."""
    size = wanted if model.takes({**traced, axis: wanted}) else traced[axis]
    return FixedAxis(axis=axis, size=size, by="model", reason=said)


def narrow_ranges(
    ask: Ask, found: DynamicAxes, axes: Mapping[str, AxisRange], given: Collection[str]
) -> dict[str, AxisRange]:
    """The ranges to compile for: of the axes that move, and without what the model refuses at their ends.

    Args:
        ask: runs the model at given sizes.
        found: what moves.
        axes: the ranges that were thought of.
        given: axes whose range a person gave; those stay as they are.

    Raises:
        UsageError: the model refuses an end of the ranges, and no single axis whose range nobody gave is to blame.
    """
    ranges = {a: axes[a] if a in given else r for a, r in found.able.items()}
    if found.plan.guessed:
        return ranges
    for end in ("min", "max"):
        model = AxisProbe(lambda sizes: ask(found.full(sizes)))
        shape = {axis: r.min if axis == BATCH else getattr(r, end) for axis, r in ranges.items()}
        if model.takes(shape):
            continue
        said = model.said
        narrower = {a: r if a in given else _narrowed(model, found.traced, a, r, end) for a, r in ranges.items()}
        if narrower == ranges:
            raise _failing(shape, said)
        ranges = narrower
    return _without_corners(AxisProbe(lambda sizes: ask(found.full(sizes))), found.traced, ranges, given)


def _failing(shape: Sizes, said: str) -> UsageError:
    at = ", ".join(f"{axis} {size}" for axis, size in shape.items())
    return UsageError(f"the model fails at {at}: {said}", remedy="give other shapes: --shapes")


def _without_corners(
    model: AxisProbe, traced: Sizes, ranges: Mapping[str, AxisRange], given: Collection[str]
) -> dict[str, AxisRange]:
    """Ranges without the sizes that two axes of one range refuse when they differ most.

    Raises:
        UsageError: a person gave both ranges, or the model refuses either end with the other axis at its usual size.
    """
    narrower = dict(ranges)
    for axis, other in alike(traced, ranges):
        shape = _corner(traced, ranges, axis, other)
        if model.takes(shape):
            continue
        said = model.said
        ends = [(one, end) for one, end in ((other, "max"), (axis, "min")) if one not in given]
        good = next((one for one in ends if model.takes({**shape, one[0]: traced[one[0]]})), None)
        if good is None:
            raise _failing(shape, said)
        one, end = good
        narrower[one] = _narrowed(model, {**shape, one: traced[one]}, one, ranges[one], end)
    return narrower


def _narrowed(model: AxisProbe, traced: Sizes, axis: str, old: AxisRange, end: str) -> AxisRange:
    """A range without the sizes that the model refuses at one end of it, found by halving."""
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
