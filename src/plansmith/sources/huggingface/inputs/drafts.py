"""Drafts of what a transformers model is fed with: chosen inputs, each with the form that its kind has there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from plansmith.records.model import Tensor
from plansmith.sources.huggingface.inputs.axes import USUAL_FRAMES
from plansmith.sources.huggingface.inputs.kinds import FRAMES, HEIGHT, KINDS, WIDTH, Fill, Form, Kind
from plansmith.sources.huggingface.inputs.values import Source
from plansmith.sources.loaded_model import InputPlan


@dataclass(frozen=True)
class ChosenInput:
    """One input of a plan: what it is, and its form."""

    kind: Kind
    tensor: Tensor
    length: int | None


@dataclass(frozen=True)
class Draft:
    """The inputs so far, in the order of the signature.

    Args:
        main: the kind and form of the main input.
        names: of all.
        arguments: of the forward method.
        source: what values, forms and ranges come from.
        sides: the usual height and width of images.
        forms: of inputs that have several, the one that counts; the first of the others does.
        whole: whether images and sounds have their usual sizes, and no others.
        led: tokens that every text begins with, for the images or sounds that are put into it.
    """

    main: tuple[Kind, Form]
    names: tuple[str, ...]
    arguments: tuple[str, ...]
    source: Source
    sides: tuple[int, int]
    forms: tuple[tuple[Kind, Form], ...] = ()
    whole: bool = False
    led: tuple[int, ...] = ()

    def inputs(self) -> tuple[ChosenInput, ...]:
        """Every input whose form is known."""
        made: dict[str, ChosenInput] = {}
        for kind, form in (self.main, *self.forms):
            if kind.name in {*self.names, self.main[0].name}:
                made[kind.name] = self._chosen(kind, form)
        for name in self.names:
            for other in KINDS[name] if name not in made else ():
                found = self._first_form(other) or self._like(other, made)
                if found is not None:
                    made[name] = found
                    break
        return tuple(made[name] for name in self.arguments if name in made)

    def adding(self, *names: str) -> Draft:
        """With more inputs, and what is worth having beside those: masks, segments where there are several, boxes."""
        wanted = {*self.names, *names}
        wanted |= {c for name in wanted for c in self._companions(name)}
        return replace(self, names=tuple(n for n in self.arguments if n in wanted))

    def without(self, name: str) -> Draft:
        """With one input less."""
        return replace(self, names=tuple(n for n in self.names if n != name))

    def plan(self) -> InputPlan:
        """As a plan."""
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
        if self.whole:
            whole = {**dict(zip((HEIGHT, WIDTH), self.sides, strict=True)), FRAMES: USUAL_FRAMES}
            dims = tuple(whole.get(dim, dim) if isinstance(dim, str) else dim for dim in dims)
        return ChosenInput(kind, Tensor(name=kind.name, dtype=kind.dtype, dims=dims), form.length)

    def _like(self, kind: Kind, made: Mapping[str, ChosenInput]) -> ChosenInput | None:
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
        if kind.fill in {Fill.MASK, Fill.ONES}:
            is_text = beside.kind.fill is Fill.IDS
            dims = dims if is_text else (dims[0], dims[beside.length])
        return ChosenInput(kind, Tensor(name=kind.name, dtype=kind.dtype, dims=dims), beside.length)
