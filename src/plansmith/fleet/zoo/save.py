"""Small models with random, non-degenerate weights, saved with their tokenizers and processors as users save them."""

from __future__ import annotations

import inspect
import re
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.data import synthetic
from plansmith.errors import UsageError
from plansmith.fleet.zoo.entries import ZooEntry
from plansmith.sources.huggingface.inputs.kinds import SIDE
from plansmith.sources.huggingface.outputs import IMAGE, number
from plansmith.sources.loaded_model import enliven

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


_TEXTS = 200
_WORDS = 20
_PLACE = re.compile(r"^(image|video|audio|speech|vision|boi|eoi|boa|eoa).*_token_(id|index)$")
_ID = re.compile(r"_token_(id|index)$")
_USUAL_NAMES = ["input_ids", "attention_mask"]

_USUAL_SIDE = 64
_SAMPLING_RATE = 16000
_HOP = 160
SEED = 0


def save_tokenizer(model: PreTrainedModel, folder: Path) -> Any:
    """Train a byte pair encoding, and save it in the form of a transformers tokenizer.

    The special tokens have the ids that the configuration gives them; those that it does not name stand beside them.
    A configuration that counts no words goes with a tokenizer that has none: its family's own, which needs no files.

    Returns:
        The tokenizer.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    config = model.config.get_text_config()
    if not hasattr(config, "vocab_size"):
        own = _family(model)()
        own.save_pretrained(folder)
        return own
    places = _places(model.config, config.vocab_size)
    special = _special_tokens(config, {n for _, n in places.values()}, bidirectional=_is_bidirectional(model))
    tokenizer = Tokenizer(models.BPE(unk_token=special["unk_token"][0]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    by_id = {number: word for word, number in (*places.values(), *special.values())}
    listed = [by_id.get(number, f"<unused{number}>") for number in range(max(by_id) + 1)]
    tokenizer.train_from_iterator(
        synthetic.sample_texts(_TEXTS, _WORDS),
        trainers.BpeTrainer(vocab_size=config.vocab_size, special_tokens=listed, show_progress=False),
    )
    if "cls_token" in special:
        (first, _), (last, _) = special["cls_token"], special["sep_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A {last}",
            pair=f"{first} $A {last} $B:1 {last}:1",
            special_tokens=[special["cls_token"], special["sep_token"]],
        )
    saved = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        model_input_names=list(getattr(_family(model), "model_input_names", _USUAL_NAMES)),
        extra_special_tokens={role: word for role, (word, _) in places.items()},
        **{role: word for role, (word, _) in special.items()},
    )
    saved.save_pretrained(folder)
    return saved


def _is_bidirectional(model: PreTrainedModel) -> bool:
    """Whether texts get special tokens at both ends: all models except decoders."""
    from transformers.models.auto import modeling_auto

    kind = type(model.config.get_text_config())
    decodes = kind in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING
    return not decodes or kind in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING or bool(model.config.is_encoder_decoder)


def _special_tokens(
    config: PretrainedConfig, reserved_ids: set[int], *, bidirectional: bool
) -> dict[str, tuple[str, int]]:
    """Return text and id of each special token by role; roles with the same id share a token.

    Args:
        config: of the texts.
        reserved_ids: ids that mean something else.
        bidirectional: whether texts get marks at both ends.
    """
    ids = {role: getattr(config, f"{role}_id", None) for role in ("pad_token", "bos_token", "eos_token")}
    ids |= {"cls_token": ids["bos_token"], "sep_token": ids["eos_token"]} if bidirectional else {}
    roles = {role: n for role, n in ids.items() if isinstance(n, int) and 0 <= n < config.vocab_size}
    needed_roles = ("unk_token", "mask_token", "cls_token", "sep_token") if bidirectional else ("unk_token",)
    used_ids = {*roles.values(), *reserved_ids}
    for role in needed_roles:
        if role not in roles:
            roles[role] = next(number for number in range(config.vocab_size) if number not in used_ids)
            used_ids.add(roles[role])
    tokens: dict[int, str] = {}
    for role, token_id in roles.items():
        tokens.setdefault(token_id, f"<{role.removesuffix('_token')}>")
    return {role: (tokens[token_id], token_id) for role, token_id in roles.items()}


def _places(config: PretrainedConfig, vocabulary: int) -> dict[str, tuple[str, int]]:
    """Return text and id of each placeholder token for images or audio in a text, by role."""
    roles = {_ID.sub("_token", name): value for name, value in vars(config).items() if _PLACE.search(name)}
    ids = {role: n for role, n in roles.items() if type(n) is int and 0 <= n < vocabulary}
    return {role: (f"<{role.removesuffix('_token')}>", n) for role, n in ids.items()}


def _family(model: PreTrainedModel) -> Any:
    """Return the tokenizer class of a model; None if it is the generic one."""
    import transformers
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    name = TOKENIZER_MAPPING_NAMES.get(model.config.model_type)
    return getattr(transformers, name, None) if name and name != "TokenizersBackend" else None


def save_processors(model: PreTrainedModel, folder: Path) -> None:
    """Save a model's processors with it, each with the sizes of the model's configuration."""
    import transformers
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES  # type: ignore[attr-defined]

    takes = inspect.signature(model.forward).parameters
    processors: dict[str, Any] = {}
    if "pixel_values" in takes:
        processors["image_processor"] = _image_processor(model.config)
    if {"input_values", "input_features"} & set(takes):
        processors["feature_extractor"] = _feature_extractor(model.config)
    processors = {kind: processor for kind, processor in processors.items() if processor is not None}
    if {"input_ids", "decoder_input_ids"} & set(takes):
        processors["tokenizer"] = save_tokenizer(model, folder)
    token_count = len(processors.get("tokenizer", ()))
    both = getattr(transformers, PROCESSOR_MAPPING_NAMES.get(model.config.model_type) or "", None)
    if both is not None and len(processors) > 1 and set(processors) <= set(inspect.signature(both.__init__).parameters):
        # One that wants more than these parts, such as a processor of videos, is left out: its parts stand alone.
        with suppress(TypeError, AttributeError, ValueError):
            whole = both(**processors)
            if len(processors.get("tokenizer", ())) <= token_count:  # some add tokens that this model has no vectors of
                whole.save_pretrained(folder)
                return
    for kind, processor in processors.items():
        if kind != "tokenizer":  # which lies there already
            processor.save_pretrained(folder)


def _image_processor(config: PretrainedConfig) -> Any:
    """Return the default image processor of a model type, at the configuration's image size."""
    import transformers
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES  # type: ignore[attr-defined]

    package = type(config).__module__.split(".")[-2]  # where the vision part of a pair has a type of its own
    names = IMAGE_PROCESSOR_MAPPING_NAMES.get(config.model_type) or IMAGE_PROCESSOR_MAPPING_NAMES.get(package)
    if not names:
        return None
    family = getattr(transformers, names.get("torchvision") or names["pil"])
    default = family()
    height, width = _image_sides(config)
    sizes: dict[str, Any] = {}
    for role in ("size", "crop_size", "pad_size"):
        usual = dict(getattr(default, role, None) or {})
        if usual:
            sizes[role] = _scaled(usual, height, width)
    return family(**sizes)


