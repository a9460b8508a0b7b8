"""Which of its other inputs a transformers model needs beside the main one: the model itself is asked."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from plansmith.memory import tells_of_memory
from plansmith.sources.drafts import Draft
from plansmith.sources.input_kinds import HEIGHT, KINDS, VIDEO_FRAMES, WIDTH, Fill, Kind
from plansmith.sources.live import InputPlan
from plansmith.types import BATCH

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]
    Ask = Callable[[Arrays], Arrays]

_TRIED_LENGTH = 16
_APART = 3
_MOST_TRIES = 24
_SEEN = {Fill.IMAGES, Fill.VIDEO, Fill.SOUND}


class RefusedError(Exception):
    """The model does not answer to a draft; the cause is what it said."""


def small_sizes(plan: InputPlan) -> dict[str, int]:
    """Two short samples; what may not be cut short, such as images, is as large as usual."""
    whole = {VIDEO_FRAMES, HEIGHT, WIDTH} if not plan.guessed else set(plan.axes)
    sizes = {
        axis: r.opt if axis in whole or r.min > _TRIED_LENGTH else _TRIED_LENGTH + _APART * place
        for place, (axis, r) in enumerate(plan.axes.items())
    }
    return {axis: min(size if axis != BATCH else 2, plan.axes[axis].max) for axis, size in sizes.items()}


def completed(draft: Draft, ask: Ask, needed: set[str]) -> Draft:
    """With the inputs that the model says it lacks, or without which it fails.

    Raises:
        RefusedError: it answers to none of that.
    """
    problem = _problem(draft, ask)
    if problem is None:
        return draft
    for _ in range(_MOST_TRIES):
        named = [n for n in _others(draft) if re.search(rf"\b{n}\b", str(problem))]
        if not named:
            break
        draft = draft.adding(named[0])
        problem = _problem(draft, ask)
        if problem is None:
            return draft
    for tried in _guesses(draft, needed):
        if _problem(tried, ask) is None:
            return _without_luck(tried, draft, ask)
    raise RefusedError from problem


def _without_luck(tried: Draft, before: Draft, ask: Ask) -> Draft:
    """Without those of the tried inputs that it answers without as well."""
    for name in tried.names:
        if name not in before.names and _problem(tried.without(name), ask) is None:
            tried = tried.without(name)
    return tried


def steady(draft: Draft, ask: Ask) -> Draft:
    """With what the model draws at random where nobody gives it, as far as that makes its answer one and the same."""
    if _is_steady(draft, ask):
        return draft
    more = (draft.adding(name) for name in _others(draft))
    return next((one for one in more if _problem(one, ask) is None and _is_steady(one, ask)), draft)


def _is_steady(draft: Draft, ask: Ask) -> bool:
    feed = feed_of(draft)
    return not _differ(ask(feed), ask(feed))


def _guesses(draft: Draft, needed: set[str]) -> Iterator[Draft]:
    """Each other input that is known by itself; then one after another; then without one that it can do without."""
    others = _others(draft)[:_MOST_TRIES]
    for name in others:
        yield draft.adding(name)
    for count in range(2, len(others) + 1):
        yield draft.adding(*others[:count])
    for chosen in draft.inputs():
        # Without its images or sounds, a model would be another one.
        if chosen.kind.name not in needed and chosen.kind.fill not in _SEEN:
            yield draft.without(chosen.kind.name)


def _others(draft: Draft) -> list[str]:
    made = {chosen.kind.name for chosen in draft.inputs()}
    return [name for name in draft.arguments if name in KINDS and name not in made]


def _problem(draft: Draft, ask: Ask) -> Exception | None:
    """What the model says against some inputs; None where it answers."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ask(feed_of(draft))
    except Exception as error:
        if tells_of_memory(f"{type(error).__name__}: {error}"):
            raise
        return error
    return None


def feed_of(draft: Draft) -> Arrays:
    """Two short samples of a draft's inputs."""
    plan = draft.plan()
    return plan.make(small_sizes(plan))


def without_idle(draft: Draft, ask: Ask, needed: set[str]) -> Draft:
    """Without the inputs that change no answer: no graph would have them."""
    feed = dict(feed_of(draft))
    expected = ask(feed)
    for chosen in draft.inputs():
        name = chosen.kind.name
        is_placed = bool(draft.led) and chosen.kind.fill in _SEEN
        if name in needed or is_placed or (other := _changed(feed[name], chosen.kind)) is None:
            continue
        changes = True
        with suppress(Exception):
            changes = _differ(expected, ask({**feed, name: other}))
        if not changes and _problem(draft.without(name), ask) is None:
            draft = draft.without(name)
    return draft


def _changed(array: NDArray[np.generic], kind: Kind) -> NDArray[np.generic] | None:
    """Other values for an input; None where there are none that tell anything."""
    import numpy as np

    if kind.fill in {Fill.MASK, Fill.OBSERVED}:
        return None if array.all() else np.ones_like(array)
    if kind.fill is Fill.SEGMENTS and not array.any():
        return array + np.array(1, array.dtype)
    other = np.flip(array).copy()
    return None if np.array_equal(other, array) else other


def _differ(one: Arrays, other: Arrays) -> bool:
    import numpy as np

    return any(not np.array_equal(one[name], other[name], equal_nan=True) for name in one)
