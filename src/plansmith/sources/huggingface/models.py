"""Transformers model loading: from a directory to a `LoadedModel`. Runs in the worker."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.config.spec import InputSpec
from plansmith.errors import SourceError, UsageError, first_line
from plansmith.formatting import count
from plansmith.sources.directory import read_config
from plansmith.sources.huggingface.inputs.axes import affordable
from plansmith.sources.huggingface.inputs.signature import plan_inputs, small_sizes
from plansmith.sources.huggingface.outputs import (
    ZERO_SHOT,
    Answering,
    ZeroShotAnswering,
    is_zero_shot,
    parts,
    usual_axes,
)
from plansmith.sources.huggingface.processors import (
    GENERATION_FILE,
    LENGTH_FILES,
    PROCESSOR_FILES,
    has_tokenizer,
    read_tokenizer,
)
from plansmith.sources.huggingface.sentence_transformers import read_modules, write_random_modules
from plansmith.sources.loaded_model import InputPlan, LoadedModel, enliven, left_as_it_was
from plansmith.system.garbage import never_collected

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
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

_NUMBER = re.compile(r"\d+")
_NAMED = 3


def choose_class(folder: Path, *, trust_remote_code: bool, task: str) -> tuple[type[PreTrainedModel], PretrainedConfig]:
    """Choose the class of a model, and read its configuration.

    Args:
        folder: holds the configuration.
        trust_remote_code: whether the model's own Python code may be run.
        task: decides the class; the configuration does where it is empty.

    Raises:
        SourceError: the architecture is unknown, cannot do the task, or needs code that was not trusted.
        UsageError: there is no such task, or it leaves a choice.
    """
    own_code = folder if trust_remote_code else None
    with never_collected():  # nearly all of it is imports
        config = _read(folder, trust_remote_code=trust_remote_code)
        return (_class_for_task(task, config, own_code) if task else _named_class(config, own_code)), config


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
    """Return the class that a configuration names; the plain one if it names none."""
    import transformers

    names = list(dict.fromkeys(config.architectures or []))
    if len(names) > 1:
        raise UsageError(
            f"config.json names several architectures: {', '.join(names)}",
            remedy=f"pass --task with one of {', '.join(_able(config))}",
        )
    name = names[0] if names else ""
    model_class: Any = getattr(transformers, name, None) if name else next(_mapped(_PLAIN, config), None)
    if model_class is None and own_code is not None:
        model_class = _remote_class(own_code, name)
    if model_class is None:
        near = [n for n in difflib.get_close_matches(name, dir(transformers), n=3, cutoff=0.8) if n != name]
        raise SourceError(
            f"transformers {transformers.__version__} has no architecture {name!r}"
            if name
            else f"config.json names no architecture, and transformers has no plain one of {config.model_type!r}",
            remedy="mend `architectures` in config.json"
            + (f" (it has {', '.join(near)})" if near else "")
            + ", or pass --trust-remote-code if the model brings its own",
        )
    return model_class


def _class_for_task(task: str, config: PretrainedConfig, own_code: Path | None) -> Any:
    """Return the model class of a task for a configuration: of several, the one that the configuration names.

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
    classes = {c.__name__: c for automatic in tasks[task] for c in _mapped(automatic, config)}
    if not classes and own_code is not None:
        own = (_automatic_class(own_code, automatic) for automatic in tasks[task])
        classes = {c.__name__: c for c in own if c is not None}
    named = next((n for n in config.architectures or [] if n in classes), None)
    if named or len({id(c) for c in classes.values()}) == 1:
        return classes[named] if named else next(iter(classes.values()))
    if classes:
        first = [next(_mapped(automatic, config), None) for automatic in tasks[task]]
        usual = {c.__name__: c for c in first if c is not None}
        if len(usual) == 1:
            return next(iter(usual.values()))
        raise UsageError(
            f"the task {task!r} leaves a choice of {', '.join(classes)}",
            remedy="write one of them as `architectures` into config.json, and leave the task out",
        )
    able = _able(config)
    raise SourceError(
        f"transformers has no {config.model_type} model for the task {task!r}",
        remedy=f"its tasks are {', '.join(able)}" if able else "leave the task out",
    )


def _tasks() -> dict[str, tuple[str, ...]]:
    """Return the auto classes of each task."""
    from transformers.pipelines import PIPELINE_REGISTRY

    supported = PIPELINE_REGISTRY.supported_tasks
    tasks = {name: tuple(a.__name__ for a in entry["pt"]) for name, entry in supported.items()}
    tasks |= {alias: tasks[name] for alias, name in PIPELINE_REGISTRY.task_aliases.items() if name in tasks}
    return tasks | {name: (*tasks.get(name, ()), *more) for name, more in _MORE.items()}


