"""The verbs of a compile, in order: fetch, export, lower, compile, validate, package, check_served, publish.

Each is a plain method that takes and gives finished records; what they share is in `stages`. The heavy
ones are carried out by one worker process, started when the first of them is not in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ParamSpec, Protocol, Self, TypeVar

from plansmith.config import ModelSpec
from plansmith.digest import Digester
from plansmith.durable import require_writable
from plansmith.errors import EngineError, ExportError, PlansmithError
from plansmith.fetching import fetch, require_unchanged
from plansmith.history import HISTORY, History
from plansmith.manifest import Manifest, Package, PublishedVersion, StepRecord
from plansmith.packaging import lay_out
from plansmith.publishing import Made, publish
from plansmith.recording import Run, recorded
from plansmith.reports import ServedReport, ValidationReport
from plansmith.serving import ask_server
from plansmith.sources.reference import parse_reference, refuse_unfitting
from plansmith.stages import Finished, Listener, StageRunner, WouldRun
from plansmith.targets import load_target, require_onnxruntime
from plansmith.triton.repository import ModelRepository
from plansmith.triton.serving_runtime import find_serving_runtime
from plansmith.types import Engine, EngineKind, OnnxModel, Precision, SourceModel
from plansmith.validation import require_passed

STEPS = ("fetch", "export", "lower", "compile", "validate", "package", "check_served", "publish")

P = ParamSpec("P")
R = TypeVar("R")


class Perform(Protocol):
    """How the steps of a `Compilation` are carried out."""

    def __call__(self, step: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do a step and give its result."""
        ...


