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
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.config import InputSpec
from plansmith.errors import SourceError, UsageError, first_line
from plansmith.sources.config_facts import number
from plansmith.sources.drawn import plan_drawn
from plansmith.sources.hf_contents import Source
from plansmith.sources.input_kinds import HEIGHT, KINDS, VOCABULARY, WIDTH, Fill, Form, Kind, kinds_of
from plansmith.sources.live import InputPlan
from plansmith.types import BATCH, Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from transformers import PreTrainedModel

    Arrays = Mapping[str, NDArray[np.generic]]
    Ask = Callable[[Arrays], Arrays]

_DIMS = ("batch", 32)
# Arguments that are no tensors, and those that only training or the model itself gives.
_FLAGS = {"output_attentions", "output_hidden_states", "return_dict", "use_cache", "interpolate_pos_encoding", "kwargs"}
_INSIDE = re.compile(r"labels|loss|past_key|cache|embeds$|head_mask|outputs$|logits_to_keep|^position_ids$")
_NAMED = 4
_TRIED_LENGTH = 16
_APART = 3
_MOST_TRIES = 24


def small_sizes(plan: InputPlan) -> dict[str, int]:
    """Two short samples; what may not be cut short, such as images, is as large as usual."""
    whole = {HEIGHT, WIDTH} if not plan.guessed else set(plan.axes)
    sizes = {
        axis: r.opt if axis in whole or r.min > _TRIED_LENGTH else _TRIED_LENGTH + _APART * place
        for place, (axis, r) in enumerate(plan.axes.items())
    }
    return {axis: min(size if axis != BATCH else 2, plan.axes[axis].max) for axis, size in sizes.items()}


