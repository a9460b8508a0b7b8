"""Which class of transformers a task, or the configuration, asks for. Runs in the worker."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.errors import SourceError, UsageError, first_line
from plansmith.sources.directory import read_config

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_PLAIN = "AutoModel"

# Tasks of which transformers has models and no (longer a) pipeline, and what a pipeline leaves out; by automatic class.
_MORE: dict[str, tuple[str, ...]] = {
    "question-answering": ("AutoModelForQuestionAnswering",),
    "visual-question-answering": ("AutoModelForVisualQuestionAnswering",),
    "multiple-choice": ("AutoModelForMultipleChoice",),
    "next-sentence-prediction": ("AutoModelForNextSentencePrediction",),
    "sentence-similarity": (_PLAIN,),
    "text2text-generation": ("AutoModelForSeq2SeqLM",),
    "summarization": ("AutoModelForSeq2SeqLM",),
    "translation": ("AutoModelForSeq2SeqLM",),
    "image-to-text": ("AutoModelForImageTextToText",),
    "image-to-image": ("AutoModelForImageToImage",),
    "image-segmentation": ("AutoModelForUniversalSegmentation", "AutoModelForInstanceSegmentation"),
    "semantic-segmentation": ("AutoModelForSemanticSegmentation",),
    "instance-segmentation": ("AutoModelForInstanceSegmentation",),
    "universal-segmentation": ("AutoModelForUniversalSegmentation",),
    "masked-image-modeling": ("AutoModelForMaskedImageModeling",),
    "keypoint-detection": ("AutoModelForKeypointDetection",),
    "audio-frame-classification": ("AutoModelForAudioFrameClassification",),
    "audio-xvector": ("AutoModelForAudioXVector",),
    "time-series-prediction": ("AutoModelForTimeSeriesPrediction",),
}


def choose_class(folder: Path, *, trust_remote_code: bool, task: str) -> tuple[type[PreTrainedModel], PretrainedConfig]:
    """The class of a model, and its configuration.

    Args:
        folder: holds the configuration.
        trust_remote_code: whether the model's own Python code may be run.
        task: decides the class; the configuration does where it is empty.

    Raises:
        SourceError: the architecture is unknown, cannot do the task, or needs code that was not trusted.
        UsageError: there is no such task, or it leaves a choice.
    """
    config = _read(folder, trust_remote_code=trust_remote_code)
    own_code = folder if trust_remote_code else None
    if task:
        return _class_for_task(task, config, own_code), config
    return _named_class(config, own_code), config


def _read(folder: Path, *, trust_remote_code: bool) -> PretrainedConfig:
    import transformers
    from huggingface_hub.errors import StrictDataclassError

    try:
        config: PretrainedConfig = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (ValueError, KeyError, TypeError, AttributeError, StrictDataclassError) as error:
        if "trust_remote_code" in str(error):
            raise SourceError(
                f"{folder.name} comes with its own Python code, which is not run unless you say so",
                remedy="read that code, then pass --trust-remote-code",
            ) from error
        raise SourceError(
            f"transformers {transformers.__version__} cannot read this configuration: {first_line(error)}",
            remedy="check config.json, or install the transformers release that the model asks for",
        ) from error
    return config


def _named_class(config: PretrainedConfig, own_code: Path | None) -> Any:
    """The class that a configuration names; the plain one where it names none."""
    import transformers

    names = list(dict.fromkeys(config.architectures or []))
    if len(names) > 1:
        raise UsageError(
            f"config.json names several architectures: {', '.join(names)}",
            remedy=f"pass --task with one of {', '.join(_able(config))}",
        )
    name = names[0] if names else ""
    found: Any = getattr(transformers, name, None) if name else next(_mapped(_PLAIN, config), None)
    if found is None and own_code is not None:
        found = _remote_class(own_code, name)
    if found is None:
        near = [n for n in difflib.get_close_matches(name, dir(transformers), n=3, cutoff=0.8) if n != name]
        raise SourceError(
            f"transformers {transformers.__version__} has no architecture {name!r}"
            if name
            else f"config.json names no architecture, and transformers has no plain one of {config.model_type!r}",
            remedy="mend `architectures` in config.json"
            + (f" (it has {', '.join(near)})" if near else "")
            + ", or pass --trust-remote-code if the model brings its own",
        )
    return found


def _class_for_task(task: str, config: PretrainedConfig, own_code: Path | None) -> Any:
    """The model class of a task, for a configuration: of several, the one that the configuration names.

    Args:
        task: a pipeline's name, an alias of one, or one of ours.
        config: decides the family of models.
        own_code: the model's folder, where its own Python code may be run.
    """
    tasks = _tasks()
    if task not in tasks:
        near = difflib.get_close_matches(task, tasks, n=4, cutoff=0.5)
        raise UsageError(
            f"transformers has no task {task!r}",
            remedy=f"did you mean {', '.join(near)}?" if near else f"choose one of: {', '.join(sorted(tasks))}",
        )
    found = {c.__name__: c for automatic in tasks[task] for c in _mapped(automatic, config)}
    if not found and own_code is not None:
        own = (_automatic_class(own_code, automatic) for automatic in tasks[task])
        found = {c.__name__: c for c in own if c is not None}
    named = next((n for n in config.architectures or [] if n in found), None)
    if named or len({id(c) for c in found.values()}) == 1:
        return found[named] if named else next(iter(found.values()))
    if found:
        first = [next(_mapped(automatic, config), None) for automatic in tasks[task]]
        usual = {c.__name__: c for c in first if c is not None}
        if len(usual) == 1:
            return next(iter(usual.values()))
        raise UsageError(
            f"the task {task!r} leaves a choice of {', '.join(found)}",
            remedy="write one of them as `architectures` into config.json, and leave the task out",
        )
    able = _able(config)
    raise SourceError(
        f"transformers has no {config.model_type} model for the task {task!r}",
        remedy=f"its tasks are {', '.join(able)}" if able else "leave the task out",
    )


def _tasks() -> dict[str, tuple[str, ...]]:
    """The automatic classes of every task."""
    from transformers.pipelines import PIPELINE_REGISTRY

    supported = PIPELINE_REGISTRY.supported_tasks
    tasks = {name: tuple(a.__name__ for a in entry["pt"]) for name, entry in supported.items()}
    tasks |= {alias: tasks[name] for alias, name in PIPELINE_REGISTRY.task_aliases.items() if name in tasks}
    return tasks | {name: (*tasks.get(name, ()), *more) for name, more in _MORE.items()}


def _able(config: PretrainedConfig) -> list[str]:
    """The tasks of which there is a model for a configuration; those that any plain model can do under one name."""
    names = {name: automatics for name, automatics in _tasks().items() if automatics != (_PLAIN,)}
    found = sorted(n for n, automatics in names.items() if any(True for a in automatics for _ in _mapped(a, config)))
    return ["feature-extraction", *found] if any(True for _ in _mapped(_PLAIN, config)) else found


def _mapped(automatic: str, config: PretrainedConfig) -> Iterator[Any]:
    """The classes that an automatic class stands for, the usual one first."""
    import transformers

    mapping = getattr(getattr(transformers, automatic, None), "_model_mapping", None)  # there is no other way
    found = None if mapping is None else mapping.get(type(config), None)
    yield from found if isinstance(found, list | tuple) else [found] if found is not None else []


def _remote_class(folder: Path, name: str) -> Any:
    """A class of the model's own code, by its name."""
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    for reference in read_config(folder).get("auto_map", {}).values():
        if isinstance(reference, str) and reference.endswith(f".{name}"):
            return get_class_from_dynamic_module(reference, folder)
    return None


def _automatic_class(folder: Path, automatic: str) -> Any:
    """The class of the model's own code that stands for an automatic class."""
    reference = read_config(folder).get("auto_map", {}).get(automatic)
    return _remote_class(folder, reference.rpartition(".")[2]) if isinstance(reference, str) else None