def _scaled(usual: dict[str, int], height: int, width: int) -> dict[str, int]:
    """Return a processor's size, in its own format, adapted to this model's height and width."""
    if "shortest_edge" in usual:
        ratio = usual.get("longest_edge", usual["shortest_edge"]) / usual["shortest_edge"]
        edges = {"shortest_edge": min(height, width), "longest_edge": round(min(height, width) * ratio)}
        return {key: edges[key] for key in usual if key in edges}
    return {"longest_edge": max(height, width)} if "longest_edge" in usual else {"height": height, "width": width}


def _image_sides(config: PretrainedConfig) -> tuple[int, int]:
    height, width = (number(config, replace(SIDE, place=place), IMAGE) for place in (0, 1))
    return height or _USUAL_SIDE, width or _USUAL_SIDE


def _feature_extractor(config: PretrainedConfig) -> Any:
    """Return the default feature extractor of a model type, with the sizes shared with its configuration."""
    import transformers
    from transformers.models.auto.feature_extraction_auto import FEATURE_EXTRACTOR_MAPPING_NAMES  # type: ignore[attr-defined]

    name = FEATURE_EXTRACTOR_MAPPING_NAMES.get(config.model_type)
    if name is None:
        return None
    family = getattr(transformers, name)
    takes = inspect.signature(family.__init__).parameters
    settings = {
        key: getattr(config, key) for key in ("num_mel_bins", "max_length") if key in takes and hasattr(config, key)
    }
    bins = getattr(config, "num_mel_bins", None)
    if bins and "feature_size" in takes and "num_mel_bins" not in takes:
        settings["feature_size"] = bins
    frames = getattr(config, "max_source_positions", None)
    if frames and "chunk_length" in takes:
        # An encoder such as Whisper's halves the frames, of which the extractor always makes a chunk's full number.
        settings["chunk_length"] = max(1, 2 * frames * _HOP // _SAMPLING_RATE)
    return family(**settings)


def save(entry: ZooEntry, folder: Path) -> None:
    """Write an entry's model to an empty folder.

    Raises:
        UsageError: the entry names what the installed transformers does not have.
        SourceError: timm has no such name.
    """
    if entry.timm:
        from plansmith.sources import timm

        timm.make_random(entry.timm, folder, seed=SEED)
        return
    model = _make(entry)
    model.save_pretrained(folder)
    save_processors(model, folder)


def _make(entry: ZooEntry) -> PreTrainedModel:
    """Return the model of a transformers entry, with weights that all affect the result."""
    import torch

    config = _config(entry)
    model_class = _model_class(entry, config)
    _require_used(entry, config, model_class)
    torch.manual_seed(SEED)
    model: PreTrainedModel = model_class(config)
    enliven(model, SEED)
    return model


def _config(entry: ZooEntry) -> PretrainedConfig:
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if entry.model_type not in CONFIG_MAPPING:
        raise UsageError(
            f"{entry.label}: transformers {transformers.__version__} has no model_type {entry.model_type!r}",
            remedy="write it as config.json does, or install the transformers release that has it",
        )
    config: PretrainedConfig = CONFIG_MAPPING[entry.model_type](**entry.config)
    return config


def _require_used(entry: ZooEntry, config: PretrainedConfig, model_class: Any) -> None:
    """Check that the keys of an entry's configuration are used: transformers silently keeps unknown ones.

    Raises:
        UsageError: neither the configuration's class nor the model's code knows one.
    """
    plain = type(config)
    keys = {*plain().to_dict(), *plain.attribute_map, *inspect.signature(plain.__init__).parameters}
    code = inspect.getsource(sys.modules[model_class.__module__])
    unknown = [key for key in entry.config if key not in keys and key not in code]
    if unknown:
        raise UsageError(
            f"{entry.label}: {plain.__name__} has no {', '.join(unknown)}", remedy="mend `config` of the entry"
        )


def _model_class(entry: ZooEntry, config: PretrainedConfig) -> Any:
    import transformers

    if entry.architecture:
        model_class = getattr(transformers, entry.architecture, None)
        if model_class is None:
            raise UsageError(
                f"{entry.label}: transformers {transformers.__version__} has no class {entry.architecture}",
                remedy="mend `architecture` of the entry",
            )
        return model_class
    from transformers.pipelines import PIPELINE_REGISTRY

    for automatic in PIPELINE_REGISTRY.check_task(entry.task)[1]["pt"]:
        if type(config) in automatic._model_mapping:  # noqa: SLF001 - transformers offers no other way
            return automatic._model_mapping[type(config)]  # noqa: SLF001
    raise UsageError(
        f"{entry.label}: transformers has no {entry.model_type} model for the task {entry.task!r}",
        remedy="mend `task` of the entry, or name the `architecture`",
    )
