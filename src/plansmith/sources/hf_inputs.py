"""What transformers models are fed with: texts, images, or what a spec says. Runs in the heavy worker."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.config import InputSpec
from plansmith.data import drawn
from plansmith.data.columns import Takes
from plansmith.data.image_files import open_image
from plansmith.data.samples import Sample
from plansmith.data_spec import IMAGE, TEXT, TEXT_PAIR
from plansmith.errors import SourceError, UsageError
from plansmith.sources.drawn import plan_drawn
from plansmith.sources.encoding import encode_arrays, encode_images, encode_texts
from plansmith.sources.live import BATCH_RANGE, SEQUENCE, Align, Encoded, InputPlan
from plansmith.types import BATCH, AxisRange, Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from transformers import PreTrainedModel

USUAL_LENGTH = 128
LONGEST_LENGTH = 512
_DIMS = ("batch", 32)
# Arguments that every transformers model has and that are no tensors.
_FLAGS = {"output_attentions", "output_hidden_states", "return_dict", "use_cache"}
_FALLBACK_CONTENT = "random token ids (the model has no tokenizer)"


def plan_inputs(
    model: PreTrainedModel, folder: Path, trust_remote_code: bool, given: Mapping[str, InputSpec]
) -> InputPlan:
    """What to feed a model with: as the spec says, else by its tokenizer or image processor.

    Raises:
        SourceError: nothing says what the model takes.
        UsageError: the spec's inputs are not the model's, or are not described in full.
    """
    if given:
        return plan_drawn(_given_tensors(model, given), given)
    if model.main_input_name == "pixel_values":
        return _image_inputs(folder)
    if model.main_input_name == "input_ids" and not model.config.is_encoder_decoder:
        return _text_inputs(model, folder, trust_remote_code)
    raise SourceError(
        f"{type(model).__name__} takes {', '.join(_own_inputs(model))}, and nothing says what they look like",
        remedy="say it in a spec, where names in dims vary and numbers are fixed, and compile that, model.yaml:\n"
        f"{_example(model)}",
    )


def has_tokenizer(folder: Path) -> bool:
    """Whether a directory holds a tokenizer."""
    return any((folder / f).is_file() for f in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"))


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


def _own_inputs(model: PreTrainedModel) -> list[str]:
    """The main input and what else the model cannot do without."""
    known = inspect.signature(model.forward).parameters
    needed = [n for n, p in known.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    also = ["decoder_input_ids"] if model.config.is_encoder_decoder and "decoder_input_ids" in known else []
    return list(dict.fromkeys([model.main_input_name, *needed, *also]))


def _example(model: PreTrainedModel) -> str:
    """The part of a spec that says what a model takes, to be adapted."""
    largest = (getattr(model.config, "vocab_size", None) or 100) - 1
    # What time series models say of themselves.
    length, channels = (getattr(model.config, key, None) or 1 for key in ("context_length", "num_input_channels"))
    values = f"{{dtype: float32, dims: [batch, {length}, {channels}]}}"
    lines = []
    for name in _own_inputs(model):
        axis = "target" if name.startswith("decoder") else "sequence"
        ids = f"{{dtype: int64, dims: [batch, {axis}], low: 0, high: {largest}}}"
        lines.append(f"    {name}: {ids if name.endswith('ids') else values}")
    return "\n".join(["  source: hf:…", "  inputs:", *lines[:6]])


def _position_limit(model: PreTrainedModel) -> int | None:
    """The longest sequence that the model has positions for; None where nothing says so."""
    limits = [n for n in [getattr(model.config, "max_position_embeddings", None)] if isinstance(n, int) and n > 0]
    for name, table in model.named_modules():
        if name.endswith("position_embeddings") and getattr(table, "padding_idx", None) is not None:
            # RoBERTa and its kin count positions from the padding index on, and so lose the first ones.
            limits.append(table.num_embeddings - table.padding_idx - 1)
    return min(limits, default=None)


def _authors_length(folder: Path) -> int:
    """The longest sequence by default: the authors' own choice, where there is one."""
    chosen = folder / "sentence_bert_config.json"
    if not chosen.is_file():
        return LONGEST_LENGTH
    return int(json.loads(chosen.read_text()).get("max_seq_length") or LONGEST_LENGTH)


