"""Input signature of a transformers model: from its forward method, configuration, processors and the model itself.

The kinds of input are a table (`kinds`). Of a forward method's arguments a plan takes the main one, those that
the tokenizer or processor makes, masks, and those without which the model does not answer. Runs in the worker.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from plansmith.config.spec import InputSpec
from plansmith.errors import first_line
from plansmith.records.model import BATCH, Tensor
from plansmith.sources.huggingface.inputs.axes import USUAL_FRAMES, position_limits
from plansmith.sources.huggingface.inputs.kinds import (
    FRAMES,
    HEIGHT,
    KINDS,
    VIDEO_FRAMES,
    WIDTH,
    Fill,
    Form,
    Kind,
    described_tensors,
    kinds_of,
    odd_inputs,
    undescribed,
    within_limits,
)
from plansmith.sources.huggingface.inputs.values import Source
from plansmith.sources.huggingface.outputs import stated
from plansmith.sources.loaded_model import InputPlan, changed_output
from plansmith.sources.random_inputs import plan_drawn
from plansmith.system.memory import tells_of_memory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from transformers import PreTrainedModel

    from plansmith.records.arrays import Arrays

    Ask = Callable[[Arrays], Arrays]

_TRIED_LENGTH = 16
_APART = 3
_MOST_TRIES = 24
_SEEN = {Fill.IMAGES, Fill.VIDEO, Fill.SOUND}
_NAMED = 4
_MOST_DRAFTS = 12
# Under one name a Perceiver, and a pair of speech encoder and decoder, takes what has a name of its own as well.
_OWN_NAMES = {"inputs": ("input_ids", "pixel_values", "input_values", "input_features")}


@dataclass(frozen=True)
class ChosenInput:
    """Chosen input of a plan: its kind and its form."""

    kind: Kind
    tensor: Tensor
    length: int | None


@dataclass(frozen=True)
class Draft:
    """Draft of the inputs, in signature order.

    Args:
        main: the kind and form of the main input.
        names: of all.
        arguments: of the forward method.
        source: what values, forms and ranges come from.
        sides: the usual height and width of images.
        forms: of inputs that have several, the one that counts; the first of the others does.
        is_complete: whether images and sounds have their usual sizes, and no others.
        led: tokens that every text begins with, for the images or sounds that are put into it.
    """

    main: tuple[Kind, Form]
    names: tuple[str, ...]
    arguments: tuple[str, ...]
    source: Source
    sides: tuple[int, int]
    forms: tuple[tuple[Kind, Form], ...] = ()
    is_complete: bool = False
    led: tuple[int, ...] = ()

    def inputs(self) -> tuple[ChosenInput, ...]:
        """Return every input with a known form."""
        inputs_by_name: dict[str, ChosenInput] = {}
        for kind, form in (self.main, *self.forms):
            if kind.name in {*self.names, self.main[0].name}:
                inputs_by_name[kind.name] = self._chosen(kind, form)
        for name in self.names:
            for alternative in KINDS[name] if name not in inputs_by_name else ():
                candidate = self._first_form(alternative) or self._like(alternative, inputs_by_name)
                if candidate is not None:
                    inputs_by_name[name] = candidate
                    break
        return tuple(inputs_by_name[name] for name in self.arguments if name in inputs_by_name)

    def adding(self, *names: str) -> Draft:
        """Return the draft with more inputs and their useful companions.

        Masks, segments if there are several, boxes.
        """
        needed_names = {*self.names, *names}
        needed_names |= {c for name in needed_names for c in self._companions(name)}
        return replace(self, names=tuple(n for n in self.arguments if n in needed_names))

    def without(self, name: str) -> Draft:
        """Return the draft with one input less."""
        return replace(self, names=tuple(n for n in self.names if n != name))

    def plan(self) -> InputPlan:
        """Return the draft as a plan."""
        chosen = self.inputs()
        kinds = {c.kind.name: c.kind for c in chosen}
        return self.source.plan([c.tensor for c in chosen], kinds, self.sides, self.led)

    def _companions(self, name: str) -> Iterator[str]:
        for companion in dict.fromkeys(c for kind in KINDS.get(name, ()) for c in kind.companions):
            if companion in self.arguments and self.source.is_worth(KINDS[companion][0]):
                yield companion

    def _first_form(self, kind: Kind) -> ChosenInput | None:
        form = next((f for f in kind.forms if self.source.has(kind, f)), None)
        return None if form is None else self._chosen(kind, form)

    def _chosen(self, kind: Kind, form: Form) -> ChosenInput:
        dims = self.source.dims(kind, form)
        if self.is_complete:
            whole = {**dict(zip((HEIGHT, WIDTH), self.sides, strict=True)), FRAMES: USUAL_FRAMES}
            dims = tuple(whole.get(dim, dim) if isinstance(dim, str) else dim for dim in dims)
        return ChosenInput(kind, Tensor(name=kind.name, dtype=kind.dtype, dims=dims), form.length)

    def _like(self, kind: Kind, inputs_by_name: Mapping[str, ChosenInput]) -> ChosenInput | None:
        """Return an input shaped like another one: a mask, segments, or an observed-values mask."""
        if kind.forms and not kind.like:
            return None
        beside = inputs_by_name.get(kind.like or self.main[0].name)
        if beside is None or (kind.fill is Fill.MASK and beside.length is None):
            # The main input has no length; the texts beside images have.
            beside = inputs_by_name.get("input_ids")
        if beside is None or beside.length is None:
            return None
        dims = beside.tensor.dims
        if kind.fill in {Fill.MASK, Fill.ONES}:
            is_text = beside.kind.fill is Fill.IDS
            dims = dims if is_text else (dims[0], dims[beside.length])
        return ChosenInput(kind, Tensor(name=kind.name, dtype=kind.dtype, dims=dims), beside.length)


class RefusedError(Exception):
    """Refused draft: the model fails on it; the cause is its error."""


class DraftAnswer(NamedTuple):
    """Accepted draft, with the model's answer."""

    draft: Draft
    feed: Arrays
    answer: Arrays


