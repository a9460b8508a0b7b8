"""Transformers models: from a directory to a `LiveModel`. Runs in the heavy worker."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith import data
from plansmith.errors import SourceError
from plansmith.sources.directory import read_config
from plansmith.sources.live import BATCH, BATCH_RANGE, SEQUENCE, LiveModel, enliven
from plansmith.types import AxisRange, Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from transformers import PretrainedConfig, PreTrainedModel

USUAL_LENGTH = 128
LONGEST_LENGTH = 512
_FALLBACK_CONTENT = "random token ids (the model has no tokenizer)"


def load(folder: Path, *, trust_remote_code: bool, allow_pickle: bool) -> LiveModel:
    """Load configuration, weights and tokenizer or processor.

    Raises:
        SourceError: the architecture is unknown, needs code that was not trusted, or lacks weights.
    """
    import torch

    model_class, config = _model_class(folder, trust_remote_code)
    try:
        loaded: Any = model_class.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            use_safetensors=None if allow_pickle else True,
            output_loading_info=True,
            local_files_only=True,
        )
    except (OSError, RuntimeError) as error:
        raise SourceError(
            f"the weights do not fit config.json, or are not all there: {str(error).splitlines()[0]}",
            remedy="read the log for their names, and download or save the model again",
        ) from error
    model, info = loaded
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise SourceError(
            f"the checkpoint lacks {len(missing)} weight(s) of {model_class.__name__}: {', '.join(missing[:3])}, …",
            remedy="save the whole model again (save_pretrained), or mend `architectures` in config.json",
        )
    return _live(model.eval(), folder, trust_remote_code)


def make_random(folder: Path, out: Path, *, seed: int, trust_remote_code: bool) -> None:
    """Write a model of a directory's architecture with random, lively weights, and its tokenizer, to `out`."""
    import torch
    from transformers import AutoTokenizer

    model_class, config = _model_class(folder, trust_remote_code)
    torch.manual_seed(seed)
    model = model_class(config)
    enliven(model, seed)
    model.save_pretrained(out)
    if _has_tokenizer(folder):
        AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code).save_pretrained(out)
    processor = folder / "preprocessor_config.json"
    if processor.is_file():
        (out / processor.name).write_bytes(processor.read_bytes())


def _model_class(folder: Path, trust_remote_code: bool) -> tuple[type[PreTrainedModel], PretrainedConfig]:
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (ValueError, KeyError) as error:
        if "trust_remote_code" in str(error):
            raise SourceError(
                f"{folder.name} comes with its own Python code, which is not run unless you say so",
                remedy="read that code, then pass --trust-remote-code",
            ) from error
        raise SourceError(
            f"transformers {transformers.__version__} cannot read this configuration: {str(error).splitlines()[0]}",
            remedy="check config.json, or install the transformers release that the model asks for",
        ) from error
    name = (config.architectures or [""])[0]
    found: Any = getattr(transformers, name, None) if name else transformers.AutoModel._model_mapping[type(config)]  # noqa: SLF001
    if found is None and trust_remote_code:
        found = _remote_class(folder, name)
    if found is None:
        raise SourceError(
            f"transformers {transformers.__version__} has no architecture {name!r}",
            remedy="mend `architectures` in config.json, or pass --trust-remote-code if the model brings its own",
        )
    return found, config


def _remote_class(folder: Path, name: str) -> Any:
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    for reference in read_config(folder).get("auto_map", {}).values():
        if isinstance(reference, str) and reference.endswith(f".{name}"):
            return get_class_from_dynamic_module(reference, folder)
    return None


def _live(model: PreTrainedModel, folder: Path, trust_remote_code: bool) -> LiveModel:
    if model.main_input_name == "pixel_values":
        inputs, make_inputs, words = _image_inputs(folder)
        axes, limits, mask = {BATCH: BATCH_RANGE}, {}, None
    elif model.main_input_name == "input_ids" and not model.config.is_encoder_decoder:
        inputs, make_inputs, words = _text_inputs(model, folder, trust_remote_code)
        limit = _position_limit(model)
        longest = min(limit or LONGEST_LENGTH, _authors_length(folder))
        limits = {} if limit is None else {SEQUENCE: limit}
        axes = {BATCH: BATCH_RANGE, SEQUENCE: AxisRange(min=1, opt=min(USUAL_LENGTH, longest), max=longest)}
        mask = "attention_mask" if any(t.name == "attention_mask" for t in inputs) else None
    else:
        kind = "an encoder-decoder" if model.config.is_encoder_decoder else f"fed with {model.main_input_name!r}"
        raise SourceError(
            f"{type(model).__name__} is {kind}, which is not supported yet",
            remedy="compile a text encoder, a decoder or an image model (input_ids or pixel_values)",
        )
    module = _positional(model, tuple(t.name for t in inputs))
    first = make_inputs(dict.fromkeys(axes, 2))
    return LiveModel(
        module=module,
        inputs=inputs,
        output_names=module.name_outputs(first),
        axes=axes,
        limits=limits,
        mask_input=mask,
        make_inputs=make_inputs,
        data=words,
        exportable=lambda: _plain_attention(model),
    )