def _able(config: PretrainedConfig) -> list[str]:
    """Return the tasks that have a model for a configuration; those of any plain model share one name."""
    names = {name: automatics for name, automatics in _tasks().items() if automatics != (_PLAIN,)}
    task_names = sorted(
        n for n, automatics in names.items() if any(True for a in automatics for _ in _mapped(a, config))
    )
    return ["feature-extraction", *task_names] if any(True for _ in _mapped(_PLAIN, config)) else task_names


def _mapped(automatic: str, config: PretrainedConfig) -> Iterator[Any]:
    """Yield the classes that an auto class maps to, the default first."""
    import transformers

    mapping = getattr(getattr(transformers, automatic, None), "_model_mapping", None)  # there is no other way
    classes = None if mapping is None else mapping.get(type(config), None)
    yield from classes if isinstance(classes, list | tuple) else [classes] if classes is not None else []


def _remote_class(folder: Path, name: str) -> Any:
    """Return a class of the model's own code by name."""
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    for reference in read_config(folder).get("auto_map", {}).values():
        if isinstance(reference, str) and reference.endswith(f".{name}"):
            return get_class_from_dynamic_module(reference, folder)
    return None


def _automatic_class(folder: Path, automatic: str) -> Any:
    """Return the class of the model's own code that an auto class maps to."""
    reference = read_config(folder).get("auto_map", {}).get(automatic)
    return _remote_class(folder, reference.rpartition(".")[2]) if isinstance(reference, str) else None


def read_model(
    model_class: type[PreTrainedModel], config: PretrainedConfig, folder: Path, *, allow_pickle: bool, task: str
) -> PreTrainedModel:
    """Read a model with the weights of a directory, FP32, in eval mode.

    Args:
        model_class: of transformers, or the model's own.
        config: of the directory.
        folder: holds the weights.
        allow_pickle: whether pickled ones may be read.
        task: that was asked for; empty where the configuration decides.

    Raises:
        SourceError: weights are missing, left over, of another shape, or no numbers.
    """
    import torch

    try:
        loaded: Any = model_class.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            use_safetensors=None if allow_pickle else True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # told below, by name
            local_files_only=True,
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise SourceError(
            f"the weights do not fit config.json, or are not all there: {first_line(error)}",
            remedy="read the log for their names, and download or save the model again",
        ) from error
    model, info = loaded
    _require_shapes(info["mismatched_keys"], task)
    _require_all(model_class, sorted(info["missing_keys"]), task)
    _require_none_left(model, info["unexpected_keys"])
    require_finite(model.named_parameters())
    read: PreTrainedModel = model.eval()
    return read