def small_sizes(plan: InputPlan) -> dict[str, int]:
    """Return sizes for two short samples; inputs that cannot be short, such as images, have their usual size."""
    whole = {VIDEO_FRAMES, HEIGHT, WIDTH} if not plan.guessed else set(plan.axes)
    sizes = {
        axis: r.opt if axis in whole or r.min > _TRIED_LENGTH else _TRIED_LENGTH + _APART * place
        for place, (axis, r) in enumerate(plan.axes.items())
    }
    return {axis: min(size if axis != BATCH else 2, plan.axes[axis].max) for axis, size in sizes.items()}


def completed(draft: Draft, ask: Ask, needed: set[str]) -> DraftAnswer:
    """Add the inputs that the model reports as missing, or fails without.

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
    """Return the response without those of the tried inputs that the model does not need."""
    for name in tried.draft.names:
        if name not in before.names:
            less = _answered(tried.draft.without(name), ask)
            tried = less if isinstance(less, DraftAnswer) else tried
    return tried


def steady(first: DraftAnswer, ask: Ask) -> DraftAnswer:
    """Add inputs that the model otherwise draws at random, as far as this makes its answer deterministic."""
    if _is_steady(first, ask):
        return first
    more = (_answered(first.draft.adding(name), ask) for name in _others(first.draft))
    return next(
        (candidate for candidate in more if isinstance(candidate, DraftAnswer) and _is_steady(candidate, ask)), first
    )


def _is_steady(answered: DraftAnswer, ask: Ask) -> bool:
    return changed_output(answered.answer, ask(answered.feed)) is None


def _guesses(draft: Draft, needed: set[str]) -> Iterator[Draft]:
    """Yield drafts: with each other known input alone; with more and more of them; without one that is not needed."""
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
    chosen_names = {chosen.kind.name for chosen in draft.inputs()}
    return [name for name in draft.arguments if name in KINDS and name not in chosen_names]


def _answered(draft: Draft, ask: Ask) -> DraftAnswer | Exception:
    """Return the model's response to some inputs, or its error."""
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
    """Return two short samples of a draft's inputs."""
    plan = draft.plan()
    return plan.make(small_sizes(plan))