@dataclass(frozen=True)
class _Chosen:
    """One input of a plan: what it is, and its form."""

    kind: Kind
    tensor: Tensor
    length: int | None


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
        return plan_drawn(_given_tensors(model, given), given)
    source = Source.of(model, folder, trust_remote_code=trust_remote_code)
    source.settle_padding(model)
    known = inspect.signature(model.forward).parameters
    required = [n for n, p in known.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    main = [model.main_input_name] if isinstance(model.main_input_name, str) else list(model.main_input_name)
    missing = [name for name in (*main, *required) if name not in KINDS]
    if missing:
        raise _undescribed(model, f"nothing says what {', '.join(dict.fromkeys(missing))} looks like", required)
    # Heads that write nothing make their decoder read what the encoder read, where nobody gives it anything else.
    also = [n for n in ("decoder_input_ids",) if model.can_generate() and model.config.is_encoder_decoder]
    wanted = {*main, *required, *also, *source.offered}
    problem: Exception | None = None
    for draft in _drafts(main[0], [n for n in known if n in wanted], tuple(known), source):
        try:
            return _without_idle(_completed(draft, ask), ask, {*main, *required}).plan()
        except _RefusedError as error:
            problem = problem or error.__cause__  # type: ignore[assignment]
    assert problem is not None
    odd = [name for name in known if name not in KINDS and name not in _FLAGS and not _INSIDE.search(name)]
    beside = f"; nothing says what {', '.join(odd[:_NAMED])} look like" if odd else ""
    raise _undescribed(model, f"it does not answer: {first_line(problem)}{beside}", [*required, *odd[:2]]) from problem


class _RefusedError(Exception):
    """The model does not answer to a draft; the cause is what it said."""


@dataclass(frozen=True)
class _Draft:
    """The inputs so far, in the order of the signature.

    Args:
        main: the kind and form of the main input.
        names: of all.
        arguments: of the forward method.
        source: what values, forms and ranges come from.
        sides: the usual height and width of images.
    """

    main: tuple[Kind, Form]
    names: tuple[str, ...]
    arguments: tuple[str, ...]
    source: Source
    sides: tuple[int, int]

    def inputs(self) -> tuple[_Chosen, ...]:
        """Every input whose form is known."""
        made: dict[str, _Chosen] = {}
        kind, form = self.main
        made[kind.name] = self._chosen(kind, form)
        for name in self.names:
            for other in KINDS[name] if name not in made else ():
                found = self._first_form(other) or self._like(other, made)
                if found is not None:
                    made[name] = found
                    break
        return tuple(made[name] for name in self.arguments if name in made)

    def adding(self, *names: str) -> _Draft:
        """With more inputs."""
        wanted = {*self.names, *names}
        return _Draft(
            self.main, tuple(n for n in self.arguments if n in wanted), self.arguments, self.source, self.sides
        )

    def without(self, name: str) -> _Draft:
        """With one input less."""
        kept = tuple(n for n in self.names if n != name)
        return _Draft(self.main, kept, self.arguments, self.source, self.sides)

    def plan(self) -> InputPlan:
        """As a plan."""
        chosen = self.inputs()
        return self.source.plan([c.tensor for c in chosen], {c.kind.name: c.kind for c in chosen}, self.sides)

    def _first_form(self, kind: Kind) -> _Chosen | None:
        form = next((f for f in kind.forms if self.source.has(kind, f)), None)
        return None if form is None else self._chosen(kind, form)

    def _chosen(self, kind: Kind, form: Form) -> _Chosen:
        dims = self.source.dims(kind, form)
        return _Chosen(kind, Tensor(name=kind.name, dtype=kind.dtype, dims=dims), form.length)

    def _like(self, kind: Kind, made: Mapping[str, _Chosen]) -> _Chosen | None:
        """An input in the form of another one: a mask, segments, or marks of what was observed."""
        if kind.forms and not kind.like:
            return None
        beside = made.get(kind.like or self.main[0].name)
        if beside is None or (kind.fill is Fill.MASK and beside.length is None):
            # The main input has no length; the texts beside images have.
            beside = made.get("input_ids")
        if beside is None or beside.length is None:
            return None
        dims = beside.tensor.dims
        if kind.fill is Fill.MASK:
            is_text = beside.kind.fill is Fill.IDS
            dims = dims if is_text else (dims[0], dims[beside.length])
        return _Chosen(kind, Tensor(name=kind.name, dtype=kind.dtype, dims=dims), beside.length)


def _drafts(main: str, wanted: Sequence[str], arguments: tuple[str, ...], source: Source) -> Iterator[_Draft]:
    """The forms that the main input may have, and the sizes of images, the likeliest first."""
    forms = [(kind, form) for kind in KINDS[main] for form in kind.forms if source.has(kind, form)]
    for (kind, form), sides in product(forms, source.usual_sides()):
        if HEIGHT not in form.dims and sides != source.usual_sides()[0]:
            continue
        draft = _Draft((kind, form), tuple(kinds_of(wanted)), arguments, source, sides)
        yield draft.adding(*_companions(draft))


def _companions(draft: _Draft) -> Iterator[str]:
    """What is worth having beside the inputs: masks, segments where the model knows several, boxes."""
    for name in draft.names:
        for companion in next(iter(KINDS[name])).companions:
            if companion in draft.arguments and draft.source.is_worth(KINDS[companion][0]):
                yield companion


def _completed(draft: _Draft, ask: Ask) -> _Draft:
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
        draft = draft.adding(*named[:1], *_companions(draft.adding(*named[:1])))
        problem = _problem(draft, ask)
        if problem is None:
            return draft
    for tried in _guesses(draft):
        if _problem(tried, ask) is None:
            return tried
    raise _RefusedError from problem


def _guesses(draft: _Draft) -> Iterator[_Draft]:
    """Each other input that is known by itself; then one after another."""
    others = _others(draft)[:_MOST_TRIES]
    for name in others:
        more = draft.adding(name)
        yield more.adding(*_companions(more))
    for count in range(2, len(others) + 1):
        yield draft.adding(*others[:count])


def _others(draft: _Draft) -> list[str]:
    made = {chosen.kind.name for chosen in draft.inputs()}
    return [name for name in draft.arguments if name in KINDS and name not in made]


def _problem(draft: _Draft, ask: Ask) -> Exception | None:
    """What the model says against some inputs; None where it answers."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ask(_feed(draft))
    except Exception as error:  # noqa: BLE001 - what a model raises is not known; that it does is the answer
        return error
    return None


def _feed(draft: _Draft) -> Arrays:
    plan = draft.plan()
    return plan.make(small_sizes(plan))


def _without_idle(draft: _Draft, ask: Ask, needed: set[str]) -> _Draft:
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


def _given_tensors(model: PreTrainedModel, given: Mapping[str, InputSpec]) -> tuple[Tensor, ...]:
    known = inspect.signature(model.forward).parameters
    names_none = all(p.kind is p.VAR_KEYWORD for p in known.values())
    unknown = [name for name in given if name not in known and not names_none]
    if unknown:
        takes = [name for name, p in known.items() if p.kind is not p.VAR_KEYWORD and name not in _FLAGS]
        raise UsageError(
            f"inputs: {type(model).__name__} has no input {', '.join(unknown)}",
            remedy=f"it takes {', '.join(takes)}",
        )
    vague = [name for name, said in given.items() if not said.dtype or not said.dims]
    if vague:
        said = given[vague[0]]
        raise UsageError(
            f"inputs: {', '.join(vague)} needs both a dtype and dims",
            remedy="for example:\n  inputs:\n"
            f"    {vague[0]}: {{dtype: {said.dtype or 'float32'}, dims: [{', '.join(map(str, said.dims or _DIMS))}]}}",
        )
    return tuple(Tensor(name=name, dtype=said.dtype, dims=said.dims) for name, said in given.items())


def _undescribed(model: PreTrainedModel, why: str, required: Sequence[str]) -> SourceError:
    """That a spec has to say what a model takes, with the lines to adapt."""
    return SourceError(
        f"{type(model).__name__}: {why}",
        remedy="say what it takes in a spec, where names in dims vary and numbers are fixed, and compile that,"
        f" model.yaml:\n{_example(model, required)}",
    )


def _example(model: PreTrainedModel, required: Sequence[str]) -> str:
    """The part of a spec that says what a model takes, to be adapted."""
    largest = (number(model.config, VOCABULARY) or 100) - 1
    main = [model.main_input_name] if isinstance(model.main_input_name, str) else model.main_input_name
    lines = []
    for name in dict.fromkeys((*main, *required)):
        axis = "target" if name.startswith("decoder") else "sequence"
        ids = f"{{dtype: int64, dims: [batch, {axis}], low: 0, high: {largest}}}"
        lines.append(f"    {name}: {ids if name.endswith('ids') else '{dtype: float32, dims: [batch, 16]}'}")
    return "\n".join(["  source: hf:…", "  inputs:", *lines[:6]])
