"""Sources of the values, sizes and ranges of a transformers model's inputs. Runs in the worker."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.config.data import IMAGE, TEXT, TEXT_PAIR
from plansmith.data import synthetic
from plansmith.data.sample import Sample, Takes
from plansmith.data.tables import open_image
from plansmith.records.model import AxisRange, Tensor
from plansmith.sources.collate import encode_arrays, encode_images, encode_texts
from plansmith.sources.huggingface.inputs.axes import axis_range, led_range, position_limits
from plansmith.sources.huggingface.inputs.dummy import Contents, TokenIdSource, filled
from plansmith.sources.huggingface.inputs.kinds import (
    HEIGHT,
    KINDS,
    SIDE,
    VOCABULARY,
    WIDTH,
    WITHOUT_MASK,
    Fill,
    Form,
    Kind,
)
from plansmith.sources.huggingface.outputs import TARGET, Fact, number, special_ids, stated
from plansmith.sources.huggingface.processors import Preprocessors, read_preprocessors
from plansmith.sources.loaded_model import SEQUENCE, Align, Encode, Encoded, InputPlan

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from transformers import PreTrainedModel

USUAL_SIDE = 224
NO_ID = -1

RANDOM_IDS = "random token ids (the model has no tokenizer)"
_TEXTS = {"input_ids", "attention_mask", "token_type_ids"}
_IMAGES = {"pixel_values", "pixel_mask"}
_MASKS = ("attention_mask", "padding_mask", "input_features_mask", "decoder_attention_mask")
_WHOLE = {"do_resize": False, "do_center_crop": False, "do_pad": False}


@dataclass(frozen=True)
class Source:
    """Source facts: a model's configuration and processors, as used for inputs.

    Args:
        config: of the model.
        pre: tokenizer and processors.
        folder: where they lie.
        limits: the largest sizes that the model has positions for.
    """

    config: Any
    pre: Preprocessors
    folder: Path
    limits: Mapping[str, int]

    @classmethod
    def of(cls, model: PreTrainedModel, folder: Path, *, trust_remote_code: bool) -> Source:
        """Collect the facts of a model and its directory.

        Raises:
            SourceError: there is a tokenizer or processor that cannot be read.
        """
        arguments = inspect.signature(model.forward).parameters
        pre = read_preprocessors(folder, trust_remote_code=trust_remote_code, arguments=arguments)
        return cls(model.config, pre, folder, position_limits(model))

    @property
    def offered(self) -> tuple[str, ...]:
        """The inputs that the processors produce."""
        return self.pre.names

    def settle_padding(self, model: PreTrainedModel) -> None:
        """Set the padding id of a configuration: the tokenizer's, otherwise an id that no token has.

        Classifiers on decoders take the last token that is no padding, and refuse batches where they do not know it.
        """
        text = model.config.get_text_config()
        if getattr(text, "pad_token_id", 0) is None:
            padding = getattr(self.pre.tokenizer, "pad_token_id", None)
            text.pad_token_id = NO_ID if padding is None else padding

    def has(self, kind: Kind, form: Form) -> bool:
        """Whether the configuration states every fact of a form."""
        facts = [*(dim for dim in form.dims if isinstance(dim, Fact)), *form.needs]
        return all(number(self.config, fact, kind.side) is not None for fact in facts)

    def unknown_facts(self, name: str) -> tuple[str, ...]:
        """Return the facts that a known input's forms lack; none if one form is known, or accompanies another."""
        forms = [(kind, form) for kind in KINDS[name] for form in kind.forms]
        if not forms or any(not kind.forms for kind in KINDS[name]) or any(self.has(*pair) for pair in forms):
            return ()
        kind, form = forms[0]
        facts = [*(dim for dim in form.dims if isinstance(dim, Fact)), *form.needs]
        return tuple(fact.names[0] for fact in facts if number(self.config, fact, kind.side) is None)

    def dims(self, kind: Kind, form: Form) -> tuple[int | str, ...]:
        """Return a form's dims: names and numbers."""
        return tuple((number(self.config, dim, kind.side) or 0) if isinstance(dim, Fact) else dim for dim in form.dims)

    def is_worth(self, kind: Kind) -> bool:
        """Whether an optional input carries information that the model can use."""
        is_written = kind.like == "decoder_input_ids"  # no processor gives what stands beside it
        if kind.fill in {Fill.SEGMENTS, Fill.MASK} and not is_written and (self.pre.tokenizer or self.pre.sound):
            return kind.name in self.offered
        if kind.fill is Fill.SEGMENTS:
            return any(bound > 1 for bound in self._bounds(kind))
        if kind.fill is Fill.BOXES:
            return number(self.config, Fact(("max_2d_position_embeddings",))) is not None
        return kind.fill is not Fill.MASK or not any(
            stated(self.config, (name,)) == value for name, value in WITHOUT_MASK.items()
        )

    def usual_sides(self) -> tuple[tuple[int, int], ...]:
        """Return the usual heights and widths of images: from the processor and the configuration."""
        sizes = []
        if self.pre.images is not None:
            batch = self._processed(synthetic.sample_images(1, 256, 320, seed=1))
            sizes += [(int(batch.shape[2]), int(batch.shape[3]))] if batch is not None and batch.ndim == 4 else []
        height, width = (number(self.config, Fact(SIDE.names, place=place), ("vision", "backbone")) for place in (0, 1))
        sizes += [(height, width)] if height and width else []
        return tuple(dict.fromkeys(sizes)) or ((USUAL_SIDE, USUAL_SIDE),)

    def plan(
        self, tensors: Sequence[Tensor], kinds: Mapping[str, Kind], sides: tuple[int, int], led: Sequence[int] = ()
    ) -> InputPlan:
        """Return a plan for these inputs.

        Args:
            tensors: in the model's order, with names for dims that may move.
            kinds: what they hold, by name.
            sides: the usual height and width of images.
            led: tokens that every text begins with, for what is put into it.
        """
        contents = self._contents(kinds)
        names = list(kinds)
        moving = dict.fromkeys(d for t in tensors for d in t.dims if isinstance(d, str))
        axes = {axis: axis_range(axis, self, dict(zip((HEIGHT, WIDTH), sides, strict=True))) for axis in moving}
        if led and SEQUENCE in axes:
            axes[SEQUENCE] = led_range(axes[SEQUENCE], len(led), self.limits.get(SEQUENCE))

        def make(sizes: Mapping[str, int]) -> dict[str, NDArray[np.generic]]:
            shapes = {t.name: tuple(sizes[d] if isinstance(d, str) else d for d in t.dims) for t in tensors}
            return {t.name: filled(t, kinds[t.name].fill, shapes[t.name], contents, led) for t in tensors}

        mask = next((name for name in _MASKS if name in names), None)
        description, is_random = self._description(kinds)
        return InputPlan(
            tensors=tuple(tensors),
            axes=axes,
            limits={axis: limit for axis, limit in self.limits.items() if axis in axes},
            mask_input=mask,
            make=make,
            data=description,
            takes=self._takes(tensors, mask),
            encode=self._encode(tensors, mask),
            random_values=is_random,
        )

    def _contents(self, kinds: Mapping[str, Kind]) -> Contents:
        return Contents(
            token_sources={name: self._word_source(kind) for name, kind in kinds.items() if kind.fill is Fill.IDS},
            bounds={name: bounds for name, kind in kinds.items() if (bounds := self._bounds(kind))},
            images=lambda images: self._processed(images, **_WHOLE),
        )

    def _word_source(self, kind: Kind) -> TokenIdSource:
        """Return the source of one input's ids; those of a decoder start with its start tokens."""
        vocabulary = number(self.config, VOCABULARY, kind.side) or 2
        tokenizer = self.pre.tokenizer
        if tokenizer is not None and (len(tokenizer) > vocabulary or tokenizer.pad_token_id == len(tokenizer)):
            tokenizer = None
        special = special_ids(self.config) | set(getattr(self.pre.tokenizer, "all_special_ids", ()))
        padding = getattr(self.pre.tokenizer, "pad_token_id", None)
        if padding is None or padding >= vocabulary:
            padding = stated(self.config, ("pad_token_id",), kind.side)
        ends = stated(self.config, ("eos_token_id",), kind.side)
        end = ends[0] if isinstance(ends, list) and ends else ends
        start = stated(self.config, ("decoder_start_token_id",), kind.side) if kind.side == TARGET else None
        return TokenIdSource(
            vocabulary=vocabulary,
            special=frozenset(special),
            padding=padding if isinstance(padding, int) and 0 <= padding < vocabulary else 0,
            start=start if isinstance(start, int) and 0 <= start < vocabulary else None,
            end=end if isinstance(end, int) and 0 <= end < vocabulary else None,
            tokenizer=tokenizer,
        )

    def _bounds(self, kind: Kind) -> tuple[int, ...]:
        """Return the exclusive upper bound of integers in an input; one per column if they differ."""
        if kind.bound is None:
            return ()
        value = stated(self.config, kind.bound.names, kind.side)
        if isinstance(value, list | tuple) and value:
            return tuple(value)
        size = number(self.config, kind.bound, kind.side)
        return () if size is None else (size,)

    def _processed(self, images: Sequence[Any], **options: bool) -> NDArray[np.generic] | None:
        """Process images with the model's own processor; None if there is none or it cannot process them."""
        import numpy as np

        if self.pre.images is None:
            return None
        if getattr(self.pre.images, "apply_ocr", False):  # reading the words in them needs a program of its own
            options["apply_ocr"] = False
        try:
            array = self.pre.images(list(images), return_tensors="np", **options)["pixel_values"]
        except (ValueError, TypeError, KeyError, IndexError, RuntimeError, AttributeError):
            return None
        return np.asarray(array, dtype=np.float32)

    def _description(self, kinds: Mapping[str, Kind]) -> tuple[str, bool]:
        """Describe the inputs; return also whether any is random because real data are not available."""
        sources: dict[str, bool] = {}
        for name, kind in kinds.items():
            if kind.fill is Fill.IDS:
                real = self._word_source(kind).tokenizer is not None
                sources[synthetic.SENTENCES if real else RANDOM_IDS] = not real
            elif kind.fill in {Fill.IMAGES, Fill.VIDEO}:
                real = self.pre.images is not None or self.pre.video is not None
                sources[
                    synthetic.DRAWN_IMAGES if real else f"{synthetic.DRAWN_IMAGES} (the model has no image processor)"
                ] = not real
            elif kind.fill is Fill.SOUND:
                real = self.pre.sound is not None
                sources["drawn sound" if real else "drawn sound (the model has no feature extractor)"] = not real
            elif kind.fill in {Fill.VALUES, Fill.LABELS}:
                sources[f"random {name}"] = True
        return " and ".join(sorted(sources, key=lambda description: (not sources[description], description))), any(
            sources.values()
        )

    def _takes(self, tensors: Sequence[Tensor], mask: str | None) -> Takes:
        names = [t.name for t in tensors]
        roles: tuple[str, ...] = ()
        if self._is_text(tensors):
            roles = (TEXT, TEXT_PAIR)
        elif self._is_image(names):
            roles = (IMAGE,)
        # The main input comes first: what the others are made from, where data have that alone.
        first = [name for name in ("input_ids", "pixel_values") if name in names]
        return Takes(roles, tuple(dict.fromkeys([*first, *names])), optional=() if mask is None else (mask,))

    def _is_text(self, tensors: Sequence[Tensor]) -> bool:
        """Whether every input is derived from texts, one or two per sample."""
        flat = {t.name for t in tensors if len(t.dims) == 2}
        return self.pre.tokenizer is not None and "input_ids" in flat and {t.name for t in tensors} == flat & _TEXTS

    def _is_image(self, names: Sequence[str]) -> bool:
        return self.pre.images is not None and "pixel_values" in names and set(names) <= _IMAGES

    def _encode(self, tensors: Sequence[Tensor], mask: str | None) -> Encode:
        names = [t.name for t in tensors]

        def encode(samples: Sequence[Sample], axes: Mapping[str, AxisRange], align: Align) -> Encoded:
            if TEXT in samples[0].values and self._is_text(tensors):
                return encode_texts(self.pre.tokenizer, names, samples, axes[SEQUENCE], align)
            if IMAGE in samples[0].values and self._is_image(names):
                pixels = next(t for t in tensors if t.name == "pixel_values")
                masks = [t for t in tensors if t.name == "pixel_mask"]
                return _with_masks(encode_images(pixels, samples, self._one_image, axes), masks)
            return encode_arrays(tensors, mask, samples, axes)

        return encode

    def _one_image(self, value: Any, where: str) -> NDArray[np.generic]:
        array: NDArray[np.generic] = self.pre.images([open_image(value, where)], return_tensors="np")["pixel_values"][0]
        return array


def _with_masks(images: Encoded, masks: Sequence[Tensor]) -> Encoded:
    """Add all-ones masks: images of one size have no padding."""
    import numpy as np

    batch, _, *sides = next(iter(images.feed.values())).shape
    return Encoded({**images.feed, **{m.name: np.ones((batch, *sides), m.dtype) for m in masks}}, images.labels)
