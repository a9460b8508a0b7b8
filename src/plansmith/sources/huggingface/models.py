"""Transformers models: from a directory to a `LoadedModel`. Runs in the worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.config.spec import InputSpec
from plansmith.errors import UsageError, first_line
from plansmith.sources.huggingface.config_values import parts
from plansmith.sources.huggingface.inputs.axes import affordable
from plansmith.sources.huggingface.inputs.required import small_sizes
from plansmith.sources.huggingface.inputs.signature import plan_inputs
from plansmith.sources.huggingface.outputs import Answering
from plansmith.sources.huggingface.processors import (
    GENERATION_FILE,
    LENGTH_FILES,
    PROCESSOR_FILES,
    has_tokenizer,
    read_tokenizer,
)
from plansmith.sources.huggingface.sentence_transformers import read_modules, write_random_modules
from plansmith.sources.huggingface.tasks import choose_class
from plansmith.sources.huggingface.weights import read_model
from plansmith.sources.huggingface.zero_shot import ZERO_SHOT, ZeroShotAnswering, is_zero_shot, usual_axes
from plansmith.sources.loaded_model import InputPlan, LoadedModel, enliven
from plansmith.sources.module_state import left_as_it_was

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from transformers import PreTrainedModel


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
    """Write a model of a directory's architecture with random, lively weights, and its tokenizer, to `out`."""
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
    """Arrays in and out."""
    import torch

    with torch.inference_mode(), left_as_it_was(answering.model):
        answer = answering({name: torch.from_numpy(array) for name, array in feed.items()})
    return {name: tensor.float().numpy() if tensor.is_complex() else tensor.numpy() for name, tensor in answer.items()}


def _first_answer(answering: Answering, wanted: Sequence[str], inputs: InputPlan) -> dict[str, torch.Tensor]:
    """What the model says to a small batch: its outputs.

    Raises:
        UsageError: the model has no such output, or does not take inputs that the spec describes.
    """
    import torch

    feed = {name: torch.from_numpy(array) for name, array in inputs.make(small_sizes(inputs)).items()}
    try:
        with torch.inference_mode(), left_as_it_was(answering.model):
            answer = answering(feed)
            able = answering.everything(feed) if not answer or len(answer) < len(wanted) else answer
    except Exception as error:
        if not inputs.guessed:
            raise
        form = ", ".join(f"{name} {list(array.shape)}" for name, array in feed.items())
        raise UsageError(
            f"the model does not take the given inputs ({form}): {first_line(error)}",
            remedy="mend `inputs` in the spec",
        ) from error
    unknown = [name for name in wanted if name not in answer]
    if unknown or not answer:
        raise UsageError(
            f"outputs: the model has no output {', '.join(unknown) or 'that is a tensor'}",
            remedy=f"its outputs are {', '.join(able) or 'not ones that a server can give'}",
        )
    return answer


def _positional(answering: Answering, names: tuple[str, ...]) -> Any:
    """The model with positional tensors in and a tuple of the wanted tensors out."""
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
    """Attention as plain matrix products: fewer nodes, and the pattern that TensorRT and ONNX Runtime fuse."""
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
