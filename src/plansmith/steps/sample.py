"""The step that draws samples of the data, and asks the source model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from plansmith.config.data import DataSpec
from plansmith.config.spec import ModelSpec
from plansmith.data.reader import DataPlace
from plansmith.errors import ExportError
from plansmith.records.model import DataSet, EngineKind, OnnxModel, Precision, SourceModel
from plansmith.sources.dataset import find_data, require_data_unchanged
from plansmith.steps.fetch import require_unchanged
from plansmith.steps.runner import Finished, StageRunner, WouldRun

_NOT_SAMPLED = {"path", "dataset", "subset", "split", "max_metric_drop"}
"""What a spec says of data that makes no other samples: where they come from stands in their place, by digest."""


def may_need_samples(spec: ModelSpec) -> bool:
    """Whether a compile takes samples, as far as is known before the graph is there; PyTorch calibrates nothing."""
    lowers = spec.precision is not Precision.FP32 and spec.engine is not EngineKind.PYTHON
    return spec.data is not None or lowers


def needs_samples(spec: ModelSpec, onnx: OnnxModel) -> bool:
    """Whether a compile takes samples: somebody gave data to judge by, or the lowering has to see some.

    Raises:
        ExportError: the graph came in another lowered precision than the one that is asked for.
    """
    if onnx.precision is Precision.FP32:
        return may_need_samples(spec)
    if spec.precision not in {Precision.FP32, onnx.precision}:
        raise ExportError(
            f"the file is {onnx.precision} already, and a lowering to {spec.precision} starts from FP32",
            remedy=f"export it in FP32, or leave --precision out and keep {onnx.precision}",
            model=spec.name,
            step="lower",
        )
    return spec.data is not None


def take_samples(
    stages: StageRunner,
    spec: ModelSpec,
    relative_to: Path,
    source: Finished[SourceModel],
    onnx: Finished[OnnxModel],
) -> Finished[DataSet]:
    """Make samples into inputs, in two sets that share none, and ask the source model about them.

    Args:
        stages: the compile's steps.
        spec: says where the data are; without data, inputs of plansmith's own are taken, for calibration alone.
        relative_to: the folder that the path of data starts from.
        source: the model.
        onnx: what was exported of it.

    Raises:
        SourceError: the data cannot be read, or changed while they were.
        UsageError: there are too few, or columns, labels or inputs that are not there.
    """
    asked: dict[str, Any] = {
        "inputs": spec.described_inputs,
        "outputs": spec.outputs,
        "allow_pickle": spec.allow_pickle,
        "axes": {axis: r.model_dump() for axis, r in onnx.record.every_axis().items()}
        | {one.axis: one.to for one in onnx.record.tied},
    }
    model = source.record.model_dump(include={"scheme", "trust_remote_code", "task"}) | {"device": spec.device}
    with stages.timed("sample") as clock:
        place = _find_data(stages, spec.data, relative_to) if spec.data else None
        # Digests tell what lies where; limits are the gate's.
        parameters = {
            **asked,
            "source": model,
            "data": spec.data.model_dump(mode="json", exclude=_NOT_SAMPLED) if spec.data else None,
            "place": place.model_dump(mode="json", exclude={"folder"}) if place else None,
        }

        def build(out: Path) -> Any:
            record = stages.heavy(
                "sample",
                source={**model, "location": source.record.location},
                folder=str(source.folder),
                data=spec.data.model_dump(mode="json") if spec.data else None,
                place=place.model_dump(mode="json") if place else None,
                out=str(out),
                **asked,
            )
            require_unchanged(stages, spec, source)
            if place is not None:
                require_data_unchanged(place, stages.digester)
            return record

        entry, clock.cached = stages.entry("sample", [source.digest, onnx.digest], parameters, build)
        stages.made["sample"] = record = DataSet.model_validate(entry.record)
    if not record.real:
        stages.notice(f"calibrated on {record.words}; --data, or `data` in a spec, names real ones")
    return Finished(record, entry.folder, entry.digest, clock.cached)


def _find_data(stages: StageRunner, spec: DataSpec, relative_to: Path) -> DataPlace:
    place = find_data(
        spec, relative_to=relative_to, digester=stages.digester, offline=stages.dry, progress=stages.progress
    )
    if place.kind != "entry_point":
        return place
    if stages.dry:
        raise WouldRun("sample")
    found = stages.heavy("entry_point_digest", entry_point=spec.entry_point, place=place.model_dump(mode="json"))
    return place.model_copy(update={"digest": found["digest"]})
