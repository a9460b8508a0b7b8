"""Which of its other inputs a transformers model needs beside the main one: the model itself is asked."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from plansmith.records.model import BATCH
from plansmith.sources.determinism import changed_output
from plansmith.sources.huggingface.inputs.drafts import Draft
from plansmith.sources.huggingface.inputs.kinds import HEIGHT, KINDS, VIDEO_FRAMES, WIDTH, Fill, Kind
from plansmith.sources.loaded_model import InputPlan
from plansmith.system.memory import tells_of_memory

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


class DraftAnswer(NamedTuple):
    """A draft that the model answers to, and its answer."""

    draft: Draft
    feed: Arrays
    answer: Arrays


def small_sizes(plan: InputPlan) -> dict[str, int]:
    """Two short samples; what may not be cut short, such as images, is as large as usual."""
    whole = {VIDEO_FRAMES, HEIGHT, WIDTH} if not plan.guessed else set(plan.axes)
    sizes = {
        axis: r.opt if axis in whole or r.min > _TRIED_LENGTH else _TRIED_LENGTH + _APART * place
        for place, (axis, r) in enumerate(plan.axes.items())
    }
    return {axis: min(size if axis != BATCH else 2, plan.axes[axis].max) for axis, size in sizes.items()}


def completed(draft: Draft, ask: Ask, needed: set[str]) -> DraftAnswer:
    """With the inputs that the model says it lacks, or without which it fails.

    Raises:
        RefusedError: it answers to none of that.
    """
    answered = _answered(draft, ask)
    for _ in range(_MOST_TRIES):
        if isinstance(answered, DraftAnswer):
            break
        named = [n for n in _others(draft) if re.search(rf"\b{n}\b", str(answered))]
        if not named:
            break
        draft = draft.adding(named[0])
        answered = _answered(draft, ask)
    if isinstance(answered, DraftAnswer):
        return answered
    for tried in _guesses(draft, needed):
        lucky = _answered(tried, ask)
        if isinstance(lucky, DraftAnswer):
            return _without_luck(lucky, draft, ask)
    raise RefusedError from answered


def _without_luck(tried: DraftAnswer, before: Draft, ask: Ask) -> DraftAnswer:
    """Without those of the tried inputs that it answers without as well."""
    for name in tried.draft.names:
        if name not in before.names:
            less = _answered(tried.draft.without(name), ask)
            tried = less if isinstance(less, DraftAnswer) else tried
    return tried


def steady(first: DraftAnswer, ask: Ask) -> DraftAnswer:
    """With what the model draws at random where nobody gives it, as far as that makes its answer one and the same."""
    if _is_steady(first, ask):
        return first
    more = (_answered(first.draft.adding(name), ask) for name in _others(first.draft))
    return next((one for one in more if isinstance(one, DraftAnswer) and _is_steady(one, ask)), first)


def _is_steady(answered: DraftAnswer, ask: Ask) -> bool:
    return changed_output(answered.answer, ask(answered.feed)) is None


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


def _answered(draft: Draft, ask: Ask) -> DraftAnswer | Exception:
    """What the model answers to some inputs, or says against them."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            feed = feed_of(draft)
            return DraftAnswer(draft, feed, ask(feed))
    except Exception as error:
        if tells_of_memory(f"{type(error).__name__}: {error}"):
            raise
        return error


def feed_of(draft: Draft) -> Arrays:
    """Two short samples of a draft's inputs."""
    plan = draft.plan()
    return plan.make(small_sizes(plan))


def without_idle(first: DraftAnswer, ask: Ask, needed: set[str]) -> Draft:
    """Without the inputs that change no answer, be it in the last bit: no graph would have them."""
    draft, feed, expected = first
    for chosen in draft.inputs():
        name = chosen.kind.name
        is_placed = bool(draft.led) and chosen.kind.fill in _SEEN
        if name in needed or is_placed or (other := _changed(feed[name], chosen.kind)) is None:
            continue
        changes = True
        with suppress(Exception):
            changes = _differ(expected, ask({**feed, name: other}))
        if not changes and isinstance(_answered(draft.without(name), ask), DraftAnswer):
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