def _positional(model: PreTrainedModel, names: tuple[str, ...]) -> Any:
    """The model with positional tensors in, a tuple of tensors out, and no caches."""
    import torch

    constants = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}

    class Positional(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            answer = self.model(**dict(zip(names, tensors, strict=True)), **constants)
            return tuple(v for v in answer.values() if isinstance(v, torch.Tensor))

        def name_outputs(self, feed: Mapping[str, Any]) -> tuple[str, ...]:
            with torch.inference_mode():
                answer = self.model(**{n: torch.from_numpy(feed[n]) for n in names}, **constants)
            return tuple(k for k, v in answer.items() if isinstance(v, torch.Tensor))

    return Positional().eval()


@contextmanager
def _plain_attention(model: PreTrainedModel) -> Iterator[None]:
    """Attention as plain matrix products: fewer nodes, and the pattern that TensorRT and ONNX Runtime fuse."""
    usual = model.config._attn_implementation  # noqa: SLF001 - the getter that transformers offers
    if usual != "sdpa":
        yield
        return
    model.set_attn_implementation("eager")
    yield
    model.set_attn_implementation(usual)


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


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / f).is_file() for f in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"))


def _text_inputs(model: PreTrainedModel, folder: Path, trust_remote_code: bool) -> tuple[tuple[Tensor, ...], Any, str]:
    import numpy as np

    known = inspect.signature(model.forward).parameters
    if _has_tokenizer(folder):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
        offered, padding = tokenizer.model_input_names, tokenizer.pad_token_id or 0
        words = data.SENTENCES

        def ids(lengths: list[int]) -> list[list[int]]:
            texts = data.sample_texts(len(lengths), max(lengths), offset=sum(lengths))
            rows = tokenizer(texts, truncation=True, max_length=max(8, *lengths))["input_ids"]
            # The last token is the model's own end mark; a row is cut before it, never after.
            return [row[: n - 1] + row[-1:] if n > 1 else row[:1] for row, n in zip(rows, lengths, strict=True)]
    else:
        offered, padding, words = ["input_ids", "attention_mask"], model.config.pad_token_id or 0, _FALLBACK_CONTENT

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
        for row, content in enumerate(ids(data.sample_lengths(batch, longest))):
            tokens[row, : len(content)] = content
            mask[row, : len(content)] = 1
        # A second segment, where the model knows one: all zeros would not show that the input is ignored.
        segments = np.where(np.arange(longest) >= longest // 2, mask, 0) if two_segments else np.zeros_like(mask)
        feed = {"input_ids": tokens, "attention_mask": mask, "token_type_ids": segments}
        return {name: feed[name] for name in names}

    unknown = set(names) - {"input_ids", "attention_mask", "token_type_ids"}
    if unknown:
        raise SourceError(f"cannot make inputs called {', '.join(sorted(unknown))} yet", remedy="choose another model")
    return tuple(Tensor(name=n, dtype="int64", dims=(BATCH, SEQUENCE)) for n in names), make_inputs, words


def _image_inputs(folder: Path) -> tuple[tuple[Tensor, ...], Any, str]:
    from transformers import AutoImageProcessor

    try:
        processor: Any = AutoImageProcessor.from_pretrained(folder)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise SourceError(
            f"{folder.name} takes images but has no processor (preprocessor_config.json)",
            remedy="save the model's image processor there too (processor.save_pretrained)",
        ) from error

    def make_inputs(axes: Mapping[str, int]) -> dict[str, NDArray[np.generic]]:
        images = data.sample_images(axes[BATCH], 256, 320, seed=axes[BATCH])
        return {"pixel_values": processor(images, return_tensors="np")["pixel_values"].astype("float32")}

    channels, height, width = make_inputs({BATCH: 1})["pixel_values"].shape[1:]
    tensor = Tensor(name="pixel_values", dtype="float32", dims=(BATCH, channels, height, width))
    return (tensor,), make_inputs, data.DRAWN_IMAGES
