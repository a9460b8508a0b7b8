"""The heavy steps of a compile in this process, as the worker does them: export, sample, lower, compile, validate."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from plansmith.compilers.export.export import export
from plansmith.compilers.precision.lowering import lower
from plansmith.config.data import DataSpec
from plansmith.config.precision import LoweringOptions, LoweringRequest
from plansmith.records.model import DataSet, Device, EngineKind, LoweredModel, OnnxModel, Precision
from plansmith.records.validation import ToleranceChange, ValidationReport
from plansmith.sources.dataset import find_data
from plansmith.steps.worker.__main__ import compile_engine, validate
from plansmith.steps.worker.import_onnx import take_graph
from plansmith.steps.worker.sample_sets import EVALUATION
from plansmith.steps.worker.sampling import sample
from plansmith.system.digest import Digester

_OPSET, _IR = 21, 10


@dataclass(frozen=True)
class Lowered:
    """What lowering made, and its folder."""

    record: LoweredModel
    folder: Path

    @property
    def kept(self) -> dict[str, str]:
        """Nodes that stayed high, with the reason."""
        assert self.record.recipe is not None
        return {kept.node: kept.reason for kept in self.record.recipe.kept}

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
        made = lower(
            onnx=self.onnx.model_dump(mode="json"),
            folder=str(self.onnx_folder),
            data=self.data.model_dump(mode="json"),
            data_folder=str(self.data_folder),
            request=request.model_dump(mode="json"),
            out=str(out),
            progress=_silent,
        )
        return Lowered(LoweredModel.model_validate(made), out)

    def without_held_out(self, out: Path) -> Prepared:
        """The same where nothing but the calibration samples is left."""
        shutil.copytree(self.data_folder, out, ignore=shutil.ignore_patterns(EVALUATION))
        return replace(self, data_folder=out)

    def judge(self, lowered: Lowered, out: Path) -> ValidationReport:
        """Compile it and hold the engine against the source model, held-out samples included."""
        out.mkdir(parents=True)
        engine = compile_engine(
            lowered=lowered.record.model_dump(mode="json"),
            folder=str(lowered.folder),
            max_opset=_OPSET,
            max_ir_version=_IR,
            out=str(out),
            progress=_silent,
        )
        recipe, runnable = lowered.record.recipe, lowered.record.runnable
        report = validate(
            engine=engine,
            engine_folder=str(out),
            onnx=self.onnx.model_dump(mode="json"),
            reference_folder=str(self.onnx_folder),
            held_out={"data": self.data.model_dump(mode="json"), "folder": str(self.data_folder)},
            recipe=recipe.model_dump(mode="json") if recipe else None,
            runnable=str(lowered.folder / runnable) if runnable else "",
            tolerances={},
            progress=_silent,
        )
        return ValidationReport.model_validate(report)


def prepare(model: Path, data: DataSpec, out: Path) -> Prepared:
    """Export a timm model's directory, or take an ONNX file, and make samples of data."""
    exported, samples = out / "exported", out / "samples"
    for folder in (exported, samples):
        folder.mkdir(parents=True)
    settings: dict[str, Any] = {"inputs": {}, "outputs": (), "progress": _silent}
    source = {"scheme": "onnx", "location": str(model), "trust_remote_code": False, "task": None}
    if model.is_dir():
        source |= {"scheme": "timm"}
        asked = settings | {"shapes": {}, "allow_pickle": False, "max_opset": 18}
        made = export(source=source, folder=str(model), out=str(exported), **asked)
    else:
        made = take_graph(path=str(model), out=str(exported), shapes={}, profiles={}, **settings)
    place = find_data(data, relative_to=out, digester=Digester(out / "digests.sqlite"))
    taken = sample(
        source=source,
        folder=str(model),
        allow_pickle=False,
        data=data.model_dump(mode="json"),
        place=place.model_dump(mode="json"),
        out=str(samples),
        axes={},
        **settings,
    )
    return Prepared(OnnxModel.model_validate(made), exported, DataSet.model_validate(taken), samples)


def _silent(_: str) -> None:
    pass
