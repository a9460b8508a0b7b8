"""Sample step: draws samples of the data and runs the source model on them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.config.data import DataSpec
from plansmith.config.spec import ModelSpec
from plansmith.errors import ExportError
from plansmith.records.model import DataSet, EngineKind, OnnxModel, Precision, SourceModel
from plansmith.steps.fetch import PLACE, load_request, require_unchanged
from plansmith.steps.runner import StageRunner, StepResult

if TYPE_CHECKING:
    from plansmith.data.reader import DataPlace

_NOT_SAMPLED = {"path", "dataset", "subset", "split", "max_metric_drop"}
"""What a spec says of data that makes no other samples: where they come from stands in their place, by digest."""


def may_need_samples(spec: ModelSpec) -> bool:
    """Whether a compile may need samples, as far as is known before the ONNX export; PyTorch needs no calibration."""
    lowers = spec.precision is not Precision.FP32 and spec.engine is not EngineKind.PYTHON
    return spec.data is not None or lowers


def needs_samples(spec: ModelSpec, onnx: OnnxModel) -> bool:
    """Whether a compile needs samples: for evaluation data from the user, or for calibration in the lowering step.

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
    source: StepResult[SourceModel],
    onnx: StepResult[OnnxModel],
) -> StepResult[DataSet] | None:
    """Convert samples to inputs in two disjoint sets, and compute the source model's outputs for them.

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
    from plansmith.sources.dataset import require_data_unchanged
    from plansmith.steps.worker import tasks
    from plansmith.steps.worker.sample_request import SampleRequest

    with stages.timed("sample") as clock:
        place = _find_data(stages, spec.data, relative_to) if spec.data else None
        if spec.data and place is None:
            clock.is_missing = True
            return None
        request = SampleRequest(
            model=load_request(spec, source),
            axes=onnx.record.every_axis(),
            tied={tied.axis: tied.to for tied in onnx.record.tied},
            data=spec.data,
            place=place,
            out=Path(),
        )
        # Digests tell what lies where; limits are the gate's.
        parameters = request.model_dump(
            mode="json", exclude={"model": PLACE, "data": _NOT_SAMPLED, "place": {"folder"}, "out": True}
        )

        def build(out: Path) -> DataSet:
            record = stages.run_in_worker(tasks.SAMPLE, request.model_copy(update={"out": out}))
            require_unchanged(stages, spec, source)
            if place is not None:
                require_data_unchanged(place, stages.digester)
            return record

        result = stages.entry("sample", [source.digest, onnx.digest], parameters, build)
        if result is None:
            clock.is_missing = True
            return None
        entry, clock.cached = result
        stages.results["sample"] = record = DataSet.model_validate(entry.record)
    if not record.real:
        stages.notice(f"calibrated on {record.words}; --data, or `data` in a spec, names real ones")
    return StepResult(record, entry.folder, entry.digest, clock.cached)


def _find_data(stages: StageRunner, spec: DataSpec, relative_to: Path) -> DataPlace | None:
    """Return the location of data; None in a dry run that would have to run a user's function."""
    from plansmith.sources.dataset import find_data
    from plansmith.steps.worker import tasks
    from plansmith.steps.worker.sample_request import EntryPointRequest

    place = find_data(
        spec, relative_to=relative_to, digester=stages.digester, offline=stages.dry, progress=stages.progress
    )
    if place.kind != "entry_point":
        return place
    if stages.dry:
        return None
    assert spec.entry_point
    result = stages.run_in_worker(
        tasks.ENTRY_POINT_DIGEST, EntryPointRequest(entry_point=spec.entry_point, place=place)
    )
    return place.model_copy(update={"digest": result.digest})