def without_idle(first: DraftAnswer, ask: Ask, needed: set[str]) -> Draft:
    """Remove inputs that never change the answer, even in the last bit: a graph would not have them."""
    draft, feed, expected = first
    for chosen in draft.inputs():
        name = chosen.kind.name
        is_placed = bool(draft.led) and chosen.kind.fill in _SEEN
        if name in needed or is_placed or (variant := _changed(feed[name], chosen.kind)) is None:
            continue
        changes = True
        with suppress(Exception):
            changes = _differ(expected, ask({**feed, name: variant}))
        if not changes and isinstance(_answered(draft.without(name), ask), DraftAnswer):
            draft = draft.without(name)
    return draft


def _changed(array: NDArray[np.generic], kind: Kind) -> NDArray[np.generic] | None:
    """Return other values for an input; None if no others would reveal anything."""
    import numpy as np

    if kind.fill in {Fill.MASK, Fill.OBSERVED}:
        return None if array.all() else np.ones_like(array)
    if kind.fill is Fill.SEGMENTS and not array.any():
        return array + np.array(1, array.dtype)
    variant = np.flip(array).copy()
    return None if np.array_equal(variant, array) else variant


def _differ(first: Arrays, second: Arrays) -> bool:
    import numpy as np

    return any(not np.array_equal(first[name], second[name], equal_nan=True) for name in first)


class Placeholders(NamedTuple):
    """Placeholder tokens: how inputs of one kind are inserted into a text."""

    name: str
    tokens: tuple[str, ...]
    method: str


# The input, the facts that say which token stands for it, and what the model is asked for its vectors by.
_PLACED = (
    Placeholders("pixel_values", ("image_token_id", "image_token_index"), "get_image_features"),
    Placeholders("input_features", ("audio_token_id", "audio_token_index"), "get_audio_features"),
)