def _plainly(step: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    return step(*args, **kwargs)


class Compilation:
    """One model on its way from source to published version.

    Args:
        spec: what to compile.
        relative_to: the folder that a source directory in the spec starts from.
        listener: told how it goes.
        dry: look only; raise `WouldRun` at the first step that would do something.
        digester: hashes files; one of its own when None.

    Raises:
        PlansmithError: what can be known to be wrong before any work is done.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        relative_to: Path,
        listener: Listener | None = None,
        dry: bool = False,
        digester: Digester | None = None,
    ) -> None:
        self._relative_to = relative_to
        self.reference = parse_reference(spec.source, relative_to=relative_to)
        self.name = spec.name or self.reference.default_name
        self.target = load_target(spec.target)
        self.spec = spec.model_copy(update={"target": self.target.name})
        _require_available(spec, self.name)
        refuse_unfitting(self.reference, spec)
        self._onnxruntime = require_onnxruntime(self.target)
        artifacts = Path(spec.artifacts).absolute()
        self._stages = StageRunner(
            self.name, artifacts, listener=listener or Listener(), force=spec.force, dry=dry, digester=digester
        )
        self._history = History(artifacts / HISTORY)
        self.repository = ModelRepository(Path(spec.repository or artifacts / "repository"), self._stages.digester)
        self.repository.require_target(self.target.name)
        if not dry:
            for place in (artifacts, self.repository.root, self.repository.store):
                require_writable(place)
        self._runtime = find_serving_runtime(spec.tritonserver, self.target) if spec.check_served else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stages.close()

    def run(self, perform: Perform = _plainly) -> tuple[PublishedVersion, Manifest]:
        """All steps, from source to published version; the manifest tells of this run.

        Args:
            perform: carries each step out; an orchestrator puts its own surroundings around them.

        Raises:
            PlansmithError: located at the step that failed; nothing was published.
        """
        if self._stages.dry:
            return self._do(perform)
        with recorded(Run(self._stages, self.spec, self.name, self.repository.root), self._history) as run:
            run.published, manifest = self._do(perform)
            return run.published, manifest

    def _do(self, perform: Perform) -> tuple[PublishedVersion, Manifest]:
        source = perform(self.fetch)
        onnx = perform(self.lower, perform(self.export, source))
        engine = perform(self.compile, onnx)
        validation = perform(self.validate, engine, onnx)
        self._stages.end_worker()
        package = perform(self.package, engine, onnx)
        served = perform(self.check_served, package, onnx, validation) if self.spec.check_served else None
        return perform(self.publish, source, onnx, engine, validation, package, served)

    def plan(self) -> dict[str, str]:
        """What a run would do, step by step; only for a dry compilation."""
        with suppress(WouldRun):
            self.run()
        found = {record.name: record.cached for record in self.steps}
        plan = {step: "cached" if found.get(step) else "would run" for step in STEPS}
        if "publish" in found:
            plan["publish"] = "nothing: the newest version is this one"
        if not self.spec.check_served:
            plan["check_served"] = "left out"
        return plan

    def outlook(self) -> dict[str, str]:
        """As `plan`, before a run that is not dry; a step that will be refused says so."""
        with Compilation(self.spec, relative_to=self._relative_to, dry=True, digester=self._stages.digester) as dry:
            try:
                return dry.plan()
            except PlansmithError as error:
                return {error.step: f"will be refused: {error.message}"}

    @property
    def steps(self) -> list[StepRecord]:
        """How the steps went so far."""
        return self._stages.records

    def fetch(self) -> Finished[SourceModel]:
        """Bring the model here: a directory or file by content, a hub model at its commit, or random weights.

        Raises:
            SourceError: there is no such model, or it may not be read.
            EnvironmentFault: the hub cannot be reached.
        """
        return fetch(self._stages, self.spec, self.reference)

    def export(self, source: Finished[SourceModel]) -> Finished[OnnxModel]:
        """Export to ONNX, or take an ONNX file as it is, and store the reference's answers.

        Raises:
            ExportError: no exporter's graph agrees with the model.
            SourceError: the model cannot be loaded, or changed while it was read.
            UsageError: shapes, inputs or outputs that the model does not have.
        """
        parameters: dict[str, Any] = {
            "shapes": {k: v.model_dump() for k, v in self.spec.shapes.items()},
            "inputs": {k: v.model_dump() for k, v in self.spec.inputs.items()},
            "outputs": self.spec.outputs,
        }
        function, place = "take_graph", {"path": source.record.location}
        if source.record.scheme != "onnx":
            function, place = "export", {"folder": str(source.folder)}
            parameters |= {
                "source": source.record.model_dump(include={"scheme", "trust_remote_code", "task"}),
                "max_opset": self._onnxruntime.max_opset,
                "allow_pickle": self.spec.allow_pickle,
            }

        def build(out: Path) -> Any:
            record = self._stages.heavy(function, out=str(out), **place, **parameters)
            require_unchanged(self._stages, self.spec, source)
            return record

        onnx = self._stages.stage("export", OnnxModel, [source.digest], parameters, build, tools=function)
        if onnx.record.reference.guessed:
            self._stages.notice(f"the checks use {onnx.record.reference.data}; real inputs would tell more")
        return onnx

    def lower(self, onnx: Finished[OnnxModel]) -> Finished[OnnxModel]:
        """Lower the graph's precision; FP32 passes through."""
        with self._stages.timed("lower") as clock:
            clock.cached = onnx.cached
            return onnx

    def compile(self, onnx: Finished[OnnxModel]) -> Finished[Engine]:
        """Build the engine that the backend loads.

        Raises:
            EngineError: the graph is refused, or the target cannot read what came out.
        """
        parameters = self._onnxruntime.model_dump(include={"max_opset", "max_ir_version"})

        def build(out: Path) -> Any:
            record = onnx.record.model_dump(mode="json")
            return self._stages.heavy(
                "compile_engine", onnx=record, folder=str(onnx.folder), out=str(out), **parameters
            )

        return self._stages.stage("compile", Engine, [onnx.digest], parameters, build)

    def validate(self, engine: Finished[Engine], onnx: Finished[OnnxModel]) -> Finished[ValidationReport]:
        """Hold the engine against the reference.

        Raises:
            GateError: the verdict is "failed".
        """
        parameters = {"tolerances": {k: v.model_dump(exclude_none=True) for k, v in self.spec.tolerances.items()}}

        def build(_: Path) -> Any:
            return self._stages.heavy(
                "validate",
                engine=engine.record.model_dump(mode="json"),
                engine_folder=str(engine.folder),
                onnx=onnx.record.model_dump(mode="json"),
                reference_folder=str(onnx.folder),
                **parameters,
            )

        inputs = [engine.digest, onnx.digest]
        return self._stages.stage("validate", ValidationReport, inputs, parameters, build, require=require_passed)

    def package(self, engine: Finished[Engine], onnx: Finished[OnnxModel]) -> Finished[Package]:
        """Lay out the release: config.pbtxt and the files that Triton loads.

        Raises:
            EngineError: an input or output that Triton cannot carry.
        """
        return lay_out(self._stages, self.name, self.target.device, self.spec.triton, engine, onnx)

    def check_served(
        self, package: Finished[Package], onnx: Finished[OnnxModel], validation: Finished[ValidationReport]
    ) -> Finished[ServedReport]:
        """Have a real Triton load the release and answer.

        Raises:
            ServedCheckError: it does not load, answers wrongly, or Triton understood another configuration.
        """
        assert self._runtime is not None
        return ask_server(self._stages, self._runtime, package, onnx, validation)

    def publish(
        self,
        source: Finished[SourceModel],
        onnx: Finished[OnnxModel],
        engine: Finished[Engine],
        validation: Finished[ValidationReport],
        package: Finished[Package],
        served: Finished[ServedReport] | None,
    ) -> tuple[PublishedVersion, Manifest]:
        """Number the release and exchange the view that Triton reads.

        Raises:
            RepositoryError: another target's repository, a changed interface, a full or unwritable disk.
        """
        made = Made(source, onnx, engine, validation, package, served)
        return publish(self._stages, self.repository, self.spec, self.reference, made)


def _require_available(spec: ModelSpec, name: str) -> None:
    """Refuse at once what no later step could do."""
    if spec.engine is not EngineKind.ONNXRUNTIME:
        raise EngineError(
            f"engine {spec.engine} is not available yet", remedy="use --engine onnxruntime", model=name, step="compile"
        )
    if spec.precision is not Precision.FP32:
        raise ExportError(
            f"precision {spec.precision} is not available yet", remedy="use --precision fp32", model=name, step="lower"
        )
