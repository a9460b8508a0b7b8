"""A model and the parts around it in this process: planned, and asked as served or as the source's library answers.

Joining makes them, and holds them against that library; a script asks them in place of a server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from plansmith.compilers.export.loading import load
from plansmith.compilers.export.model_calls import Progress
from plansmith.compilers.python_backend.candidate import candidate_runner, own_generator
from plansmith.compilers.python_backend.generation_parameters import GENERATES
from plansmith.config.pipeline import DaliOptions
from plansmith.pipelines.dali.parts import DaliPlace, with_dali
from plansmith.pipelines.draft import Draft, run_parts
from plansmith.pipelines.requests import JoinJob
from plansmith.records.model import BATCH, Case, EngineKind
from plansmith.validation.onnxruntime_runner import asking

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from plansmith.sources.loaded_model import LoadedModel

    Arrays = Mapping[str, NDArray[np.generic]]


class ModelRunner(Protocol):
    """The model by itself."""

    def __call__(self, name: str, known: Arrays, parameters: Mapping[str, Any] = ..., /) -> Arrays:
        """Its outputs to a request, given the request's name, all tensors that there are, and parameters."""
        ...


_NO_PARAMETERS: Mapping[str, Any] = MappingProxyType({})


def plan_around(job: JoinJob, progress: Progress) -> tuple[Draft, LoadedModel | None]:
    """What stands around a model, with Pillow for images, and the model; None of one that generates by itself.

    Raises:
        SourceError: the source has no tokenizer or processor, or one that cannot be carried over.
        UsageError: a pipeline that does not fit the model.
    """
    if GENERATES in job.engine.options:
        return _generation(job), None
    return _parts(job, progress)


def with_dali_of(draft: Draft, job: JoinJob) -> Draft:
    """The same, with DALI for images where the spec asks for that."""
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
    """What parts and model make of a request.

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
    known = run_parts(draft.before, folder, feed)
    known = {**known, **ask(name, known, parameters)}
    known = run_parts(draft.after, folder, known)
    return {tensor.name: known[tensor.name] for tensor in draft.outputs}


def answer_of_source(draft: Draft, live: LoadedModel, out: Path, feed: Arrays) -> Arrays:
    """What the source model answers behind the parts' own preprocessing, which is as near to its own as they tell."""
    known = run_parts(draft.before, out, feed)
    # What is served in half precision gets such inputs; the source model has single precision.
    inputs = {tensor.name: known[tensor.name].astype(tensor.dtype) for tensor in live.inputs.tensors}
    known = run_parts(draft.after, out, {**known, **live.ask(inputs)})
    return {tensor.name: known[tensor.name] for tensor in draft.outputs}


def _parts(job: JoinJob, progress: Progress) -> tuple[Draft, LoadedModel]:
    """What stands around a model, and the model."""
    from plansmith.pipelines.plan import plan

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
    """A model that takes and gives text by itself."""
    from plansmith.pipelines.generation import plan_generation

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
    """The model by itself: takes all tensors that there are, and gives its outputs as the exported model has them."""
    engine, folder = job.engine, job.engine_folder
    component = engine.components["model"]
    names = [tensor.name for tensor in component.inputs]

    def case_of(name: str) -> Case:
        return Case(name=name, axes={}, file="")

    if GENERATES in engine.options:
        generator = own_generator(folder, progress)
        yield lambda _, known, parameters=_NO_PARAMETERS: generator.ask(known, parameters)
        return
    if engine.kind is EngineKind.PYTHON:
        way = candidate_runner(engine, folder, progress)
        yield lambda name, known, _=_NO_PARAMETERS: way.ask(case_of(name), {one: known[one] for one in names})
        return
    path = job.runnable or folder / component.file
    outputs = job.onnx.components["model"].outputs
    with asking(path, component.outputs, outputs, engine.precision, engine=engine.kind) as ask:
        yield lambda name, known, _=_NO_PARAMETERS: ask(case_of(name), {one: known[one] for one in names})
