"""The served check passes what a running Triton answers rightly, and can fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest

from plansmith.data.reference import StoredCase, store_case
from plansmith.errors import EnvironmentFault, ServedCheckError
from plansmith.records.engine import BuildSpec, Engine, OptimizationProfile
from plansmith.records.model import Component, EngineKind, InputRange, OnnxModel, Precision, ReferenceSet, Tensor
from plansmith.records.release import Interface, Package
from plansmith.records.validation import ServedReport, Tolerance, ValidationReport
from plansmith.steps.artifacts import CompiledModel
from plansmith.steps.release.check_served import run_served_check
from plansmith.steps.runner import Listener, StageRunner, StepResult
from plansmith.triton.config.model_config import make_config, text_of
from plansmith.triton.server import served_check
from plansmith.triton.server.installation import Installation
from plansmith.triton.server.runtime import ServingRuntime
from plansmith.triton.server.served_check import check_served

from ...support.made import made_model

if TYPE_CHECKING:
    from ..conftest import Started

pytestmark = pytest.mark.slow

TOLERANCE = Tolerance(max_relative=1e-4, quantile_relative=2e-5, min_cosine=0.99999999)
PACKAGE = Package(
    model="tiny",
    config_file="config.pbtxt",
    model_files=("model.onnx",),
    max_batch_size=8,
    interface=Interface(
        inputs=(
            Tensor(name="a", dtype="float32", dims=("batch", 3)),
            Tensor(name="ids", dtype="int64", dims=("batch", "length")),
        ),
        outputs=(
            Tensor(name="half", dtype="float32", dims=("batch", 3)),
            Tensor(name="twice", dtype="int64", dims=("batch", "length")),
        ),
    ),
)


@pytest.fixture
def folder(tmp_path: Path, graph: Callable[[int | str], onnx.ModelProto]) -> Path:
    """A package: config.pbtxt and model/model.onnx."""
    (tmp_path / "package" / "model").mkdir(parents=True)
    onnx.save(graph("batch"), tmp_path / "package" / "model" / "model.onnx")
    text = text_of(make_config(PACKAGE, EngineKind.ONNXRUNTIME, "cpu"))
    (tmp_path / "package" / "config.pbtxt").write_text(text)
    return tmp_path / "package"


@pytest.fixture
def case() -> StoredCase:
    """Four samples and the right answers."""
    a = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    ids = np.arange(20, dtype=np.int64).reshape(4, 5)
    return StoredCase("opt", {"a": a, "ids": ids}, {"half": a / 2, "twice": ids * 2}, np.arange(4))


@pytest.fixture
def check(folder: Path, installation: Installation, site: Path, tmp_path: Path) -> Callable[[StoredCase], ServedReport]:
    """Run the check on the package with one case."""

    def run(case: StoredCase) -> ServedReport:
        options: dict[str, Any] = {"mask_input": None, "tolerances": {"half": TOLERANCE, "twice": TOLERANCE}}
        return check_served(
            PACKAGE,
            folder,
            [case],
            runtime=ServingRuntime(installation, site, "ONNX Runtime", "cpu"),
            scratch=tmp_path / "repository",
            log=tmp_path / "triton.log",
            progress=lambda _: None,
            **options,
        )

    return run


def test_right_answers_counted_over_protocols(check: Callable[[StoredCase], ServedReport], case: StoredCase) -> None:
    """Right answers are counted over both protocols, whole and sample by sample."""
    report = check(case)
    assert {(c.protocol, c.batch) for c in report.checks} == {("http", 4), ("grpc", 4), ("http", 1), ("grpc", 1)}
    assert report.requests == len(report.checks) == 6
    assert report.backend == "stand-in"
    assert report.completed["instance_group[0].name"] == "tiny_0"


def test_differing_answer_fails_check(check: Callable[[StoredCase], ServedReport], case: StoredCase) -> None:
    """An answer that differs from the reference fails the check."""
    wrong = case.answer["half"].copy()
    wrong[2, 1] *= 1.01
    with pytest.raises(ServedCheckError, match="'half'"):
        check(replace(case, answer={**case.answer, "half": wrong}))


def test_integer_off_by_one_fails_check(check: Callable[[StoredCase], ServedReport], case: StoredCase) -> None:
    """An integer that is off by one fails the check."""
    wrong = case.answer["twice"].copy()
    wrong[3, 4] += 1
    with pytest.raises(ServedCheckError, match="'twice'"):
        check(replace(case, answer={**case.answer, "twice": wrong}))


@pytest.fixture
def finished(folder: Path, case: StoredCase, tmp_path: Path) -> tuple[StepResult[Package], CompiledModel]:
    """What the step is given: the package, a reference of one case, and the tolerances."""
    named = ("half", "twice")
    stored = store_case("opt", {"batch": 4, "length": 5}, case.feed, case.answer, tmp_path / "reference")
    component = Component(
        file="model.onnx",
        external_files=(),
        inputs=PACKAGE.interface.inputs,
        outputs=PACKAGE.interface.outputs,
        opset=17,
        ir_version=9,
    )
    onnx_model = OnnxModel(
        components={"model": component},
        axes={},
        mask_input=None,
        exporter="none",
        attempts=(),
        precision=Precision.FP32,
        reference=ReferenceSet(runtime="none", data="none", cases=(stored,)),
    )
    validation = ValidationReport(
        verdict="passed",
        reference="none",
        candidate="none",
        data="none",
        tolerances=dict.fromkeys(named, TOLERANCE),
        comparisons=(),
    )
    return StepResult(PACKAGE, folder, "package", cached=False), made_model(
        onnx=StepResult(onnx_model, tmp_path, "onnx", cached=False),
        validation=StepResult(validation, tmp_path, "validation", cached=False),
    )


def of_plan(made: CompiledModel, build: BuildSpec) -> CompiledModel:
    """The same, of an engine that was built so."""
    engine = StepResult(Engine.model_construct(build=build), Path(), "engine", cached=False)
    return made.with_result("compile", engine)


def batches(low: int, high: int) -> OptimizationProfile:
    """A profile of these batches."""
    shapes = {
        name: InputRange(min=(low, size), opt=(high, size), max=(high, size)) for name, size in (("a", 3), ("ids", 5))
    }
    return OptimizationProfile(name=f"from {low}", shapes=shapes)


def test_impossible_cases_not_asked(
    finished: tuple[StepResult[Package], CompiledModel],
    installation: Installation,
    site: Path,
    tmp_path: Path,
) -> None:
    """What no profile takes is not asked, and other profiles ask anew."""
    stages = StageRunner("tiny", tmp_path / "artifacts", listener=Listener(), force=False, dry=False)
    runtime = ServingRuntime(installation, site, "ONNX Runtime", "cpu")
    package, engine = finished
    whole = run_served_check(stages, runtime, package, of_plan(engine, BuildSpec(profiles=(batches(2, 4),))))
    assert whole is not None
    assert {check.batch for check in whole.record.checks} == {4}
    single = run_served_check(stages, runtime, package, of_plan(engine, BuildSpec(profiles=(batches(1, 2),))))
    assert single is not None
    assert {check.batch for check in single.record.checks} == {1}
    assert [step.cached for step in stages.records] == [False, False]
    with pytest.raises(ServedCheckError, match="no case of the reference") as refused:
        run_served_check(stages, runtime, package, of_plan(engine, BuildSpec(profiles=(batches(5, 8),))))
    assert "optimization profile" in refused.value.remedy


def test_server_finds_plugins_of_build(
    finished: tuple[StepResult[Package], CompiledModel],
    installation: Installation,
    site: Path,
    started: Started,
    tmp_path: Path,
) -> None:
    """The server looks for plugins where they were when the plan was built."""
    paths: list[str] = []

    class Watching(Listener):
        def progress(self, step: str, text: str) -> None:  # noqa: ARG002 - as the other one
            if text == "asking Triton":
                servers = [child for child in started() if child.name() == "tritonserver"]
                paths.extend(server.environ()["LD_LIBRARY_PATH"] for server in servers)

    stages = StageRunner("tiny", tmp_path / "artifacts", listener=Watching(), force=False, dry=False)
    build = BuildSpec(profiles=(), plugins=("/plugins/liba.so", "/more/libb.so", "/plugins/libc.so"))
    package, engine = finished
    run_served_check(stages, ServingRuntime(installation, site, "ONNX Runtime", "cpu"), package, of_plan(engine, build))
    (path,) = paths
    assert [folder for folder in path.split(":") if folder in {"/plugins", "/more"}] == ["/plugins", "/more"]


def test_refused_request_fails_check(
    check: Callable[[StoredCase], ServedReport], case: StoredCase, folder: Path
) -> None:
    """A request that Triton refuses fails the check."""
    config = folder / "config.pbtxt"
    config.write_text(config.read_text().replace("max_batch_size: 8", "max_batch_size: 2"))
    with pytest.raises(ServedCheckError, match=r"(?s)opt over http: Triton at .* refused .*batch.*<= 2") as refused:
        check(case)
    assert refused.value.log is not None


def test_case_beyond_release_fails_check(check: Callable[[StoredCase], ServedReport], case: StoredCase) -> None:
    """A case that is not what the release says it takes fails the check."""
    narrow = {**case.feed, "a": np.ascontiguousarray(case.feed["a"][:, :2])}
    with pytest.raises(ServedCheckError, match=r"opt over http: input 'a' takes \[batch, 3\] and was given \[4, 2\]"):
        check(replace(case, feed=narrow))


def test_gpu_release_checked_on_cpu(
    check: Callable[[StoredCase], ServedReport], case: StoredCase, folder: Path
) -> None:
    """A release for a GPU is checked on CPU instances and stays as it is."""
    text = text_of(make_config(PACKAGE, EngineKind.ONNXRUNTIME, "gpu"))
    (folder / "config.pbtxt").write_text(text)
    assert check(case).device == "cpu"
    assert "KIND_GPU" in text
    assert (folder / "config.pbtxt").read_text() == text


def test_excess_memory_fails_check(
    check: Callable[[StoredCase], ServedReport], case: StoredCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that takes more memory than is free fails the check with that reason."""
    monkeypatch.setattr(served_check, "usable_memory", lambda: 2 * 2**20)
    with pytest.raises(EnvironmentFault, match=r"it held .* of memory, and may hold 2\.0 MiB") as refused:
        check(case)
    assert "fewer models or instances" in refused.value.remedy


