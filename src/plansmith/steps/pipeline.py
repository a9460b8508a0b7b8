"""Pipeline step in the driver: adds raw inputs and outputs to a model."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.config.source_reference import Scheme, SourceReference, is_model_scheme
from plansmith.config.spec import ModelSpec
from plansmith.config.targets import Target, require_dali
from plansmith.config.triton import TritonOptions
from plansmith.config.triton.options import Latest, VersionPolicy
from plansmith.errors import EngineError, GateError, UsageError
from plansmith.records.engine import Engine
from plansmith.records.model import BARE_SCHEMES, EngineKind, LoweredModel, OnnxModel
from plansmith.records.pipeline import Pipeline, RawInput
from plansmith.steps.artifacts import CompiledModel
from plansmith.steps.fetch import load_request, require_unchanged
from plansmith.steps.runner import StageRunner, StepResult
from plansmith.triton.config.model_config import max_batch_size

if TYPE_CHECKING:
    from plansmith.pipelines.requests import JoinJob

_MOST_TOLD = 5
_DECIDES = {"scheme", "trust_remote_code", "task", "allow_pickle", "inputs", "outputs"}
"""What of a `LoadRequest` decides the parts around a model."""


def require_joinable(spec: ModelSpec, scheme: Scheme, folder: Path | None) -> None:
    """Require that a pipeline can be built around a source, as far as its files show.

    Args:
        spec: says what the pipeline is to be.
        scheme: of the source.
        folder: of the source, where it is here already.

    Raises:
        UsageError: it cannot.
        SourceError: what makes the model's inputs is not there.
    """
    if spec.pipeline is None:
        return
    if scheme in BARE_SCHEMES:
        source_kind = "an ONNX file" if scheme == "onnx" else "a module of PyTorch"
        raise UsageError(
            f"{source_kind} brings no tokenizer or processor, so no pipeline can be made around it",
            remedy="leave `pipeline` out, or name the model that the file was exported from (hf:…, timm:…)",
        )
    if spec.engine is not EngineKind.PYTHON or spec.pipeline.output != "text":
        _require_plain(spec.triton)
    if folder is None or not is_model_scheme(scheme):
        return
    from plansmith.pipelines.detect import refuse_raw

    raw_kind = refuse_raw(scheme, folder, spec.pipeline, task=spec.task)
    if raw_kind == "text" and spec.engine is not EngineKind.PYTHON:
        raise UsageError(
            f"the model generates text token by token, which engine {spec.engine} does not",
            remedy="use --engine python, or write output: tensors under `pipeline`",
        )


def require_compatible(models: Mapping[str, tuple[ModelSpec, SourceReference]]) -> None:
    """Require that the models of a release can answer the same requests, as far as their files show.

    Args:
        models: the spec's own, under "", and those beside it, each with its spec and its source as typed.

    Raises:
        UsageError: they cannot.
        SourceError: what makes a model's inputs is not there.
    """
    from plansmith.pipelines.detect import refuse_raw

    own, own_pipeline = _raw_of(*models[""]), models[""][0].pipeline
    assert own_pipeline is not None
    for name, (spec, reference) in models.items():
        assert spec.pipeline is not None
        kind = _raw_of(spec, reference)
        if own is not None and kind is not None and kind != own:
            raise UsageError(
                f"the models of a pipeline answer the same requests, and {name} takes {kind} where the spec's own"
                f" takes {own}",
                remedy=f"leave {name} out of `pipeline: models`, or compile it by a spec of its own",
            )
        scheme, folder = reference.scheme, reference.path
        if (
            folder is not None
            and is_model_scheme(scheme)
            and refuse_raw(scheme, folder, spec.pipeline, task=spec.task) == "text"
        ):
            _require_joinable_text(name, spec, has_script=bool(own_pipeline.script))


def _require_joinable_text(name: str, spec: ModelSpec, *, has_script: bool) -> None:
    """Check that a text generation model can be a companion model: it takes and gives text of the same name."""
    assert spec.pipeline is not None
    if spec.pipeline.stream:
        raise UsageError(
            f"{name or 'the model'} streams its text, and beside another model or for a script it is answered whole",
            remedy="leave `stream` out of its `pipeline`",
        )
    if not name and not has_script:
        raise UsageError(
            "the model generates text by itself, and answers no requests beside another model without a script",
            remedy="write a `script` that asks both, or make the other model the spec's own",
        )


def _raw_of(spec: ModelSpec, reference: SourceReference) -> RawInput | None:
    """Return the raw input that clients of a model send; None if that is not known yet."""
    from plansmith.pipelines.detect import raw_input

    assert spec.pipeline is not None
    if spec.pipeline.input:
        return spec.pipeline.input
    if reference.scheme == "timm":
        return "image"
    if reference.path is None or not is_model_scheme(reference.scheme):
        return None
    return raw_input(reference.scheme, reference.path, spec.pipeline)


def require_batches(spec: ModelSpec, onnx: OnnxModel) -> None:
    """Require a dynamic batch axis of a model with a pipeline.

    Raises:
        EngineError: it does not.
    """
    if spec.pipeline is None or spec.engine is EngineKind.PYTHON or max_batch_size(onnx.components["model"], onnx.axes):
        return
    raise EngineError(
        "a pipeline joins the samples of several requests, and the model has no batch axis that moves",
        remedy="leave `pipeline` out of the spec, or give shapes with a batch that moves",
    )


def _require_plain(options: TritonOptions) -> None:
    """Check that the model's Triton configuration is one that an ensemble member may have.

    Raises:
        UsageError: it is not.
    """
    wrong = {
        "max_batch_size: 0": options.max_batch_size == 0,
        "sequence_batching": options.sequence_batching is not None,
        "model_transaction_policy: {decoupled: true}": options.is_decoupled,
        # Another release has other parts, and the configuration names those of one.
        "version_policy": options.version_policy not in {None, VersionPolicy(latest=Latest())},
    }
    problems = [option for option, is_so in wrong.items() if is_so]
    if problems:
        raise UsageError(
            "a pipeline serves one version of a model that answers batches,"
            f" and `triton` asks for {', '.join(problems)}",
            remedy=f"leave {problems[0]} out of `triton`, or `pipeline` out of the spec",
        )


def uses_dali(spec: ModelSpec) -> bool:
    """Whether DALI preprocesses images."""
    return spec.pipeline is not None and spec.pipeline.preprocessing == "dali"


def require_dali_here(spec: ModelSpec, target: Target) -> None:
    """Require that the target's DALI is installed and supports the spec, if the spec uses DALI.

    Raises:
        UsageError: it decodes on a CPU, and memory of a decoder on a GPU is asked for.
        EnvironmentFault: it is not installed.
        EngineError: nothing says which one the target has.
    """
    if not uses_dali(spec):
        return
    assert spec.pipeline is not None
    hints = spec.pipeline.dali.decoder_hints if spec.pipeline.dali is not None else {}
    if hints and target.device == "cpu":
        raise UsageError(
            f"the spec sets {', '.join(hints)} under `pipeline: dali`, which a decoder on a GPU has, and {target.name}"
            " has CPU instances",
            remedy="leave what is not num_threads out, or name a --target with GPU instances",
        )
    _dali_site(target)


def _dali_site(target: Target) -> Path:
    from plansmith.triton.server.environment import dali_folder

    return dali_folder(require_dali(target), target=shlex.quote(target.name))


def join(stages: StageRunner, spec: ModelSpec, target: Target, compiled: CompiledModel) -> StepResult[Pipeline] | None:
    """Build a model's pipeline, and compare it with the source's own library.

    Args:
        stages: the compile's steps.
        spec: says what the pipeline is to be.
        target: what it is served by.
        compiled: the model, as far as the gate's verdict.

    Raises:
        SourceError: the source has no tokenizer or processor, or one that cannot be carried over.
        UsageError: a pipeline that does not fit the model.
        GateError: the answers are not those of the source's own library.
        EnvironmentFault: the target's DALI is not here.
        EngineError: DALI cannot do what the source does.
    """
    job = join_job(spec, target, compiled)

    def build(out: Path) -> Pipeline:
        from plansmith.pipelines.requests import JoinRequest
        from plansmith.steps.worker import tasks

        record = stages.run_in_worker(tasks.JOIN, JoinRequest(job=job, out=out))
        require_unchanged(stages, spec, compiled.source)
        return record

    inputs = [step.digest for step in (compiled.source, compiled.onnx, compiled.engine, compiled.validation)]
    # The steps before decide the rest.
    parameters = job.model_dump(mode="json", include={"model": _DECIDES, "options": True, "numpy": True, "dali": True})
    return stages.stage("join", Pipeline, inputs, parameters, build, require=_require_agreement)


def join_job(spec: ModelSpec, target: Target, compiled: CompiledModel) -> JoinJob:
    """Return the build input of a model's pipeline parts; arguments as for `join`."""
    from plansmith.compilers.python_backend.model_folder import NUMPY
    from plansmith.pipelines.requests import DaliJob, JoinJob

    assert spec.pipeline is not None
    engine, dali = compiled.engine.record, None
    if uses_dali(spec):
        dali = DaliJob(
            version=require_dali(target),
            device=target.device,
            max_batch_size=max_batch_size(engine.components["model"], compiled.onnx.record.axes),
        )
    return JoinJob(
        model=load_request(spec, compiled.source),
        options=spec.pipeline.around_one,
        onnx=compiled.onnx.record,
        engine=engine,
        engine_folder=compiled.engine.folder,
        runnable=_runnable(engine, compiled.lowered),
        validation=compiled.validation.record,
        numpy=NUMPY,
        dali=dali,
        dali_site=_dali_site(target) if uses_dali(spec) else None,
    )


def _runnable(engine: Engine, lowered: StepResult[LoweredModel]) -> Path | None:
    """Return the graph to run here in place of a plan, or of a graph that ONNX Runtime cannot run on a CPU."""
    record = lowered.record
    if record.runnable:
        return lowered.folder / record.runnable
    return lowered.folder / record.components["model"].file if engine.plans else None


def _require_agreement(pipeline: Pipeline) -> None:
    """Accept a pipeline only if its responses agree with those of the source's own library."""
    from plansmith.pipelines.agreement import refusals

    if problems := refusals(pipeline):
        more = [f"… and {len(problems) - _MOST_TOLD} more"] if len(problems) > _MOST_TOLD else []
        title = f"the pipeline does not answer as {pipeline.source} does:"
        raise GateError(
            "\n  ".join([title, *problems[:_MOST_TOLD], *more]),
            remedy="nothing was published; please report this with the model, or leave `pipeline` out of the spec",
        )