def require_finite(weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Require that every weight is finite.

    Raises:
        SourceError: names the first that is not.
    """
    import torch

    for name, tensor in weights:
        if tensor.is_floating_point() and tensor.numel() and not _is_finite(tensor):
            wrong = int((~torch.isfinite(tensor)).sum())
            kind = "NaN" if torch.isnan(tensor).any() else "Inf"
            raise SourceError(
                f"the weight {name} holds {kind} ({wrong} of {tensor.numel()} values)",
                remedy="take a checkpoint from before the training diverged, or convert it again",
            )


def _is_finite(tensor: torch.Tensor) -> bool:
    """Whether every value is finite, by the smallest and the largest: one pass, where asking each value takes four."""
    return all(math.isfinite(float(value)) for value in tensor.detach().aminmax())


def _require_shapes(mismatched: Sequence[tuple[str, Sequence[int], Sequence[int]]], task: str) -> None:
    if not mismatched:
        return
    name, actual, expected = min(mismatched)
    more = f", and {len(mismatched) - 1} more" if len(mismatched) > 1 else ""
    raise SourceError(
        f"config.json contradicts the weights: {name} is {list(actual)} and should be {list(expected)}{more}",
        remedy="it was trained for another number of classes: leave the task out"
        if task
        else "take config.json and the weights of the same model",
    )


def _require_all(model_class: type[PreTrainedModel], missing: Sequence[str], task: str) -> None:
    if not missing:
        return
    raise SourceError(
        f"the checkpoint lacks {count(len(missing), 'weight')} of {model_class.__name__}:"
        f" {', '.join(missing[:_NAMED])}{', …' if len(missing) > _NAMED else ''}",
        remedy="it was not trained for that task: leave the task out, or take a checkpoint that was"
        if task
        else "save the whole model again (save_pretrained), or mend `architectures` in config.json (--task)",
    )


def _require_none_left(model: PreTrainedModel, unexpected: Iterable[str]) -> None:
    """Refuse weights of layers beyond the configured number, which would be dropped silently; other heads may be."""
    forms = {_NUMBER.sub("#", name) for name in model.state_dict() if _NUMBER.search(name)}
    left = sorted(name for name in unexpected if _NUMBER.sub("#", name) in forms)
    if left:
        raise SourceError(
            f"config.json contradicts the weights: the checkpoint has {count(len(left), 'weight')} more,"
            f" such as {left[0]}",
            remedy="mend the numbers of layers in config.json, or take config.json and weights of the same model",
        )


def load(
    folder: Path,
    *,
    trust_remote_code: bool,
    allow_pickle: bool,
    task: str,
    inputs: Mapping[str, InputSpec],
    outputs: Sequence[str],
) -> LoadedModel:
    """Load configuration, weights and tokenizer or processor.

    Args:
        folder: holds all that.
        trust_remote_code: whether the model's own Python code may be run.
        allow_pickle: whether pickled weights may be read.
        task: decides the model class; the configuration does where it is empty.
        inputs: what the spec says about them; empty where the model describes itself.
        outputs: those to keep, in order; all when empty.

    Raises:
        SourceError: the architecture is unknown, needs code that was not trusted, or lacks weights.
        UsageError: there is no such task, input or output.
    """
    model_class, config = choose_class(folder, trust_remote_code=trust_remote_code, task=task)
    model = read_model(model_class, config, folder, allow_pickle=allow_pickle, task=task)
    behind = read_modules(folder, task, allow_pickle=allow_pickle)
    compares = task == ZERO_SHOT and is_zero_shot(folder, task)
    kind = ZeroShotAnswering if compares else Answering
    usual = kind(model, (), behind)
    plan = plan_inputs(model, folder, trust_remote_code, inputs, partial(_ask, usual))
    answer = _first_answer(kind(model, outputs, behind) if outputs else usual, outputs, plan)
    if not plan.guessed:
        forms = ((tuple(tensor.shape), tensor.element_size()) for tensor in answer.values())
        axes = usual_axes(plan.axes) if compares else plan.axes
        plan = replace(plan, axes=affordable(axes, small_sizes(plan), forms))
    return LoadedModel(
        module=_positional(kind(model, tuple(answer), behind), tuple(t.name for t in plan.tensors)),
        inputs=plan,
        output_names=tuple(answer),
        exportable=lambda: _plain_attention(model),
    )


def make_random(folder: Path, out: Path, *, seed: int, trust_remote_code: bool, task: str) -> None:
    """Write a model of a directory's architecture to `out`, with random, non-degenerate weights and its tokenizer."""
    import torch

    model_class, config = choose_class(folder, trust_remote_code=trust_remote_code, task=task)
    torch.manual_seed(seed)
    model = model_class(config)
    enliven(model, seed)
    model.save_pretrained(out)
    if has_tokenizer(folder):
        read_tokenizer(folder, trust_remote_code=trust_remote_code).save_pretrained(out)
    write_random_modules(folder, out, seed=seed)
    for name in (*PROCESSOR_FILES, *LENGTH_FILES, GENERATION_FILE):
        if (folder / name).is_file():
            (out / name).write_bytes((folder / name).read_bytes())


def _ask(answering: Answering, feed: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
    """Run the model on arrays and return arrays."""
    import torch

    with torch.inference_mode(), left_as_it_was(answering.model):
        answer = answering({name: torch.from_numpy(array) for name, array in feed.items()})
    return {name: tensor.float().numpy() if tensor.is_complex() else tensor.numpy() for name, tensor in answer.items()}


def _first_answer(answering: Answering, names: Sequence[str], inputs: InputPlan) -> dict[str, torch.Tensor]:
    """Return the model's outputs for a small batch.

    Raises:
        UsageError: the model has no such output, or does not take inputs that the spec describes.
    """
    import torch

    feed = {name: torch.from_numpy(array) for name, array in inputs.make(small_sizes(inputs)).items()}
    try:
        with torch.inference_mode(), left_as_it_was(answering.model):
            answer = answering(feed)
            able = answering.everything(feed) if not answer or len(answer) < len(names) else answer
    except Exception as error:
        if not inputs.guessed:
            raise
        form = ", ".join(f"{name} {list(array.shape)}" for name, array in feed.items())
        raise UsageError(
            f"the model does not take the given inputs ({form}): {first_line(error)}",
            remedy="mend `inputs` in the spec",
        ) from error
    unknown = [name for name in names if name not in answer]
    if unknown or not answer:
        raise UsageError(
            f"outputs: the model has no output {', '.join(unknown) or 'that is a tensor'}",
            remedy=f"its outputs are {', '.join(able) or 'not ones that a server can give'}",
        )
    return answer


def _positional(answering: Answering, names: tuple[str, ...]) -> Any:
    """Wrap the model: positional tensors in, a tuple of the selected tensors out."""
    import torch

    class Positional(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.behind = answering.model, answering.behind

        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(answering(dict(zip(names, tensors, strict=True))).values())

    return Positional().eval()


@contextmanager
def _plain_attention(model: PreTrainedModel) -> Iterator[None]:
    """Use eager attention, as matrix products: fewer nodes, and the pattern that TensorRT and ONNX Runtime fuse."""
    usual = [(part, part._attn_implementation) for part in parts(model.config)]  # noqa: SLF001 - there is no getter
    if all(name != "sdpa" for _, name in usual):
        yield
        return
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        for part, name in usual:  # each as it was: a backbone may know one kind only
            part._attn_implementation = name  # noqa: SLF001 - the setter of models refuses where it knows better
