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
from plansmith.compilers.python_backend.candidate import own_generator, own_way
from plansmith.compilers.python_backend.generation_parameters import GENERATES
from plansmith.config.pipeline import DaliOptions, PipelineOptions
from plansmith.pipelines.dali.parts import DaliPlace, with_dali
from plansmith.pipelines.draft import Draft, run_parts
from plansmith.records.engine import Engine
from plansmith.records.model import BATCH, Case, Device, EngineKind, OnnxModel, Record
from plansmith.records.validation import ValidationReport
from plansmith.validation.onnxruntime_runner import asking

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from plansmith.sources.loaded_model import LiveModel

    Arrays = Mapping[str, NDArray[np.generic]]


class AskModel(Protocol):
    """The model by itself."""

    def __call__(self, name: str, known: Arrays, parameters: Mapping[str, Any] = ..., /) -> Arrays:
        """Its outputs to a request, given the request's name, all tensors that there are, and parameters."""
        ...


_NO_PARAMETERS: Mapping[str, Any] = MappingProxyType({})


class DaliJob(Record):
    """Which DALI makes the model's input of images, on what, and the largest batch of its configuration."""

    version: str
    device: Device
    max_batch_size: int


class JoinJob(Record):
    """What the parts are made around.

    `source`, `folder`, `allow_pickle`, `inputs`, `outputs`: as for `loading.load`; `onnx`: the exported model, which
    knows its axes; `runnable`: the graph that ONNX Runtime can run here with the engine's numbers, empty for the
    engine's own; `validation`: the gate's verdict on the model, which has the tolerances; `numpy`: the version that
    parts run with; `dali`: None where Pillow reads images; `dali_site`: the folder that it is installed in.
    """

    source: dict[str, Any]
    folder: str
    allow_pickle: bool
    inputs: dict[str, Any]
    outputs: tuple[str, ...]
    options: PipelineOptions
    onnx: OnnxModel
    engine: Engine
    engine_folder: str
    runnable: str
    validation: ValidationReport
    numpy: str
    dali: DaliJob | None = None
    dali_site: str = ""


def plan_around(job: JoinJob, progress: Progress) -> tuple[Draft, LiveModel | None]:
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
    return with_dali(draft, DaliPlace(Path(job.dali_site), job.dali.device, job.dali.max_batch_size, options))


def answer_of(
    draft: Draft,
    folder: Path,
    ask: AskModel,
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


def answer_of_source(draft: Draft, live: LiveModel, out: Path, feed: Arrays) -> Arrays:
    """What the source model answers behind the parts' own preprocessing, which is as near to its own as they tell."""
    known = run_parts(draft.before, out, feed)
    # What is served in half precision gets such inputs; the source model has single precision.
    inputs = {tensor.name: known[tensor.name].astype(tensor.dtype) for tensor in live.inputs.tensors}
    known = run_parts(draft.after, out, {**known, **live.ask(inputs)})
    return {tensor.name: known[tensor.name] for tensor in draft.outputs}


def _parts(job: JoinJob, progress: Progress) -> tuple[Draft, LiveModel]:
    """What stands around a model, and the model."""
    from plansmith.pipelines.plan import plan

    folder, source = Path(job.folder), job.source
    live = load(source, folder, job.allow_pickle, job.inputs, job.outputs)
    served = job.onnx.model_copy(update={"components": job.engine.components})
    progress("making the parts around the model")
    draft = plan(
        live,
        folder,
        job.options,
        served,
        scheme=source["scheme"],
        task=source["task"] or "",
        trust_remote_code=source["trust_remote_code"],
    )
    return draft, live


def _generation(job: JoinJob) -> Draft:
    """A model that takes and gives text by itself."""
    from plansmith.pipelines.generation import plan_generation

    return plan_generation(
        Path(job.folder),
        job.options,
        trust_remote_code=job.source["trust_remote_code"],
        allow_pickle=job.allow_pickle,
        task=job.source["task"] or "",
        largest_batch=job.onnx.every_axis()[BATCH].max,
    )


@contextmanager
def asking_model(job: JoinJob, progress: Progress) -> Iterator[AskModel]:
    """The model by itself: takes all tensors that there are, and gives its outputs as the exported model has them."""
    engine, folder = job.engine, Path(job.engine_folder)
    component = engine.components["model"]
    names = [tensor.name for tensor in component.inputs]

    def case_of(name: str) -> Case:
        return Case(name=name, axes={}, file="")

    if GENERATES in engine.options:
        generator = own_generator(folder, progress)
        yield lambda _, known, parameters=_NO_PARAMETERS: generator.ask(known, parameters)
        return
    if engine.kind is EngineKind.PYTHON:
        way = own_way(engine, folder, progress)
        yield lambda name, known, _=_NO_PARAMETERS: way.ask(case_of(name), {one: known[one] for one in names})
        return
    path = Path(job.runnable) if job.runnable else folder / component.file
    outputs = job.onnx.components["model"].outputs
    with asking(path, component.outputs, outputs, engine.precision, engine=engine.kind) as ask:
        yield lambda name, known, _=_NO_PARAMETERS: ask(case_of(name), {one: known[one] for one in names})
