"""Transformers models that nothing describes: what a spec says of their inputs, and what it would have to say."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plansmith.config.spec import InputSpec
from plansmith.errors import SourceError, UsageError
from plansmith.records.model import BATCH, AxisRange, Tensor
from plansmith.sources.huggingface.config_values import IMAGE, Fact, number
from plansmith.sources.huggingface.inputs.kinds import HEIGHT, KINDS, SIDE, TARGET_AXIS, WIDTH, Form
from plansmith.sources.loaded_model import SEQUENCE, InputPlan

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_DIMS = ("batch", 32)
_LISTED = 8
# How documentations of forward methods say what a tensor is.
_DOCUMENTED = re.compile(r"^ *(\w+) \(`(?:torch\.)?(\w+)`(.*?)(?=^ *\w+ \(`|\Z)", re.MULTILINE | re.DOTALL)
_SHAPE = re.compile(r"shape `\(([^`]*)\)`")
_DTYPES = {"LongTensor": "int64", "IntTensor": "int64", "BoolTensor": "bool"}
_AXES = {"batch_size": BATCH, "sequence_length": SEQUENCE, "target_sequence_length": TARGET_AXIS}
_BESIDE_TEXT = Form((BATCH, SEQUENCE))
# Arguments that are no tensors, and those that only training or the model itself gives.
_FLAGS = {"output_attentions", "output_hidden_states", "return_dict", "use_cache", "interpolate_pos_encoding", "kwargs"}
_INSIDE = re.compile(r"^output_|labels|loss|past_key|cache|embeds$|head_mask|outputs$|logits_to_keep|^position_ids$")


def odd_inputs(arguments: Mapping[str, inspect.Parameter]) -> list[str]:
    """Of a forward method's arguments, the tensors that no kind describes."""
    return [
        name
        for name, one in arguments.items()
        if name not in KINDS and name not in _FLAGS and not _INSIDE.search(name) and _is_tensor(one)
    ]


def _is_tensor(argument: inspect.Parameter) -> bool:
    """Whether an argument may be a tensor: some are numbers or words."""
    return argument.annotation is argument.empty or "Tensor" in str(argument.annotation)


def described_tensors(model: PreTrainedModel, given: Mapping[str, InputSpec]) -> tuple[Tensor, ...]:
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


def within_limits(plan: InputPlan, limits: Mapping[str, int]) -> InputPlan:
    """A plan of described inputs, none longer than the model has positions for.

    Args:
        plan: with the spec's own names of axes.
        limits: by the names that the axes of known inputs have.
    """
    found: dict[str, int] = {}
    for tensor in plan.tensors:
        for form in (form for kind in KINDS.get(tensor.name, ()) for form in kind.forms):
            if len(form.dims) == len(tensor.dims):
                pairs = zip(form.dims, tensor.dims, strict=True)
                found |= {own: limits[str(axis)] for axis, own in pairs if isinstance(own, str) and axis in limits}
    axes = {axis: _at_most(r, found[axis]) if axis in found else r for axis, r in plan.axes.items()}
    return replace(plan, axes=axes, limits=found)


def _at_most(sizes: AxisRange, limit: int) -> AxisRange:
    return AxisRange(min=min(sizes.min, limit), opt=min(sizes.opt, limit), max=min(sizes.max, limit))


def undescribed(model: PreTrainedModel, why: str, names: Sequence[str]) -> SourceError:
    """That a spec has to say what a model takes, with the lines to adapt.

    Args:
        model: that nothing describes.
        why: what is not known of it.
        names: of the inputs that it is known, or likely, to need.
    """
    lines = {name: _line(model, name) for name in list(dict.fromkeys(names))[:_LISTED]}
    unknown = [name for name, line in lines.items() if "…" in line]
    said = [f"    {name}: {line}" for name, line in lines.items()]
    return SourceError(
        f"{type(model).__name__}: {why}",
        remedy=f"write this as model.yaml, fill in … for {', '.join(['source', *unknown])}, and compile it;"
        " names in dims vary, and numbers are fixed:\n" + "\n".join(["  source: hf:…", "  inputs:", *said]),
    )


def _line(model: PreTrainedModel, name: str) -> str:
    """What a spec says of an input, as its kind or its documentation has it; "…" stands for what neither tells."""
    config = model.config
    sides = {HEIGHT: number(config, SIDE, IMAGE), WIDTH: number(config, replace(SIDE, place=1), IMAGE)}
    for kind, form in ((one, form) for one in KINDS.get(name, ()) for form in one.forms or (_BESIDE_TEXT,)):
        facts = {fact: number(config, fact, kind.side) for fact in (*form.dims, *form.needs) if isinstance(fact, Fact)}
        if None not in facts.values():
            dims = [facts[d] if isinstance(d, Fact) else sides.get(str(d)) or d for d in form.dims]
            bound = number(config, kind.bound, kind.side) if kind.bound else None
            return _described(name, kind.dtype, dims, bound or 2)
    for called, dtype, said in _DOCUMENTED.findall(type(model).forward.__doc__ or ""):
        shape = _SHAPE.search(said) if called == name else None
        if shape is not None:
            dims = [_dim(config, word.strip()) for word in shape[1].split(",") if word.strip()]
            return _described(name, _DTYPES.get(dtype, "float32"), dims, 2)
    return "{dtype: …, dims: […]}"


def _described(name: str, dtype: str, dims: Sequence[object], bound: int) -> str:
    """A line of a spec; masks and truth values are drawn as such, other whole numbers below a bound."""
    are_plain = all(isinstance(dim, int) or str(dim).isidentifier() for dim in dims)  # some are sums of others
    said = f"dtype: {dtype}, dims: [{', '.join(map(str, dims)) if are_plain else '…'}]"
    return f"{{{said}, low: 0, high: {bound - 1}}}" if dtype == "int64" and "mask" not in name else f"{{{said}}}"


def _dim(config: Any, word: str) -> str | int:
    """A dim as documentations call it: a number, a fact of the configuration, or the name of an axis."""
    word = word.removeprefix("config.")
    if word.isdigit():
        return int(word)
    return _AXES.get(word) or number(config, Fact((word,))) or word.removeprefix("num_")
