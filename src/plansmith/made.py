"""What the steps of a compile make of one model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plansmith.engines import Engine
from plansmith.manifest import ReleasedModel
from plansmith.parts import Pipeline
from plansmith.reports import ValidationReport
from plansmith.stages import Finished
from plansmith.types import DataSet, LoweredModel, OnnxModel, SourceModel


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
