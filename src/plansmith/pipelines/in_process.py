"""In-process pipelines: a model and its parts, called as served or as the source's library answers.

Joining makes them, and holds them against that library; a script asks them in place of a server.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from plansmith.compilers.export.loading import load
from plansmith.compilers.python_backend.candidate import candidate_runner, own_generator
from plansmith.compilers.python_backend.generation_parameters import (
    GENERATES,
    TEXT_TENSOR,
    GenerationParameters,
    read_generation_parameters,
)
from plansmith.compilers.python_backend.generator_loading import GeneratingModel, load_generating
from plansmith.config.pipeline import DaliOptions, PipelineOptions
from plansmith.data.synthetic import sample_texts
from plansmith.pipelines.dali.parts import DaliPlace, with_dali
from plansmith.pipelines.detect import raw_input
from plansmith.pipelines.draft import Draft, run_parts
from plansmith.pipelines.requests import JoinJob
from plansmith.records.model import BATCH, Case, EngineKind, OnnxModel
from plansmith.sources.loaded_model import LoadedModel
from plansmith.system.tasks import Progress
from plansmith.validation.onnxruntime_runner import asking

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from plansmith.records.arrays import Arrays

_ASKED_WORDS = (3, 8, 16, 24)
_NO_PARAMETERS: Mapping[str, Any] = MappingProxyType({})


def plan(
    live: LoadedModel,
    folder: Path,
    options: PipelineOptions,
    served: OnnxModel,
    *,
    scheme: Literal["hf", "timm"],
    task: str,
    trust_remote_code: bool,
) -> Draft:
    """Plan a pipeline in this process; `detect.refuse_raw` refuses impossible ones earlier.

    Args:
        live: the source model.
        folder: of the source.
        options: what the spec says.
        served: what is served, whose inputs parts give and whose outputs they take.
        scheme: of the source.
        task: that was asked for; empty: none.
        trust_remote_code: whether the model's own Python code may be run.

    Raises:
        SourceError: the source has no tokenizer or processor, or one that cannot be carried over.
        UsageError: what the spec asks for does not fit the model.
    """
    kind = raw_input(scheme, folder, options)
    if kind == "image":
        from plansmith.pipelines.image.pipeline import plan_images

        return plan_images(live, folder, options, served, scheme=scheme, task=task, trust_remote_code=trust_remote_code)
    if kind == "audio":
        from plansmith.pipelines.audio.pipeline import plan_sound

        return plan_sound(live, folder, options, served, task=task, trust_remote_code=trust_remote_code)
    from plansmith.pipelines.text.pipeline import plan_text

    return plan_text(live, folder, options, served, task=task, trust_remote_code=trust_remote_code)


def plan_generation(
    folder: Path,
    options: PipelineOptions,
    *,
    trust_remote_code: bool,
    allow_pickle: bool,
    task: str,
    largest_batch: int,
) -> Draft:
    """Plan the inputs and outputs of a generating model, which has no pre- or postprocessing parts.

    Args:
        folder: the source.
        options: what the spec says.
        trust_remote_code: whether the model's own Python code may be run.
        allow_pickle: whether pickled weights may be read.
        task: decides the model class; the configuration does where it is empty.
        largest_batch: that is served.

    Raises:
        SourceError: the model cannot be loaded, or has no tokenizer.
    """
    import torch
    import transformers

    model = load_generating(folder, options, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle, task=task)
    return Draft(
        input="text",
        output="text",
        before=(),
        after=(),
        inputs=(TEXT_TENSOR,),
        outputs=(TEXT_TENSOR,),
        questions=_questions(model, largest_batch),
        ask=lambda feed: _ask(model, feed, {}),
        ask_with=lambda feed, parameters: _ask(model, feed, parameters),
        source=f"generate of transformers {transformers.__version__}, PyTorch {torch.__version__}, FP32, one by one",
    )


def _questions(model: GeneratingModel, largest: int) -> dict[str, Arrays]:
    """Return test requests: sentences of many lengths in one batch, an empty text, emoji and an overlong text."""
    sentences = [text for length in _ASKED_WORDS for text in sample_texts(2, length, offset=length)]
    long = sample_texts(1, 2 * model.limits.prompt_tokens)[0]
    begins = model.module.generation_config.bos_token_id is not None
    odd = ["I 💚 quiet mornings. 🌄🐦", " ", "ÀÉÎ — 漢字 — Ж", long, *([""] if _encodes_empty(model) or begins else [])]
    rows = [*sentences, *odd]
    questions = {"sentences": sentences[:largest], "odd texts": odd[:largest], "one sentence": sentences[-1:]}
    questions |= {f"text {place}": [rows[place]] for place in range(len(rows)) if largest < len(odd)}
    return {name: {TEXT_TENSOR.name: _column(texts)} for name, texts in questions.items()}


def _encodes_empty(model: GeneratingModel) -> bool:
    return bool(model.tokenizer("")["input_ids"])


def _column(texts: list[str]) -> NDArray[np.generic]:
    import numpy as np

    column = np.empty((len(texts), 1), object)
    column[:, 0] = [text.encode() for text in texts]
    return column


def _ask(model: GeneratingModel, feed: Arrays, parameters: Mapping[str, Any]) -> Arrays:
    """Generate as a transformers user would: each text alone, without padding.

    Raises:
        Unanswerable: a parameter is wrong.
    """
    wishes = read_generation_parameters(parameters, model.limits, model.module.generation_config.to_dict())
    texts = [text.decode() for text in feed[TEXT_TENSOR.name][:, 0].tolist()]
    return {TEXT_TENSOR.name: _column([_generated(model, text, wishes) for text in texts])}


def _generated(model: GeneratingModel, text: str, wishes: GenerationParameters) -> str:
    import torch

    room = model.limits.prompt_room(wishes.new_tokens)
    ids = model.tokenizer(text, truncation=True, max_length=room)["input_ids"]
    inputs: dict[str, torch.Tensor] = {}
    if ids:
        inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones((1, len(ids)), dtype=torch.int64)}
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using the model-agnostic default")  # as most models do
        options = dict(wishes.options)
        if wishes.new_tokens is not None:
            options["max_new_tokens"] = wishes.new_tokens
        if wishes.seed is not None:
            torch.manual_seed(wishes.seed)
        (answer,) = model.module.generate(**inputs, **options).tolist()
    new = answer[max(1, len(ids)) :] if model.limits.decodes_only else answer
    completion: str = model.tokenizer.decode(new, skip_special_tokens=True)
    return completion


class ModelRunner(Protocol):
    """Model runner without pipeline parts."""

    def __call__(self, name: str, arrays: Arrays, parameters: Mapping[str, Any] = ..., /) -> Arrays:
        """Run the model on a request, given the request's name, all available tensors, and parameters."""
        ...