def leading_tokens(model: PreTrainedModel, make: Callable[[], Arrays]) -> tuple[int, ...]:
    """Return the tokens of a text that contains an image or audio; none if neither applies.

    Args:
        model: in eval mode.
        make: makes inputs by name, of whole images and sounds.

    Raises:
        Exception: whatever the model raises where it cannot take them.
    """
    ids: list[int] = []
    pairs = [(modality, stated(model.config, modality.tokens)) for modality in _PLACED]
    feed = make() if any(type(token) is int for _, token in pairs) else {}
    for (name, _, method), token in pairs:
        encoder = getattr(model, method, None) or getattr(model.base_model, method, None)
        if name in feed and "input_ids" in feed and type(token) is int and encoder is not None:
            ids += [token] * (_vectors(encoder, feed) // len(feed[name]))
    return tuple(ids)


def _vectors(method: Any, feed: Arrays) -> int:
    """Return how many vectors a model computes for all its images or audio clips."""
    import torch

    takes = inspect.signature(method).parameters
    with torch.inference_mode():
        answer = method(**{name: torch.from_numpy(array) for name, array in feed.items() if name in takes})
    features = getattr(answer, "pooler_output", answer)
    return sum(part.numel() // part.shape[-1] for part in (features if isinstance(features, Sequence) else [features]))


def _main_inputs(model: PreTrainedModel, offered: Sequence[str]) -> list[str]:
    """Return the names of a model's main inputs: of several names, the one that its processors use."""
    main = [model.main_input_name] if isinstance(model.main_input_name, str) else list(model.main_input_name)
    takes = inspect.signature(model.forward).parameters
    return [next((own for own in _OWN_NAMES.get(n, ()) if own in offered and own in takes), n) for n in main]


def plan_inputs(
    model: PreTrainedModel, folder: Path, trust_remote_code: bool, specs: Mapping[str, InputSpec], ask: Ask
) -> InputPlan:
    """Plan a model's inputs: from the spec, otherwise from the model and its directory.

    Args:
        model: loaded, in eval mode.
        folder: where its tokenizer or processor lies, if it has one.
        trust_remote_code: whether the model's own Python code may be run.
        specs: what the spec says.
        ask: runs the model on arrays by name; raises anything where it fails.

    Raises:
        SourceError: nothing says what the model takes.
        UsageError: the spec's inputs are not the model's, or are not described in full.
    """
    if specs:
        return within_limits(plan_drawn(described_tensors(model, specs), specs), position_limits(model))
    source = Source.of(model, folder, trust_remote_code=trust_remote_code)
    source.settle_padding(model)
    forward_parameters = inspect.signature(model.forward).parameters
    anything = all(p.kind in {p.VAR_KEYWORD, p.VAR_POSITIONAL} for p in forward_parameters.values())
    arguments = tuple(KINDS if anything else forward_parameters)
    required = [n for n, p in forward_parameters.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    main = _main_inputs(model, source.offered)
    missing = [name for name in (*main, *required) if name not in KINDS]
    if missing:
        message = f"nothing says what {', '.join(dict.fromkeys(missing))} looks like"
        raise undescribed(model, message, [*main, *required])
    needed = {*main, *required}
    for name in needed:
        facts = source.unknown_facts(name)
        if facts:
            message = f"its configuration does not size {name}: it states no {' or '.join(facts)}"
            raise undescribed(model, message, [*main, *required])
    # Heads that write nothing make their decoder read what the encoder read, where nobody gives it anything else.
    also = [n for n in ("decoder_input_ids",) if model.can_generate() and model.config.is_encoder_decoder]
    used_names = {*main, *required, *also, *source.offered}
    problems: list[BaseException] = []
    for draft in _drafts(main[0], [n for n in arguments if n in used_names], arguments, source):
        try:
            whole = steady(completed(_led(draft, model), ask, needed), ask)
            return without_idle(whole, ask, needed).plan()
        except RefusedError as error:
            problems.append(error.__cause__ or error)
    odd = odd_inputs(forward_parameters)
    beside = f"; nothing says what {', '.join(odd[:_NAMED])} look like" if odd else ""
    listed = [name for name in arguments if name in {*used_names, *odd[:_NAMED]}]
    raise undescribed(model, f"it does not answer: {first_line(problems[0])}{beside}", listed) from problems[0]


def _drafts(main: str, input_names: Sequence[str], arguments: tuple[str, ...], source: Source) -> Iterator[Draft]:
    """Yield possible forms of the main input and image sizes, most likely first."""
    names = [main, *(name for name in kinds_of(input_names) if name != main)]
    forms = [_forms(name, source) for name in names]
    several = product(*(options for options in forms[1:] if len(options) > 1))
    usual = source.usual_sides()

    def sides_of(chosen: Sequence[tuple[Kind, Form]]) -> tuple[tuple[int, int], ...]:
        return usual if any(HEIGHT in form.dims for _, form in chosen) else usual[:1]

    every = ((first, sides, more) for more in several for first in forms[0] for sides in sides_of((first, *more)))
    for first, sides, more in islice(every, _MOST_DRAFTS):
        draft = Draft(first, tuple(names), arguments, source, sides, more)
        yield draft.adding()


def _forms(name: str, source: Source) -> list[tuple[Kind, Form]]:
    return [(kind, form) for kind in KINDS[name] for form in kind.forms if source.has(kind, form)]


def _led(draft: Draft, model: PreTrainedModel) -> Draft:
    """Return the draft with placeholder tokens for images or audio, if the model has any."""
    whole = replace(draft, is_complete=True)  # other sizes would make other numbers of tokens
    with suppress(Exception):  # what it has against them, it says again when it is asked
        led = leading_tokens(model, lambda: feed_of(whole))
        return replace(whole, led=led) if led else draft
    return draft
