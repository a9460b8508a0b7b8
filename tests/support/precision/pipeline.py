"""The heavy steps of a compile in this process, as the worker does them: export, sample, lower, compile, validate."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from plansmith.compilers.export.export import export
from plansmith.compilers.export.requests import ExportRequest, ImportRequest, LoadRequest
from plansmith.compilers.precision.lowering import lower
from plansmith.compilers.precision.requests import LowerRequest
from plansmith.config.data import DataSpec
from plansmith.config.engine_options import LoweringOptions, LoweringRequest
from plansmith.records.model import DataSet, Device, EngineKind, LoweredModel, OnnxModel, Precision
from plansmith.records.validation import ToleranceChange, ValidationReport
from plansmith.sources.dataset import find_data
from plansmith.steps.worker.__main__ import compile_engine, validate
from plansmith.steps.worker.import_onnx import import_onnx
from plansmith.steps.worker.sample_request import SampleRequest
from plansmith.steps.worker.sampling import EVALUATION, sample
from plansmith.steps.worker.tasks import EngineRequest, ValidateRequest
from plansmith.system.digest import Digester
from plansmith.validation.verdict import HeldOut

_OPSET, _IR = 21, 10


@dataclass(frozen=True)
class Lowered:
    """What lowering made, and its folder."""

    record: LoweredModel
    folder: Path

    @property
    def high_reasons(self) -> dict[str, str]:
        """Nodes that stayed high, with the reason."""
        assert self.record.recipe is not None
        return {entry.node: entry.reason for entry in self.record.recipe.kept}

    @property
    def share(self) -> float:
        """Of the lowered graph's bytes in those of FP32."""
        files = self.record.components["model"].files
        return sum((self.folder / file).stat().st_size for file in files) / self.record.fp32_bytes


@dataclass(frozen=True)
class Prepared:
    """An exported model and its samples."""

    onnx: OnnxModel
    onnx_folder: Path
    data: DataSet
    data_folder: Path

    def lower(
        self,
        precision: Precision | str,
        out: Path,
        *,
        engine: EngineKind = EngineKind.ONNXRUNTIME,
        device: Device = "cpu",
        tolerances: Mapping[str, ToleranceChange] | None = None,
        **options: Any,
    ) -> Lowered:
        """Lower the graph into a new folder; `options` are those of a spec's `lowering`."""
        out.mkdir(parents=True)
        request = LoweringRequest.model_validate(
            {
                "precision": precision,
                "engine": engine,
                "device": device,
                "options": LoweringOptions(**options),
                "tolerances": tolerances or {},
                "max_metric_drop": None,
            }
        )
        task = LowerRequest(
            onnx=self.onnx,
            folder=self.onnx_folder,
            data=self.data,
            data_folder=self.data_folder,
            request=request,
            out=out,
        )
        return Lowered(lower(task, _silent), out)

    def without_held_out(self, out: Path) -> Prepared:
        """The same where nothing but the calibration samples is left."""
        shutil.copytree(self.data_folder, out, ignore=shutil.ignore_patterns(EVALUATION))
        return replace(self, data_folder=out)

    def judge(self, lowered: Lowered, out: Path) -> ValidationReport:
        """Compile it and hold the engine against the source model, held-out samples included."""
        out.mkdir(parents=True)
        record, runnable = lowered.record, lowered.record.runnable
        request = EngineRequest(lowered=record, folder=lowered.folder, max_opset=_OPSET, max_ir_version=_IR, out=out)
        return validate(
            ValidateRequest(
                engine=compile_engine(request, _silent),
                engine_folder=out,
                onnx=self.onnx,
                reference_folder=self.onnx_folder,
                tolerances={},
                held_out=HeldOut(data=self.data, folder=self.data_folder),
                recipe=record.recipe,
                runnable=lowered.folder / runnable if runnable else None,
            ),
            _silent,
        )


def prepare(model: Path, data: DataSpec, out: Path) -> Prepared:
    """Export a timm model's directory, or take an ONNX file, and make samples of data."""
    exported, samples = out / "exported", out / "samples"
    for folder in (exported, samples):
        folder.mkdir(parents=True)
    source = LoadRequest(scheme="timm" if model.is_dir() else "onnx", folder=model, location=str(model))
    if model.is_dir():
        onnx = export(ExportRequest(model=source, max_opset=18, out=exported), _silent)
    else:
        onnx = import_onnx(ImportRequest(path=model, out=exported), _silent)
    place = find_data(data, relative_to=out, digester=Digester(out / "digests.sqlite"))
    data_set = sample(SampleRequest(model=source, data=data, place=place, out=samples), _silent)
    return Prepared(onnx, exported, data_set, samples)


def _silent(_: str) -> None:
    pass