def _text_inputs(model: PreTrainedModel, folder: Path, trust_remote_code: bool) -> InputPlan:
    import numpy as np

    known = inspect.signature(model.forward).parameters
    tokenizer: Any = None
    if has_tokenizer(folder):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
        offered, padding = tokenizer.model_input_names, tokenizer.pad_token_id or 0
        words = drawn.SENTENCES

        def ids(lengths: list[int]) -> list[list[int]]:
            texts = drawn.sample_texts(len(lengths), max(lengths), offset=sum(lengths))
            rows = tokenizer(texts, truncation=True, max_length=max(8, *lengths))["input_ids"]
            # The last token is the model's own end mark; a row is cut before it, never after.
            return [row[: n - 1] + row[-1:] if n > 1 else row[:1] for row, n in zip(rows, lengths, strict=True)]
    else:
        offered, words = ["input_ids", "attention_mask"], _FALLBACK_CONTENT
        padding = getattr(model.config, "pad_token_id", None) or 0

        def ids(lengths: list[int]) -> list[list[int]]:
            rng = np.random.default_rng(sum(lengths))
            return [
                rng.integers(min(10, model.config.vocab_size - 1), model.config.vocab_size, n).tolist() for n in lengths
            ]

    names = [name for name in known if name in offered]
    two_segments = (getattr(model.config, "type_vocab_size", None) or 1) > 1

    def make_inputs(axes: Mapping[str, int]) -> dict[str, NDArray[np.generic]]:
        batch, longest = axes[BATCH], axes[SEQUENCE]
        tokens = np.full((batch, longest), padding, dtype=np.int64)
        mask = np.zeros((batch, longest), dtype=np.int64)
        for row, content in enumerate(ids(drawn.sample_lengths(batch, longest))):
            tokens[row, : len(content)] = content
            mask[row, : len(content)] = 1
        # A second segment, where the model knows one: all zeros would not show that the input is ignored.
        segments = np.where(np.arange(longest) >= longest // 2, mask, 0) if two_segments else np.zeros_like(mask)
        feed = {"input_ids": tokens, "attention_mask": mask, "token_type_ids": segments}
        return {name: feed[name] for name in names}

    unknown = set(names) - {"input_ids", "attention_mask", "token_type_ids"}
    if unknown:
        raise SourceError(f"cannot make inputs called {', '.join(sorted(unknown))} yet", remedy="choose another model")
    limit = _position_limit(model)
    longest = min(limit or LONGEST_LENGTH, _authors_length(folder))
    tensors = tuple(Tensor(name=n, dtype="int64", dims=(BATCH, SEQUENCE)) for n in names)
    mask_input = "attention_mask" if "attention_mask" in names else None

    def encode(samples: Sequence[Sample], axes: Mapping[str, AxisRange], align: Align) -> Encoded:
        if TEXT not in samples[0].values:
            return encode_arrays(tensors, mask_input, samples, axes)
        return encode_texts(tokenizer, names, samples, axes[SEQUENCE], align)

    return InputPlan(
        tensors=tensors,
        axes={BATCH: BATCH_RANGE, SEQUENCE: AxisRange(min=1, opt=min(USUAL_LENGTH, longest), max=longest)},
        limits={} if limit is None else {SEQUENCE: limit},
        mask_input=mask_input,
        make=make_inputs,
        data=words,
        takes=Takes(
            () if tokenizer is None else (TEXT, TEXT_PAIR),
            ("input_ids", *(n for n in names if n != "input_ids")),
            optional=() if mask_input is None else (mask_input,),
        ),
        encode=encode,
    )


def _image_inputs(folder: Path) -> InputPlan:
    from transformers import AutoImageProcessor

    try:
        processor: Any = AutoImageProcessor.from_pretrained(folder)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise SourceError(
            f"{folder.name} takes images but has no processor (preprocessor_config.json)",
            remedy="save the model's image processor there too (processor.save_pretrained), or say in a spec what it"
            " takes:\n  inputs:\n    pixel_values: {dtype: float32, dims: [batch, 3, 224, 224]}",
        ) from error

    def processed(images: Sequence[Any]) -> NDArray[np.float32]:
        array: NDArray[np.float32] = processor(images, return_tensors="np")["pixel_values"].astype("float32")
        return array

    def make_inputs(axes: Mapping[str, int]) -> dict[str, NDArray[np.generic]]:
        return {"pixel_values": processed(drawn.sample_images(axes[BATCH], 256, 320, seed=axes[BATCH]))}

    def encode(samples: Sequence[Sample], axes: Mapping[str, AxisRange], _: Align) -> Encoded:
        if IMAGE not in samples[0].values:
            return encode_arrays((tensor,), None, samples, axes)
        return encode_images(tensor, samples, lambda value, where: processed([open_image(value, where)])[0])

    channels, height, width = make_inputs({BATCH: 1})["pixel_values"].shape[1:]
    tensor = Tensor(name="pixel_values", dtype="float32", dims=(BATCH, channels, height, width))
    return InputPlan(
        tensors=(tensor,),
        axes={BATCH: BATCH_RANGE},
        limits={},
        mask_input=None,
        make=make_inputs,
        data=drawn.DRAWN_IMAGES,
        takes=Takes((IMAGE,), (tensor.name,)),
        encode=encode,
    )
