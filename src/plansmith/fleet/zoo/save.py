"""Small models with random, lively weights, saved with their tokenizers and processors as users save them."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.errors import UsageError
from plansmith.fleet.zoo.entries import ZooEntry
from plansmith.fleet.zoo.processors import save_processors
from plansmith.sources.loaded_model import enliven

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

SEED = 0


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
    """The model of a transformers entry, every weight of which counts."""
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
    """See that the keys of an entry's configuration mean something: transformers keeps others without a word.

    Raises:
        UsageError: neither the configuration's class nor the model's code knows one.
    """
    plain = type(config)
    known = {*plain().to_dict(), *plain.attribute_map, *inspect.signature(plain.__init__).parameters}
    code = inspect.getsource(sys.modules[model_class.__module__])
    unknown = [key for key in entry.config if key not in known and key not in code]
    if unknown:
        raise UsageError(
            f"{entry.label}: {plain.__name__} has no {', '.join(unknown)}", remedy="mend `config` of the entry"
        )


def _model_class(entry: ZooEntry, config: PretrainedConfig) -> Any:
    import transformers

    if entry.architecture:
        found = getattr(transformers, entry.architecture, None)
        if found is None:
            raise UsageError(
                f"{entry.label}: transformers {transformers.__version__} has no class {entry.architecture}",
                remedy="mend `architecture` of the entry",
            )
        return found
    from transformers.pipelines import PIPELINE_REGISTRY

    for automatic in PIPELINE_REGISTRY.check_task(entry.task)[1]["pt"]:
        if type(config) in automatic._model_mapping:  # noqa: SLF001 - transformers offers no other way
            return automatic._model_mapping[type(config)]  # noqa: SLF001
    raise UsageError(
        f"{entry.label}: transformers has no {entry.model_type} model for the task {entry.task!r}",
        remedy="mend `task` of the entry, or name the `architecture`",
    )
