"""The steps that make a lowered graph: fetch, export, sample, lower. A compile goes on from there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from plansmith.compilers.precision.lint.parser_table import newest_opset, version_of
from plansmith.config.source_reference import parse_reference
from plansmith.config.spec import ModelSpec
from plansmith.config.target.targets import load_target, require_onnxruntime
from plansmith.errors import GateError, PlansmithError, SourceError
from plansmith.records.model import DataSet, EngineKind, InputRange, LoweredModel, OnnxModel, SourceModel
from plansmith.report import ReportFacts, unfinished, write
from plansmith.sources.dataset import require_data
from plansmith.sources.reference import refuse_unfitting
from plansmith.steps.cache.shared import SharedCache
from plansmith.steps.cache.shared_place import find_shared_place
from plansmith.steps.fetch import fetch, require_unchanged
from plansmith.steps.lower import lower_graph, require_lowered
from plansmith.steps.runner import Finished, Listener, StageRunner
from plansmith.steps.sample import take_samples
from plansmith.steps.tensorrt.compile import PlanSteps
from plansmith.steps.tensorrt.preview import profile_ranges
from plansmith.system.digest import Digester

R = TypeVar("R")


class GraphSteps:
    """One model on its way from source to lowered graph; each step takes and gives finished records.

    Args:
        spec: what is wanted.
        relative_to: the folder that a source directory, and data, in the spec start from.
        listener: told how it goes.
        dry: look only; raise `WouldRun` at the first step that would do something.
        digester: hashes files; one of its own when None.
        shared: what other machines have done, for a dry run ahead of a real one; found when None.
        stages: those of a compile that this model is a part of; its own when None.

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
        shared: SharedCache | None = None,
        stages: StageRunner | None = None,
    ) -> None:
        self._relative_to = relative_to
        self.reference = parse_reference(spec.source, relative_to=relative_to)
        self.name = spec.name or self.reference.default_name
        self.target = load_target(spec.target)
        self.spec = spec.model_copy(update={"name": self.name, "target": self.target.name})
        refuse_unfitting(self.reference, spec)
        self._onnxruntime = require_onnxruntime(self.target) if spec.engine is EngineKind.ONNXRUNTIME else None
        self._artifacts = Path(spec.artifacts).absolute()
        if stages is not None:
            self._stages, self._shared = stages, stages.shared
            return
        listener = listener or Listener()
        place = None if shared else find_shared_place(spec.shared_cache, relative_to, listener.notice, only_looks=dry)
        self._shared = SharedCache(place, listener.moving) if place else shared
        self._stages = StageRunner(
            self.name,
            self._artifacts,
            listener=listener,
            force=spec.force,
            dry=dry,
            digester=digester,
            shared=self._shared,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stages.close()
        if self._shared is not None and not self._stages.dry:
            self._shared.close()

    def fetch(self) -> Finished[SourceModel]:
        """Bring the model here: a directory or file by content, a hub model at its commit, or random weights.

        Raises:
            SourceError: there is no such model, or it may not be read; or nothing lies where data should.
            EnvironmentFault: the hub cannot be reached.
        """
        if self.spec.data is not None:
            try:
                require_data(self.spec.data, self._relative_to)
            except SourceError as error:
                raise error.located(model=self.name, step="sample") from None
        return fetch(self._stages, self.spec, self.reference)

    def export(self, source: Finished[SourceModel]) -> Finished[OnnxModel]:
        """Export to ONNX, or take an ONNX file as it is, and store the reference's answers.

        A model that is served as PyTorch is asked alone, and nothing is exported.

        Raises:
            ExportError: no exporter's graph agrees with the model.
            SourceError: the model cannot be loaded, or changed while it was read.
            EnvironmentFault: it does not fit into memory, or there is no GPU to hold it.
            UsageError: shapes, inputs or outputs that the model does not have.
        """
        parameters: dict[str, Any] = {
            "inputs": self.spec.described_inputs,
            "outputs": self.spec.outputs,
        }
        function, place = "take_graph", {"path": source.record.location}
        if source.record.scheme == "onnx":
            parameters |= {"shapes": _dumped(self.spec.shapes), "profiles": _dumped(profile_ranges(self.spec))}
        else:
            function, place = "export", {"folder": str(source.folder)}
            parameters |= {
                "shapes": _dumped(self.spec.shapes or profile_ranges(self.spec)),
                "source": source.record.model_dump(include={"scheme", "trust_remote_code", "task"}),
                "device": self.spec.device,
                "allow_pickle": self.spec.allow_pickle,
            }
            if self.spec.engine is EngineKind.PYTHON:
                function = "ask_model"
            else:
                parameters["max_opset"] = self._max_opset()

        def build(out: Path) -> Any:
            record = self._stages.heavy(function, out=str(out), **place, **parameters)
            require_unchanged(self._stages, self.spec, source)
            return record

        onnx = self._stages.stage("export", OnnxModel, [source.digest], parameters, build, tools=function)
        if onnx.record.reference.guessed:
            self._stages.notice(f"the checks use {onnx.record.reference.data}; real inputs would tell more")
        for held in onnx.record.held:
            self._stages.notice(held.words)
        return onnx

    def _max_opset(self) -> int:
        """The newest opset that the target's engine reads."""
        if self._onnxruntime:
            return self._onnxruntime.max_opset
        return newest_opset(version_of(self.target.tensorrt or ""))

    def sample(self, source: Finished[SourceModel], onnx: Finished[OnnxModel]) -> Finished[DataSet]:
        """Make samples of the data into inputs, in two sets that share none, and ask the source model.

        Raises:
            SourceError: the data cannot be read, or are too few.
            UsageError: columns, labels or inputs that are not there.
        """
        return take_samples(self._stages, self.spec, self._relative_to, source, onnx)

    def lower(self, onnx: Finished[OnnxModel], data: Finished[DataSet] | None) -> Finished[LoweredModel]:
        """Lower the graph's precision; what has the precision already passes through.

        Raises:
            ExportError: the graph is lowered already, or cannot be.
            GateError: no recipe is accurate enough.
        """
        require = self._with_report(require_lowered)
        device = self.target.device
        return lower_graph(self._stages, self.spec, self._relative_to, onnx, data, device=device, require=require)

    def _plan_steps(self) -> PlanSteps:
        with self._locating("compile"):
            return PlanSteps(
                self._stages, self.spec, self.target, relative_to=self._relative_to, artifacts=self._artifacts
            )

    @contextmanager
    def _locating(self, step: str) -> Iterator[None]:
        """Errors outside of the steps say which one they are about."""
        try:
            yield
        except PlansmithError as error:
            raise error.located(model=self.name, step=step) from error.__cause__

    def _with_report(self, require: Callable[[R], None]) -> Callable[[R], None]:
        """The same check, which writes the HTML report of a refusal and names it as the log."""

        def check(record: R) -> None:
            try:
                require(record)
            except GateError as error:
                if self._stages.dry:
                    raise
                page = self._stages.log_file("report").with_suffix(".html")
                write(self._facts(), page)
                raise error.located(log=page) from None

        return check

    def _facts(self) -> ReportFacts:
        """What is known so far."""
        made: dict[str, Any] = self._stages.made
        return unfinished(
            self.name,
            self.target.name,
            self.spec.model_dump(mode="json"),
            made.get("validate"),
            source=made.get("fetch"),
            onnx=made.get("export"),
            data=made.get("sample"),
            lowered=made.get("lower"),
            engine=made.get("compile"),
            steps=tuple(self._stages.records),
        )


def _dumped(ranges: Mapping[str, InputRange]) -> dict[str, Any]:
    return {name: given.model_dump() for name, given in ranges.items()}
