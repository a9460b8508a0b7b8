"""What the steps of a compile make of one model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.config.pipeline import BesideModel, PipelineSpec
from plansmith.config.spec import ModelSpec
from plansmith.config.triton import TritonOptions
from plansmith.records.engine import Engine
from plansmith.records.model import DataSet, LoweredModel, OnnxModel, SourceModel
from plansmith.records.pipeline import Pipeline
from plansmith.records.release import ReleasedModel
from plansmith.records.validation import ValidationReport
from plansmith.steps.runner import Finished

_OWN = set(BesideModel.model_fields) - {"engine", "precision", "pipeline"}


def specs_beside(spec: ModelSpec) -> dict[str, ModelSpec]:
    """The specs of the models beside a spec's own, by name.

    What concerns one model (a field of `BesideModel`) is as that says, engine and precision as the spec's where it says
    none; all else is as the spec says it, but for the served configuration: there the spec speaks of its own model
    alone.
    """
    beside = spec.pipeline.beside if spec.pipeline is not None else {}
    return {name: _spec_of(name, one, spec) for name, one in beside.items()}


def _spec_of(name: str, one: BesideModel, spec: ModelSpec) -> ModelSpec:
    own = {field: getattr(one, field) for field in _OWN}
    around = PipelineSpec.model_validate(one.pipeline.model_dump())
    others: dict[str, Any] = {"inputs": {}, "io_dtypes": {}, "triton": TritonOptions(), "publish": (), "load_into": ()}
    others |= {"engine": one.engine or spec.engine, "precision": one.precision or spec.precision}
    called = f"{spec.name}.{name}"
    return spec.model_copy(update={**own, **others, "name": called, "pipeline": around})


@dataclass(frozen=True)
class MadeModel:
    """A model, from its source to what stands around it.

    `data` is None where no samples were needed, `pipeline` where nothing stands around the model.
    """

    source: Finished[SourceModel]
    onnx: Finished[OnnxModel]
    data: Finished[DataSet] | None
    lowered: Finished[LoweredModel]
    engine: Finished[Engine]
    validation: Finished[ValidationReport]
    pipeline: Finished[Pipeline] | None

    @property
    def cached(self) -> bool:
        """Whether nothing had to be done for it."""
        steps = (self.source, self.onnx, self.data, self.lowered, self.engine, self.validation, self.pipeline)
        return all(step is None or step.cached for step in steps)

    def kept(self) -> dict[str, Path]:
        """What a release keeps of how it was judged, by place: questions and answers, and what is told of plans."""
        told = {name: self.engine.folder / name for plan in self.engine.record.plans.values() for name in plan.told}
        asked = {case.file: self.onnx.folder / case.file for case in self.onnx.record.reference.cases}
        if self.pipeline is not None:
            asked |= {case.file: self.pipeline.folder / case.file for case in self.pipeline.record.cases}
        return {**asked, **told}

    def released(self) -> ReleasedModel:
        """What a manifest says of it beside a release's own model."""
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
