"""What a transformers model is fed with: its signature, configuration and processors say, and the model itself.

The kinds of input are a table (`input_kinds`). Of a forward method's arguments a plan takes the main one, those that
the tokenizer or processor makes, masks, and those without which the model does not answer. Runs in the heavy worker.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.config import InputSpec
from plansmith.errors import first_line
from plansmith.memory import tells_of_memory
from plansmith.sources.drafts import Draft
from plansmith.sources.drawn import plan_drawn
from plansmith.sources.hf_contents import Source
from plansmith.sources.hf_given import given_tensors, odd_inputs, undescribed
from plansmith.sources.input_kinds import HEIGHT, KINDS, VIDEO_FRAMES, WIDTH, Fill, Kind, kinds_of
from plansmith.sources.live import InputPlan
from plansmith.types import BATCH

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from transformers import PreTrainedModel

    Arrays = Mapping[str, NDArray[np.generic]]
    Ask = Callable[[Arrays], Arrays]

_NAMED = 4
_TRIED_LENGTH = 16
_APART = 3
_MOST_TRIES = 24


def small_sizes(plan: InputPlan) -> dict[str, int]:
    """Two short samples; what may not be cut short, such as images, is as large as usual."""
    whole = {VIDEO_FRAMES, HEIGHT, WIDTH} if not plan.guessed else set(plan.axes)
    sizes = {
        axis: r.opt if axis in whole or r.min > _TRIED_LENGTH else _TRIED_LENGTH + _APART * place
        for place, (axis, r) in enumerate(plan.axes.items())
    }
    return {axis: min(size if axis != BATCH else 2, plan.axes[axis].max) for axis, size in sizes.items()}


def plan_inputs(
    model: PreTrainedModel, folder: Path, trust_remote_code: bool, given: Mapping[str, InputSpec], ask: Ask
) -> InputPlan:
    """What to feed a model with: as the spec says, else as the model and its directory do.

    Args:
        model: loaded, in eval mode.
        folder: where its tokenizer or processor lies, if it has one.
        trust_remote_code: whether the model's own Python code may be run.
        given: what the spec says.
        ask: runs the model on arrays by name; raises anything where it fails.

    Raises:
        SourceError: nothing says what the model takes.
        UsageError: the spec's inputs are not the model's, or are not described in full.
    """
    if given:
        return plan_drawn(given_tensors(model, given), given)
    source = Source.of(model, folder, trust_remote_code=trust_remote_code)
    source.settle_padding(model)
    known = inspect.signature(model.forward).parameters
    anything = all(p.kind in {p.VAR_KEYWORD, p.VAR_POSITIONAL} for p in known.values())
    arguments = tuple(KINDS if anything else known)
    required = [n for n, p in known.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    main = [model.main_input_name] if isinstance(model.main_input_name, str) else list(model.main_input_name)
    missing = [name for name in (*main, *required) if name not in KINDS]
    if missing:
        raise undescribed(model, f"nothing says what {', '.join(dict.fromkeys(missing))} looks like", required)
    # Heads that write nothing make their decoder read what the encoder read, where nobody gives it anything else.
    also = [n for n in ("decoder_input_ids",) if model.can_generate() and model.config.is_encoder_decoder]
    wanted = {*main, *required, *also, *source.offered}
    problem: Exception | None = None
    for draft in _drafts(main[0], [n for n in arguments if n in wanted], arguments, source):
        try:
            return _without_idle(_completed(draft, ask), ask, {*main, *required}).plan()
        except _RefusedError as error:
            problem = problem or error.__cause__  # type: ignore[assignment]
    odd = odd_inputs(known)
    beside = f"; nothing says what {', '.join(odd[:_NAMED])} look like" if odd else ""
    said = f"it does not answer: {first_line(problem)}" if problem else f"its configuration does not size {main[0]}"
    raise undescribed(model, f"{said}{beside}", [*required, *odd[:2]]) from problem


class _RefusedError(Exception):
    """The model does not answer to a draft; the cause is what it said."""


def _drafts(main: str, wanted: Sequence[str], arguments: tuple[str, ...], source: Source) -> Iterator[Draft]:
    """The forms that the main input may have, and the sizes of images, the likeliest first."""
    forms = [(kind, form) for kind in KINDS[main] for form in kind.forms if source.has(kind, form)]
    for (kind, form), sides in product(forms, source.usual_sides()):
        if HEIGHT not in form.dims and sides != source.usual_sides()[0]:
            continue
        draft = Draft((kind, form), tuple(kinds_of(wanted)), arguments, source, sides)
        yield draft.adding()


def _completed(draft: Draft, ask: Ask) -> Draft:
    """With the inputs that the model says it lacks, or without which it fails.

    Raises:
        _RefusedError: it answers to none of that.
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
    for tried in _guesses(draft):
        if _problem(tried, ask) is None:
            return tried
    raise _RefusedError from problem


def _guesses(draft: Draft) -> Iterator[Draft]:
    """Each other input that is known by itself; then one after another."""
    others = _others(draft)[:_MOST_TRIES]
    for name in others:
        yield draft.adding(name)
    for count in range(2, len(others) + 1):
        yield draft.adding(*others[:count])


def _others(draft: Draft) -> list[str]:
    made = {chosen.kind.name for chosen in draft.inputs()}
    return [name for name in draft.arguments if name in KINDS and name not in made]


def _problem(draft: Draft, ask: Ask) -> Exception | None:
    """What the model says against some inputs; None where it answers."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ask(_feed(draft))
    except Exception as error:
        if tells_of_memory(f"{type(error).__name__}: {error}"):
            raise
        return error
    return None


def _feed(draft: Draft) -> Arrays:
    plan = draft.plan()
    return plan.make(small_sizes(plan))


def _without_idle(draft: Draft, ask: Ask, needed: set[str]) -> Draft:
    """Without the inputs that change no answer: no graph would have them."""
    feed = dict(_feed(draft))
    expected = ask(feed)
    for chosen in draft.inputs():
        name = chosen.kind.name
        if name in needed or (other := _changed(feed[name], chosen.kind)) is None:
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