def plan_around(job: JoinJob, progress: Progress) -> tuple[Draft, LoadedModel | None]:
    """Plan the parts of a model, with Pillow for images, and load the model; None for a text generation model.

    Raises:
        SourceError: the source has no tokenizer or processor, or one that cannot be carried over.
        UsageError: a pipeline that does not fit the model.
    """
    if GENERATES in job.engine.options:
        return _generation(job), None
    return _parts(job, progress)


def with_dali_of(draft: Draft, job: JoinJob) -> Draft:
    """Return the same pipeline, with DALI for images if the spec requests it."""
    if job.dali is None:
        return draft
    options = job.options.dali or DaliOptions()
    assert job.dali_site is not None
    return with_dali(draft, DaliPlace(job.dali_site, job.dali.device, job.dali.max_batch_size, options))


def answer_of(
    draft: Draft,
    folder: Path,
    ask: ModelRunner,
    name: str,
    feed: Arrays,
    parameters: Mapping[str, Any] = MappingProxyType({}),
) -> Arrays:
    """Return the answer of the parts and the model to a request.

    Args:
        draft: the parts.
        folder: theirs, written.
        ask: the model.
        name: of the request.
        feed: raw inputs.
        parameters: of the request, for a model that generates text.

    Raises:
        GateError: a part refuses it.
        Unanswerable: the model does not answer.
    """
    arrays = run_parts(draft.before, folder, feed)
    arrays = {**arrays, **ask(name, arrays, parameters)}
    arrays = run_parts(draft.after, folder, arrays)
    return {tensor.name: arrays[tensor.name] for tensor in draft.outputs}


def answer_of_source(draft: Draft, live: LoadedModel, out: Path, feed: Arrays) -> Arrays:
    """Return the source model's answer to inputs from the served parts' preprocessing."""
    arrays = run_parts(draft.before, out, feed)
    # What is served in half precision gets such inputs; the source model has single precision.
    inputs = {tensor.name: arrays[tensor.name].astype(tensor.dtype) for tensor in live.inputs.tensors}
    arrays = run_parts(draft.after, out, {**arrays, **live.ask(inputs)})
    return {tensor.name: arrays[tensor.name] for tensor in draft.outputs}


def _parts(job: JoinJob, progress: Progress) -> tuple[Draft, LoadedModel]:
    """Return the parts of the pipeline around a model, and the model."""
    model = job.model
    live = load(model)
    served = job.onnx.model_copy(update={"components": job.engine.components})
    progress("making the parts around the model")
    draft = plan(
        live,
        model.folder,
        job.options,
        served,
        scheme="timm" if model.scheme == "timm" else "hf",
        task=model.task,
        trust_remote_code=model.trust_remote_code,
    )
    return draft, live


def _generation(job: JoinJob) -> Draft:
    """Return a text generation model, which takes and returns text by itself."""
    return plan_generation(
        job.model.folder,
        job.options,
        trust_remote_code=job.model.trust_remote_code,
        allow_pickle=job.model.allow_pickle,
        task=job.model.task,
        largest_batch=job.onnx.every_axis()[BATCH].max,
    )


@contextmanager
def model_runner(job: JoinJob, progress: Progress) -> Iterator[ModelRunner]:
    """Return a runner of the model alone: takes all available tensors, and gives the outputs of the exported model."""
    engine, folder = job.engine, job.engine_folder
    component = engine.components["model"]
    names = [tensor.name for tensor in component.inputs]

    def case_of(name: str) -> Case:
        return Case(name=name, axes={}, file="")

    if GENERATES in engine.options:
        generator = own_generator(folder, progress)
        yield lambda _, arrays, parameters=_NO_PARAMETERS: generator.ask(arrays, parameters)
        return
    if engine.kind is EngineKind.PYTHON:
        way = candidate_runner(engine, folder, progress)
        yield lambda name, arrays, _=_NO_PARAMETERS: way.ask(
            case_of(name), {tensor_name: arrays[tensor_name] for tensor_name in names}
        )
        return
    path = job.runnable or folder / component.file
    outputs = job.onnx.components["model"].outputs
    with asking(path, component.outputs, outputs, engine.precision, engine=engine.kind) as ask:
        yield lambda name, arrays, _=_NO_PARAMETERS: ask(
            case_of(name), {tensor_name: arrays[tensor_name] for tensor_name in names}
        )
