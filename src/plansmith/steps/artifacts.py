"""Artifacts that the steps of a compile make for one model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plansmith.config.pipeline import CompanionModel, PipelineSpec
from plansmith.config.spec import ModelSpec
from plansmith.config.triton import TritonOptions
from plansmith.records.engine import Engine
from plansmith.records.model import DataSet, LoweredModel, OnnxModel, SourceModel
from plansmith.records.pipeline import Pipeline
from plansmith.records.release import ReleasedModel
from plansmith.records.validation import ValidationReport
from plansmith.steps.runner import StepResult

_OWN = set(CompanionModel.model_fields) - {"engine", "precision", "pipeline"}


def companion_specs(spec: ModelSpec) -> dict[str, ModelSpec]:
    """Return the specs of the companion models, by name.

    What concerns one model (a field of `CompanionModel`) is as that says, engine and precision as the spec's where it
    says none; all else is as the spec says it, but for the served configuration: there the spec speaks of its own
    model alone.
    """
    models = spec.pipeline.models if spec.pipeline is not None else {}
    return {name: _spec_of(name, model, spec) for name, model in models.items()}


def _spec_of(name: str, companion: CompanionModel, spec: ModelSpec) -> ModelSpec:
    own = {field: getattr(companion, field) for field in _OWN}
    around = PipelineSpec.model_validate(companion.pipeline.model_dump())
    others: dict[str, Any] = {"inputs": {}, "io_dtypes": {}, "triton": TritonOptions(), "publish": (), "load_into": ()}
    others |= {"engine": companion.engine or spec.engine, "precision": companion.precision or spec.precision}
    called = f"{spec.name}.{name}"
    return spec.model_copy(update={**own, **others, "name": called, "pipeline": around})


@dataclass(frozen=True)
class CompiledModel:
    """Compiled model: a model with the results of its steps so far.

    Attributes:
        results: of the steps so far, by their names.
    """

    results: Mapping[str, StepResult[Any]] = field(default_factory=dict)

    def with_result(self, step: str, result: StepResult[Any]) -> CompiledModel:
        """Return the model with the result of a further step."""
        return CompiledModel({**self.results, step: result})

    @property
    def source(self) -> StepResult[SourceModel]:
        """The fetched source model."""
        return self.results["fetch"]

    @property
    def onnx(self) -> StepResult[OnnxModel]:
        """The exported graph and its reference."""
        return self.results["export"]

    @property
    def data(self) -> StepResult[DataSet] | None:
        """The samples; None if none were needed."""
        return self.results.get("sample")

    @property
    def lowered(self) -> StepResult[LoweredModel]:
        """The graph in the requested precision."""
        return self.results["lower"]

    @property
    def engine(self) -> StepResult[Engine]:
        """The engine that the backend loads."""
        return self.results["compile"]

    @property
    def validation(self) -> StepResult[ValidationReport]:
        """The gate's verdict."""
        return self.results["validate"]

    @property
    def pipeline(self) -> StepResult[Pipeline] | None:
        """The pipeline of the model; None without one."""
        return self.results.get("join")

    @property
    def cached(self) -> bool:
        """Whether all its results came from the cache."""
        return all(result.cached for result in self.results.values())

    def validation_files(self) -> dict[str, Path]:
        """Return the validation files that a release keeps, by path: requests and answers, and plan descriptions."""
        plan_files = {
            name: self.engine.folder / name
            for plan in self.engine.record.plans.values()
            for name in plan.description_files
        }
        case_files = {case.file: self.onnx.folder / case.file for case in self.onnx.record.reference.cases}
        if self.pipeline is not None:
            case_files |= {case.file: self.pipeline.folder / case.file for case in self.pipeline.record.cases}
        return {**case_files, **plan_files}

    def released(self) -> ReleasedModel:
        """Return the manifest entry of an additional model of a release."""
        assert self.pipeline is not None
        return ReleasedModel(
            source=self.source.record,
            onnx=self.onnx.record,
            data=self.data.record if self.data else None,
            lowered=self.lowered.record,
            engine=self.engine.record,
            validation=self.validation.record,
            pipeline=self.pipeline.record,
        )
