"""A PyTorch model that needs a package, as the steps before the packaging leave it, and its release."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from plansmith.config.spec import ModelSpec
from plansmith.config.targets import load_target
from plansmith.config.triton import TritonOptions
from plansmith.data.reference import StoredCase, store_case
from plansmith.records.engine import Engine
from plansmith.records.model import AxisRange, Component, EngineKind, OnnxModel, Precision, ReferenceSet, Tensor
from plansmith.records.pipeline import Pipeline
from plansmith.records.release import Package
from plansmith.steps.release.environment import environments_of
from plansmith.steps.release.package import build_package
from plansmith.steps.runner import Listener, StageRunner, StepResult

from ....support.made import made_model

IMAGE = load_target("triton-26.08-cpu")
MODEL = """
import ape
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        found = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x * np.float32(ape.FACTOR))]) for x in found]
"""
X = np.arange(6, dtype=np.float32).reshape(2, 3)
CASE = StoredCase("opt", {"x": X}, {"y": X * 7}, np.arange(2))


def make_engine(folder: Path) -> StepResult[Engine]:
    """A model for the Python backend that needs a package."""
    folder.mkdir()
    (folder / "model.py").write_text(MODEL)
    (folder / "requirements.txt").write_text("ape==1.0\n")
    component = Component(
        file="model.py",
        external_files=("requirements.txt",),
        inputs=(Tensor(name="x", dtype="float32", dims=("batch", 3)),),
        outputs=(Tensor(name="y", dtype="float32", dims=("batch", 3)),),
        opset=0,
        ir_version=0,
    )
    record = Engine(
        kind=EngineKind.PYTHON,
        components={"model": component},
        precision=Precision.FP32,
        options={},
        toolchain={},
    )
    return StepResult(record, folder, hashlib.sha256(MODEL.encode()).hexdigest(), cached=False)


def make_reference(engine: StepResult[Engine], folder: Path) -> StepResult[OnnxModel]:
    """One case."""
    stored = store_case("opt", {"batch": 2}, CASE.feed, CASE.answer, folder / "reference")
    record = OnnxModel(
        components=engine.record.components,
        axes={"batch": AxisRange(min=1, opt=2, max=4)},
        mask_input=None,
        exporter="none",
        attempts=(),
        precision=Precision.FP32,
        reference=ReferenceSet(runtime="none", data="none", cases=(stored,)),
    )
    return StepResult(record, folder, "onnx", cached=False)


def spec_of(environment: str) -> ModelSpec:
    """A spec that says this of the environment."""
    fields: dict[str, Any] = {"source": "hf:odd", "name": "odd", "python": {"environment": environment}}
    return ModelSpec.model_validate(fields)


def release(
    engine: StepResult[Engine], reference: StepResult[OnnxModel], artifacts: Path, **fields: Any
) -> StepResult[Package]:
    """The package step of a spec with such an environment; fields are those of `look`."""
    package = look(engine, reference, artifacts, dry=False, **fields)
    assert package is not None
    return package


def look(
    engine: StepResult[Engine],
    reference: StepResult[OnnxModel],
    artifacts: Path,
    *,
    environment: str,
    pipeline: StepResult[Pipeline] | None = None,
    listener: Listener | None = None,
    force: bool = False,
    dry: bool = True,
) -> StepResult[Package] | None:
    """The same for one that only looks; None where it finds nothing."""
    stages = StageRunner("odd", artifacts, listener=listener or Listener(), force=force, dry=dry)
    try:
        model = made_model(engine=engine, onnx=reference, pipeline=pipeline)
        by_part = environments_of(spec_of(environment), model, {}, IMAGE)
        return build_package(stages, "odd", IMAGE, TritonOptions(), model, environments=by_part)
    finally:
        stages.close()
