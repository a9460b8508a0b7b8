"""Transformers models: from a directory to a `LiveModel`. Runs in the heavy worker."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.config import InputSpec
from plansmith.errors import PlansmithError, SourceError, UsageError, first_line
from plansmith.sources.directory import read_config
from plansmith.sources.hf_inputs import has_tokenizer, plan_inputs
from plansmith.sources.live import InputPlan, LiveModel, enliven
from plansmith.types import BATCH

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel


def load(
    folder: Path,
    *,
    trust_remote_code: bool,
    allow_pickle: bool,
    task: str,
    inputs: Mapping[str, InputSpec],
    outputs: Sequence[str],
) -> LiveModel:
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
    import torch

    model_class, config = _model_class(folder, trust_remote_code, task)
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
            f"the weights do not fit config.json, or are not all there: {first_line(error)}",
            remedy="read the log for their names, and download or save the model again",
        ) from error
    model, info = loaded
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise SourceError(
            f"the checkpoint lacks {len(missing)} weight(s) of {model_class.__name__}:"
            f" {', '.join(missing[:3])}{', …' if len(missing) > 3 else ''}",
            remedy="it was not trained for that task: leave the task out, or take a checkpoint that was"
            if task
            else "save the whole model again (save_pretrained), or mend `architectures` in config.json (--task)",
        )
    return _live(model.eval(), folder, trust_remote_code, inputs, outputs)


def make_random(folder: Path, out: Path, *, seed: int, trust_remote_code: bool, task: str) -> None:
    """Write a model of a directory's architecture with random, lively weights, and its tokenizer, to `out`."""
    import torch
    from transformers import AutoTokenizer

    model_class, config = _model_class(folder, trust_remote_code, task)
    torch.manual_seed(seed)
    model = model_class(config)
    enliven(model, seed)
    model.save_pretrained(out)
    if has_tokenizer(folder):
        AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code).save_pretrained(out)
    processor = folder / "preprocessor_config.json"
    if processor.is_file():
        (out / processor.name).write_bytes(processor.read_bytes())


def _model_class(folder: Path, trust_remote_code: bool, task: str) -> tuple[type[PreTrainedModel], PretrainedConfig]:
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
            f"transformers {transformers.__version__} cannot read this configuration: {first_line(error)}",
            remedy="check config.json, or install the transformers release that the model asks for",
        ) from error
    if task:
        return _class_for_task(task, config, folder if trust_remote_code else None), config
    name = (config.architectures or [""])[0]
    found: Any = getattr(transformers, name, None) if name else _mapped(transformers.AutoModel, config)
    if found is None and trust_remote_code:
        found = _remote_class(folder, name)
    if found is None:
        raise SourceError(
            f"transformers {transformers.__version__} has no architecture {name!r}"
            if name
            else f"config.json names no architecture, and transformers has no plain one of {config.model_type!r}",
            remedy="mend `architectures` in config.json, or pass --trust-remote-code if the model brings its own",
        )
    return found, config


def _class_for_task(task: str, config: PretrainedConfig, own_code: Path | None) -> Any:
    """The model class that transformers' pipeline of a task would take for a configuration.

    Args:
        task: a pipeline's name, or an alias of one.
        config: decides the family of models.
        own_code: the model's folder, where its own Python code may be run.
    """
    from transformers.pipelines import PIPELINE_REGISTRY

    known = [*PIPELINE_REGISTRY.supported_tasks, *PIPELINE_REGISTRY.task_aliases]
    if task not in known:
        near = difflib.get_close_matches(task, known, n=4, cutoff=0.5)
        raise UsageError(
            f"transformers has no task {task!r}",
            remedy=f"did you mean {', '.join(near)}?" if near else f"choose one of: {', '.join(sorted(known))}",
        )
    for automatic in PIPELINE_REGISTRY.check_task(task)[1]["pt"]:
        found = _mapped(automatic, config)
        if found is None and own_code is not None:
            found = _automatic_class(own_code, automatic.__name__)
        if found is not None:
            return found
    able = sorted(
        name
        for name, entry in PIPELINE_REGISTRY.supported_tasks.items()
        if any(_mapped(automatic, config) for automatic in entry["pt"])
    )
    raise SourceError(
        f"transformers has no {config.model_type} model for the task {task!r}",
        remedy=f"its tasks are {', '.join(able)}" if able else "leave the task out",
    )


def _mapped(automatic: Any, config: PretrainedConfig) -> Any:
    """The class that an automatic class stands for; the first where there are several."""
    found = automatic._model_mapping.get(type(config), None)  # noqa: SLF001 - transformers offers no other way
    return found[0] if isinstance(found, tuple) else found


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


def _live(
    model: PreTrainedModel,
    folder: Path,
    trust_remote_code: bool,
    given: Mapping[str, InputSpec],
    outputs: Sequence[str],
) -> LiveModel:
    inputs = plan_inputs(model, folder, trust_remote_code, given)
    module = _positional(model, tuple(t.name for t in inputs.tensors), outputs)
    first = inputs.make({axis: r.opt if inputs.guessed and axis != BATCH else 2 for axis, r in inputs.axes.items()})
    return LiveModel(
        module=module,
        inputs=inputs,
        output_names=_named_outputs(module, first, inputs),
        exportable=lambda: _plain_attention(model),
    )


def _named_outputs(module: Any, feed: Mapping[str, Any], inputs: InputPlan) -> tuple[str, ...]:
    """The outputs' names, told by the model's first answer."""
    try:
        names: tuple[str, ...] = module.name_outputs(feed)
    except PlansmithError:
        raise
    except Exception as error:
        if not inputs.guessed:
            raise
        form = ", ".join(f"{name} {list(array.shape)}" for name, array in feed.items())
        raise UsageError(
            f"the model does not take the given inputs ({form}): {first_line(error)}",
            remedy="mend `inputs` in the spec",
        ) from error
    return names


def _positional(model: PreTrainedModel, names: tuple[str, ...], wanted: Sequence[str]) -> Any:
    """The model with positional tensors in, a tuple of the wanted tensors (all, when none is) out, and no caches."""
    import torch

    constants = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}

    class Positional(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            answer = _tensors(self.model(**dict(zip(names, tensors, strict=True)), **constants))
            return tuple(answer[name] for name in wanted or answer)

        def name_outputs(self, feed: Mapping[str, Any]) -> tuple[str, ...]:
            with torch.inference_mode():
                answer = _tensors(self.model(**{n: torch.from_numpy(feed[n]) for n in names}, **constants))
            unknown = [name for name in wanted if name not in answer]
            if unknown or not answer:
                raise UsageError(
                    f"outputs: the model has no output {', '.join(unknown) or 'that is a tensor'}",
                    remedy=f"its outputs are {', '.join(answer) or 'not ones that a server can give'}",
                )
            return tuple(wanted or answer)

    return Positional().eval()


def _tensors(answer: Any) -> dict[str, torch.Tensor]:
    """The tensors of whatever a model returns, by name; what is nested deeper is left out."""
    import torch

    if isinstance(answer, torch.Tensor):
        answer = (answer,)
    named = answer if isinstance(answer, Mapping) else {f"output_{i}": value for i, value in enumerate(answer)}
    return {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}


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
