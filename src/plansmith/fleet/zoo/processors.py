"""The tokenizer, image processor or feature extractor that belongs to a model, in its family's default form."""

from __future__ import annotations

import inspect
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.fleet.zoo.tokenizer import save_tokenizer
from plansmith.sources.huggingface.config_values import IMAGE, number
from plansmith.sources.huggingface.inputs.kinds import SIDE

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_USUAL_SIDE = 64
_SAMPLING_RATE = 16000
_HOP = 160


def save_processors(model: PreTrainedModel, folder: Path) -> None:
    """Save beside a model what makes its inputs, each at the sizes that its configuration names."""
    import transformers
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES  # type: ignore[attr-defined]

    takes = inspect.signature(model.forward).parameters
    made: dict[str, Any] = {}
    if "pixel_values" in takes:
        made["image_processor"] = _image_processor(model.config)
    if {"input_values", "input_features"} & set(takes):
        made["feature_extractor"] = _feature_extractor(model.config)
    made = {kind: processor for kind, processor in made.items() if processor is not None}
    if {"input_ids", "decoder_input_ids"} & set(takes):
        made["tokenizer"] = save_tokenizer(model, folder)
    words = len(made.get("tokenizer", ()))
    both = getattr(transformers, PROCESSOR_MAPPING_NAMES.get(model.config.model_type) or "", None)
    if both is not None and len(made) > 1 and set(made) <= set(inspect.signature(both.__init__).parameters):
        # One that wants more than these parts, such as a processor of videos, is left out: its parts stand alone.
        with suppress(TypeError, AttributeError, ValueError):
            whole = both(**made)
            if len(made.get("tokenizer", ())) <= words:  # some add tokens that this model has no vectors of
                whole.save_pretrained(folder)
                return
    for kind, processor in made.items():
        if kind != "tokenizer":  # which lies there already
            processor.save_pretrained(folder)


def _image_processor(config: PretrainedConfig) -> Any:
    """The default image processor of a type of model, at the configuration's image size."""
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
    """A processor's size in its own form, with the sides of this model."""
    if "shortest_edge" in usual:
        ratio = usual.get("longest_edge", usual["shortest_edge"]) / usual["shortest_edge"]
        edges = {"shortest_edge": min(height, width), "longest_edge": round(min(height, width) * ratio)}
        return {key: edges[key] for key in usual if key in edges}
    return {"longest_edge": max(height, width)} if "longest_edge" in usual else {"height": height, "width": width}


def _image_sides(config: PretrainedConfig) -> tuple[int, int]:
    height, width = (number(config, replace(SIDE, place=place), IMAGE) for place in (0, 1))
    return height or _USUAL_SIDE, width or _USUAL_SIDE


def _feature_extractor(config: PretrainedConfig) -> Any:
    """The default feature extractor of a type of model, with the sizes that its configuration names too."""
    import transformers
    from transformers.models.auto.feature_extraction_auto import FEATURE_EXTRACTOR_MAPPING_NAMES  # type: ignore[attr-defined]

    name = FEATURE_EXTRACTOR_MAPPING_NAMES.get(config.model_type)
    if name is None:
        return None
    family = getattr(transformers, name)
    takes = inspect.signature(family.__init__).parameters
    told = {
        key: getattr(config, key) for key in ("num_mel_bins", "max_length") if key in takes and hasattr(config, key)
    }
    bins = getattr(config, "num_mel_bins", None)
    if bins and "feature_size" in takes and "num_mel_bins" not in takes:
        told["feature_size"] = bins
    frames = getattr(config, "max_source_positions", None)
    if frames and "chunk_length" in takes:
        # An encoder such as Whisper's halves the frames, of which the extractor always makes a chunk's full number.
        told["chunk_length"] = max(1, 2 * frames * _HOP // _SAMPLING_RATE)
    return family(**told)
