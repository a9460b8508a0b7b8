"""A release brings its environment: it is laid out with it, checked with the Python that it is for, and told of."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plansmith.cli.environments import environment_lines
from plansmith.config import ModelSpec
from plansmith.engines import Engine
from plansmith.environments.packing import PARAMETER
from plansmith.errors import EnvironmentFault
from plansmith.manifest import Package
from plansmith.packaging import lay_out
from plansmith.python_steps import environment_of
from plansmith.reference import StoredCase, store_case
from plansmith.reports import Tolerance
from plansmith.stages import Finished, Listener, StageRunner
from plansmith.targets import load_target
from plansmith.triton.installation import find_installation
from plansmith.triton.model_config import parse_config
from plansmith.triton.served_check import check_served
from plansmith.triton.serving_runtime import ServingRuntime
from plansmith.triton_options import TritonOptions
from plansmith.types import AxisRange, Component, EngineKind, OnnxModel, Precision, ReferenceSet, Tensor

from .tiny import write_wheel

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


@pytest.fixture
def engine(tmp_path: Path) -> Finished[Engine]:
    """A model for the Python backend that needs a package."""
    folder = tmp_path / "engine"
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
    return Finished(record, folder, hashlib.sha256(MODEL.encode()).hexdigest(), cached=False)


@pytest.fixture
def reference(engine: Finished[Engine], tmp_path: Path) -> Finished[OnnxModel]:
    """One case."""
    stored = store_case("opt", {"batch": 2}, CASE.feed, CASE.answer, tmp_path / "reference")
    record = OnnxModel(
        components=engine.record.components,
        axes={"batch": AxisRange(min=1, opt=2, max=4)},
        mask_input=None,
        exporter="none",
        attempts=(),
        precision=Precision.FP32,
        reference=ReferenceSet(runtime="none", data="none", cases=(stored,)),
    )
    return Finished(record, tmp_path, "onnx", cached=False)


def release(
    engine: Finished[Engine], reference: Finished[OnnxModel], tmp_path: Path, *, environment: str, dry: bool = False
) -> Finished[Package]:
    """The package step of a spec that says this of the environment."""
    fields: dict[str, Any] = {"source": "hf:odd", "name": "odd", "python": {"environment": environment}}
    spec = ModelSpec.model_validate(fields)
    stages = StageRunner("odd", tmp_path / "artifacts", listener=Listener(), force=False, dry=dry)
    try:
        wanted = environment_of(spec, engine, IMAGE)
        return lay_out(stages, "odd", IMAGE, TritonOptions(), engine, reference, environment=wanted)
    finally:
        stages.close()


def test_a_release_brings_the_environment_that_its_spec_has_packed(
    engine: Finished[Engine], reference: Finished[OnnxModel], index: Path, tmp_path: Path
) -> None:
    write_wheel(index, "ape")
    packed = release(engine, reference, tmp_path, environment="packed")
    brought = packed.record.environment
    assert brought is not None
    assert (brought.python, [one.name for one in brought.distributions]) == ("3.12", ["ape"])
    assert packed.record.support_files == ("env.tar.gz",)
    assert (packed.folder / "env.tar.gz").stat().st_size == brought.bytes
    config = parse_config((packed.folder / "config.pbtxt").read_text())
    assert config.parameters[PARAMETER].string_value == "$$TRITON_MODEL_DIRECTORY/env.tar.gz"
    (line,) = environment_lines(packed.record)
    assert line.startswith("odd brings its environment for Python 3.12: 1 packages, ")
    assert release(engine, reference, tmp_path, environment="packed", dry=True).cached


def test_a_release_that_leaves_its_environment_to_the_image_brings_none(
    engine: Finished[Engine], reference: Finished[OnnxModel], tmp_path: Path
) -> None:
    left = release(engine, reference, tmp_path, environment="image")
    assert left.record.environment is None
    assert left.record.support_files == ()
    assert PARAMETER not in parse_config((left.folder / "config.pbtxt").read_text()).parameters
    assert list(environment_lines(left.record)) == []


def test_packages_that_no_index_has_end_the_packing_and_leave_no_release(
    engine: Finished[Engine], reference: Finished[OnnxModel], index: Path, tmp_path: Path
) -> None:
    with pytest.raises(EnvironmentFault, match=r"pip could not get ape==1\.0 for Python 3\.12") as missing:
        release(engine, reference, tmp_path, environment="packed")
    assert (missing.value.model, missing.value.step) == ("odd", "package")
    write_wheel(index, "ape")
    assert not release(engine, reference, tmp_path, environment="packed").cached


@pytest.mark.slow
@pytest.mark.xdist_group("environments")
def test_the_served_check_lends_a_release_the_python_of_its_image(
    engine: Finished[Engine], reference: Finished[OnnxModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        installation = find_installation()
    except EnvironmentFault as fault:
        pytest.skip(str(fault))
    beside = [str(folder) for folder in sorted(Path(sys.base_prefix).parent.glob("3.12*/bin"))]
    if not installation.lends_python or not beside:
        pytest.skip("there is no Python 3.12 beside the running one, or no process for it")
    (tmp_path / "links").mkdir()
    write_wheel(tmp_path / "links", "ape", files={"ape.py": "FACTOR = 7\n"}, needs=["numpy==1.26.4"])
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    packed = release(engine, reference, tmp_path, environment="packed")
    runtime = ServingRuntime(installation, None, "none", "cpu")
    asked: dict[str, Any] = {
        "runtime": runtime,
        "mask_input": None,
        "tolerances": {"y": Tolerance(max_relative=1e-6, quantile_relative=1e-6, min_cosine=0.999999)},
        "scratch": tmp_path / "repository",
        "log": tmp_path / "log",
        "progress": lambda _: None,
    }
    with monkeypatch.context() as without:
        without.setenv("PATH", "/nowhere")
        with pytest.raises(EnvironmentFault, match=r"environment is for Python 3\.12, with which it cannot be served"):
            check_served(packed.record, packed.folder, [CASE], **asked)
    monkeypatch.setenv("PATH", ":".join([*beside, os.environ["PATH"]]))
    report = check_served(packed.record, packed.folder, [CASE], **asked)
    assert report.requests == len(report.checks) > 0
    assert not (tmp_path / "repository").exists()
