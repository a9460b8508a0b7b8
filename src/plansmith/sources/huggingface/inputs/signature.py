"""What a transformers model is fed with: its signature, configuration and processors say, and the model itself.

The kinds of input are a table (`kinds`). Of a forward method's arguments a plan takes the main one, those that
the tokenizer or processor makes, masks, and those without which the model does not answer. Runs in the worker.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.config.spec import InputSpec
from plansmith.errors import first_line
from plansmith.sources.huggingface.inputs.axes import position_limits
from plansmith.sources.huggingface.inputs.drafts import Draft
from plansmith.sources.huggingface.inputs.kinds import HEIGHT, KINDS, Form, Kind, kinds_of
from plansmith.sources.huggingface.inputs.placeholder_tokens import leading_tokens
from plansmith.sources.huggingface.inputs.required import RefusedError, completed, feed_of, steady, without_idle
from plansmith.sources.huggingface.inputs.user import described_tensors, odd_inputs, undescribed, within_limits
from plansmith.sources.huggingface.inputs.values import Source
from plansmith.sources.inputs.random import plan_drawn
from plansmith.sources.loaded_model import InputPlan

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from plansmith.sources.huggingface.inputs.required import Ask

_NAMED = 4
_MOST_DRAFTS = 12

# Under one name a Perceiver, and a pair of speech encoder and decoder, takes what has a name of its own as well.
_OWN_NAMES = {"inputs": ("input_ids", "pixel_values", "input_values", "input_features")}


def _main_inputs(model: PreTrainedModel, offered: Sequence[str]) -> list[str]:
    """The names of a model's main inputs: of one with several names, that which its processors speak of."""
    main = [model.main_input_name] if isinstance(model.main_input_name, str) else list(model.main_input_name)
    takes = inspect.signature(model.forward).parameters
    return [next((own for own in _OWN_NAMES.get(n, ()) if own in offered and own in takes), n) for n in main]


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
        return within_limits(plan_drawn(described_tensors(model, given), given), position_limits(model))
    source = Source.of(model, folder, trust_remote_code=trust_remote_code)
    source.settle_padding(model)
    known = inspect.signature(model.forward).parameters
    anything = all(p.kind in {p.VAR_KEYWORD, p.VAR_POSITIONAL} for p in known.values())
    arguments = tuple(KINDS if anything else known)
    required = [n for n, p in known.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    main = _main_inputs(model, source.offered)
    missing = [name for name in (*main, *required) if name not in KINDS]
    if missing:
        said = f"nothing says what {', '.join(dict.fromkeys(missing))} looks like"
        raise undescribed(model, said, [*main, *required])
    needed = {*main, *required}
    for name in needed:
        facts = source.unknown_facts(name)
        if facts:
            said = f"its configuration does not size {name}: it states no {' or '.join(facts)}"
            raise undescribed(model, said, [*main, *required])
    # Heads that write nothing make their decoder read what the encoder read, where nobody gives it anything else.
    also = [n for n in ("decoder_input_ids",) if model.can_generate() and model.config.is_encoder_decoder]
    wanted = {*main, *required, *also, *source.offered}
    problems: list[BaseException] = []
    for draft in _drafts(main[0], [n for n in arguments if n in wanted], arguments, source):
        try:
            whole = steady(completed(_led(draft, model), ask, needed), ask)
            return without_idle(whole, ask, needed).plan()
        except RefusedError as error:
            problems.append(error.__cause__ or error)
    odd = odd_inputs(known)
    beside = f"; nothing says what {', '.join(odd[:_NAMED])} look like" if odd else ""
    listed = [name for name in arguments if name in {*wanted, *odd[:_NAMED]}]
    raise undescribed(model, f"it does not answer: {first_line(problems[0])}{beside}", listed) from problems[0]


def _drafts(main: str, wanted: Sequence[str], arguments: tuple[str, ...], source: Source) -> Iterator[Draft]:
    """The forms that the main input may have, and the sizes of images, the likeliest first."""
    names = [main, *(name for name in kinds_of(wanted) if name != main)]
    forms = [_forms(name, source) for name in names]
    several = product(*(known for known in forms[1:] if len(known) > 1))
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
    """With the tokens that the model puts its images or sounds in the place of, where it has such."""
    whole = replace(draft, whole=True)  # other sizes would make other numbers of tokens
    with suppress(Exception):  # what it has against them, it says again when it is asked
        led = leading_tokens(model, lambda: feed_of(whole))
        return replace(whole, led=led) if led else draft
    return draft