def test_unmeasurable_memory_means_no_limit(
    check: Callable[[StoredCase], ServedReport], case: StoredCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where memory cannot be measured, the check goes without a limit."""
    monkeypatch.setattr(served_check, "is_measurable", lambda: False)
    monkeypatch.setattr(served_check, "usable_memory", lambda: 1)
    assert check(case).requests == 6


_LATE = """
import sys
sys.path.insert(0, {site!r})
import time


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(3)
        return [None for request in requests]
"""


def test_late_answer_fails_check_with_log(
    folder: Path,
    case: StoredCase,
    installation: Installation,
    site: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A release that gives no answer in time fails the check, and the log is named."""
    config = (folder / "config.pbtxt").read_text()
    (folder / "config.pbtxt").write_text(config.replace('"onnxruntime"', '"python"').replace("model.onnx", "model.py"))
    (folder / "model" / "model.py").write_text(_LATE.format(site=str(site)))
    monkeypatch.setattr("plansmith.triton.server.served_check._REQUEST_SECONDS", 1)
    with pytest.raises(ServedCheckError, match=r"opt over http: .* did not answer within 1 s") as raised:
        check_served(
            PACKAGE.model_copy(update={"model_files": ("model.py",)}),
            folder,
            [case],
            runtime=ServingRuntime(installation, site, "Python", "cpu"),
            mask_input=None,
            tolerances={"half": TOLERANCE, "twice": TOLERANCE},
            scratch=tmp_path / "repository",
            log=tmp_path / "triton.log",
            progress=lambda _: None,
        )
    assert not raised.value.transient
    assert "--timeout" not in raised.value.remedy
    assert raised.value.log == tmp_path / "triton.log"


def test_killed_triton_named(
    folder: Path, case: StoredCase, installation: Installation, site: Path, started: Started, tmp_path: Path
) -> None:
    """A Triton that is killed while it is asked is named as such."""

    def kill(text: str) -> None:
        if text == "asking Triton":
            for child in started():
                if child.name() == "tritonserver":
                    child.kill()

    with pytest.raises(EnvironmentFault, match="Triton was killed while it was asked") as raised:
        check_served(
            PACKAGE,
            folder,
            [case],
            runtime=ServingRuntime(installation, site, "ONNX Runtime", "cpu"),
            mask_input=None,
            tolerances={"half": TOLERANCE, "twice": TOLERANCE},
            scratch=tmp_path / "repository",
            log=tmp_path / "triton.log",
            progress=kill,
        )
    assert "--shapes" in raised.value.remedy
    assert raised.value.log == tmp_path / "triton.log"
