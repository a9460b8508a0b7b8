"""Transformers models that nothing describes: what a spec says of their inputs, and what it would have to say."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from plansmith.config import InputSpec
from plansmith.errors import SourceError, UsageError
from plansmith.sources.config_facts import number
from plansmith.sources.input_kinds import KINDS, VOCABULARY
from plansmith.types import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_DIMS = ("batch", 32)
# Arguments that are no tensors, and those that only training or the model itself gives.
_FLAGS = {"output_attentions", "output_hidden_states", "return_dict", "use_cache", "interpolate_pos_encoding", "kwargs"}
_INSIDE = re.compile(r"^output_|labels|loss|past_key|cache|embeds$|head_mask|outputs$|logits_to_keep|^position_ids$")


def odd_inputs(arguments: Iterable[str]) -> list[str]:
    """Of a forward method's arguments, the inputs that no kind describes."""
    return [name for name in arguments if name not in KINDS and name not in _FLAGS and not _INSIDE.search(name)]


def given_tensors(model: PreTrainedModel, given: Mapping[str, InputSpec]) -> tuple[Tensor, ...]:
    """The inputs that a spec describes.

    Raises:
        UsageError: the model has no such input, or one is not described in full.
    """
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


def undescribed(model: PreTrainedModel, why: str, required: Sequence[str]) -> SourceError:
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
