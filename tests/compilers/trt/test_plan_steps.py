"""A compile for TensorRT on machines that are made up: what is built where, what the cache gives, what is refused.

What builds a plan is replaced here, and nothing is said of what it would build: a header, and layers that tell their
precision, are written as these tests need them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from plansmith.compilers.trt.evaluation.requests import EvaluatePlanRequest
from plansmith.compilers.trt.layers import nodes_in_fp32
from plansmith.config.spec import ModelSpec
from plansmith.errors import EngineError, EnvironmentFault, PlansmithError
from plansmith.records.engine import BuildMachine, BuildRequest, Engine, Gpu, Plan, PlanLayer, PlanTensor
from plansmith.records.validation import ValidationReport
from plansmith.steps.artifacts import CompiledModel
from plansmith.steps.compilation import Compilation
from plansmith.steps.model_steps import MODEL_STEPS, require_complete
from plansmith.steps.runner import StepResult
from plansmith.steps.tensorrt import compile as plan_steps
from plansmith.steps.tensorrt import validate
from plansmith.steps.tensorrt.validate import combined_report
from plansmith.steps.walk import walk
from plansmith.system.gpu_catalog import find_kind

from ...support.cli.in_process import InlineWorker

TENSORRT = "10.16.0.72"
L4, A10G = (
    find_kind(name).model_copy(update={"uuid": f"GPU-{name}", "index": 0, "driver": "595.45.04"})
    for name in ("L4", "A10G")
)


class Builder:
    """Stands for the process that builds: keeps the requests, and writes what a build leaves behind."""

    def __init__(self) -> None:
        self.requests: list[BuildRequest] = []
        self.version = TENSORRT
        self.dtype = "float32"

    def __call__(self, request: BuildRequest, **_: Any) -> Plan:
        self.requests.append(request)
        out = Path(request.out)
        version = bytes(int(number) for number in self.version.split("."))
        plan = struct.pack("<II16x", 0x74727466, 0) + version
        (out / "model.plan").write_bytes(plan)
        layer = PlanLayer(
            name="product", kind="gemm", inputs=(), dtypes=(self.dtype,), computes=True, operands=self.dtype
        )
        (out / "layers.json").write_text(json.dumps([layer.model_dump(mode="json")]))
        for name in ("build.log", "reproduce.sh", "request.json"):
            (out / name).write_text(request.gpu.name)
        return Plan(
            file="model.plan",
            bytes=len(plan),
            gpu=request.gpu,
            tensorrt=self.version,
            builder="api",
            seconds=0,
            peak_host_bytes=None,
            peak_device_bytes=None,
            timing_cache="none",
            tensors=(
                PlanTensor(name="x", is_input=True, dtype="float32", dims=(-1, 4)),
                PlanTensor(name="y", is_input=False, dtype="float32", dims=(-1, 2)),
            ),
            profile_bytes=(),
            layers_file="layers.json",
            log="build.log",
            reproduce="reproduce.sh",
        )


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Builder:
    """What builds plans on the machines of a test."""
    stub = Builder()
    monkeypatch.setattr(plan_steps, "build_plan", stub)
    monkeypatch.setattr("plansmith.steps.runner.Worker", InlineWorker)
    return stub


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes this machine one with the given GPUs and a TensorRT; none of both without any."""

    def become(*devices: Gpu, version: str = TENSORRT) -> None:
        monkeypatch.setattr("plansmith.system.gpus.visible_gpus", lambda *_: devices)
        build_machine = BuildMachine(
            gpus=devices, api=version if devices else "", api_problem="" if devices else "there is none"
        )
        monkeypatch.setattr(plan_steps, "probe", lambda *_, **__: build_machine)

    return become


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """A product of matrices with a batch that moves."""
    weights = helper.make_tensor("w", TensorProto.FLOAT, (4, 2), [float(n) for n in range(8)])
    onnx_graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("batch", 4))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ("batch", 2))],
        [weights],
    )
    path = tmp_path / "product.onnx"
    onnx.save(helper.make_model(onnx_graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


def run_of(
    graph: Path, artifacts: str = "artifacts", shared_cache: str | None = None, /, **options: Any
) -> Compilation:
    """A compile of a graph, with artifacts beside it; a shared cache lies there, too."""
    spec = ModelSpec.model_validate(
        {
            "source": f"onnx:{graph}",
            "engine": "tensorrt",
            "target": "triton-26.03",
            "artifacts": str(graph.parent / artifacts),
            "shared_cache": shared_cache,
            "check_served": False,
            "tensorrt": options,
        }
    )
    return Compilation(spec, relative_to=graph.parent)


_COMPILE = 1 + [step.name for step in MODEL_STEPS].index("compile")


def compiled(graph: Path, *places: str, **options: Any) -> StepResult[Engine]:
    """The engine of a graph, with a plan for every kind of GPU."""
    with run_of(graph, *places, **options) as compilation:
        model = compilation.context.model
        compiled_model = walk(MODEL_STEPS[:_COMPILE], model, CompiledModel()).state
        require_complete(model, compiled_model)
        return compiled_model.engine


def test_plan_found_without_gpu(graph: Path, builder: Builder, machine: Callable[..., None]) -> None:
    """A plan is built once and found by a machine that has no GPU."""
    machine(L4)
    first = compiled(graph)
    assert not first.cached
    assert list(first.record.plans) == ["8.9"]
    assert first.record.components["model"].file == "model.plan"
    machine()
    again = compiled(graph, gpus=["L4"])
    assert again.cached
    assert (again.digest, len(builder.requests)) == (first.digest, 1)


def test_shared_cache_searched_before_refusal(graph: Path, builder: Builder, machine: Callable[..., None]) -> None:
    """A machine without a GPU looks in a shared cache before it is told that it has none."""
    machine(L4)
    first = compiled(graph, "a", "shared")
    machine()
    with run_of(graph, "b", gpus=["L4"]) as alone:
        assert alone.preview()["compile"] == "would run"
    with run_of(graph, "b", "shared", gpus=["L4"]) as steps:
        assert steps.preview()["compile"] == "cached"
        steps._require_buildable()
    again = compiled(graph, "b", "shared", gpus=["L4"])
    assert again.cached
    assert (again.digest, len(builder.requests)) == (first.digest, 1)


def test_missing_plan_refused_without_gpu(graph: Path, builder: Builder, machine: Callable[..., None]) -> None:
    """What a machine without a GPU does not find is refused."""
    machine(L4)
    compiled(graph)
    machine()
    with pytest.raises(EnvironmentFault, match="no NVIDIA GPU"):
        compiled(graph, gpus=["L4"], optimization_level=5)
    with pytest.raises(EnvironmentFault, match="no NVIDIA GPU") as unnamed:
        compiled(graph)
    assert "--gpu L4" in unnamed.value.remedy
    assert len(builder.requests) == 1


@pytest.mark.parametrize(
    "told",
    [
        {"tf32": False},
        {"memory_pools": {"workspace": "1G"}},
        {"optimization_level": 1},
        {"hardware_compatibility": "ampere_plus"},
        {"builder": "api"},
        {"profiles": {"few": {"x": "1x4:2x4:4x4"}}},
    ],
    ids=lambda told: next(iter(told)),
)
def test_deciding_facts_make_other_plan(
    told: dict[str, Any], graph: Path, builder: Builder, machine: Callable[..., None]
) -> None:
    """What decides a plan makes another one."""
    machine(L4)
    compiled(graph)
    compiled(graph, **told)
    assert len(builder.requests) == 2
    assert builder.requests[0].spec != builder.requests[1].spec or "builder" in told


def test_two_gpu_release_needs_both_machines(graph: Path, builder: Builder, machine: Callable[..., None]) -> None:
    """A release for two kinds of GPU needs both machines and no build twice."""
    machine(L4)
    with pytest.raises(EngineError, match=r"no plan for NVIDIA A10G \(8\.6\) yet") as missing:
        compiled(graph, gpus=["L4", "A10G"])
    assert "--artifacts" in missing.value.remedy
    machine(A10G)
    both = compiled(graph, gpus=["L4", "A10G"])
    files = {cc: plan.file for cc, plan in both.record.plans.items()}
    assert files == {"8.9": "model_sm89.plan", "8.6": "model_sm86.plan"}
    assert (both.folder / both.record.plans["8.6"].log).read_text() == A10G.name
    assert [request.gpu.name for request in builder.requests] == [L4.name, A10G.name]


@pytest.mark.parametrize("version", ["10.16.1.11", "10.15.1.29", "11.1.0.106"])
def test_other_tensorrt_builds_nothing(
    version: str, graph: Path, builder: Builder, machine: Callable[..., None]
) -> None:
    """A machine with another TensorRT builds nothing."""
    machine(L4, version=version)
    with pytest.raises(PlansmithError, match=version) as refused:
        compiled(graph)
    assert "26.03-py3" in refused.value.remedy
    assert not builder.requests


def test_foreign_plan_header_refused(graph: Path, builder: Builder, machine: Callable[..., None]) -> None:
    """A plan whose header tells of another TensorRT is refused."""
    machine(L4)
    builder.version = "10.16.1.11"
    with pytest.raises(EngineError, match=r"built by TensorRT 10\.16\.1\.11"):
        compiled(graph)


def test_plan_uses_named_profiles(graph: Path, builder: Builder, machine: Callable[..., None]) -> None:
    """A plan is built of the profiles that were named."""
    machine(L4)
    compiled(graph, profiles={"one": {"x": "1x4"}, "many": {"x": "2x4:8x4:16x4"}}, deadline_minutes=7)
    (request,) = builder.requests
    assert [profile.name for profile in request.spec.profiles] == ["one", "many"]
    assert str(request.spec.profiles[1].shapes["x"]) == "2x4:8x4:16x4"
    assert request.deadline_seconds == 420
    assert Path(request.graph).is_file()


def test_trtexec_alone_cannot_judge(
    graph: Path, builder: Builder, machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine with trtexec alone is told that nobody would judge its plan."""
    machine(L4)
    alone = BuildMachine(gpus=(L4,), trtexec="/opt/trtexec", trtexec_version="10.16.0", api_problem="no module")
    monkeypatch.setattr(plan_steps, "probe", lambda *_, **__: alone)
    with pytest.raises(EnvironmentFault, match="judged through TensorRT's Python package") as refused:
        run_of(graph).run()
    assert "nvcr.io/nvidia/tensorrt:26.03-py3" in refused.value.remedy
    assert not builder.requests


def test_missing_plugin_refused_at_once(graph: Path, machine: Callable[..., None]) -> None:
    """A plugin that is not there is refused at once."""
    machine(L4)
    with pytest.raises(EngineError, match=r"the plugin library .*mine\.so is not there"):
        run_of(graph, plugins=["mine.so"])


def test_graph_fp32_may_stay_in_plan(tmp_path: Path) -> None:
    """What the graph has in FP32 may stay so in the plan."""
    half = helper.make_tensor_value_info("x", TensorProto.FLOAT16, ("batch", 4))
    onnx_graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["low"], name="in_fp16"),
            helper.make_node("Cast", ["low"], ["high"], name="up", to=TensorProto.FLOAT),
            helper.make_node("MatMul", ["high", "v"], ["y"], name="in_fp32"),
        ],
        "mixed",
        [half],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ("batch", 4))],
        [
            helper.make_tensor("w", TensorProto.FLOAT16, (4, 4), [1.0] * 16),
            helper.make_tensor("v", TensorProto.FLOAT, (4, 4), [1.0] * 16),
        ],
    )
    path = tmp_path / "mixed.onnx"
    onnx.save(helper.make_model(onnx_graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    assert [node.node for node in nodes_in_fp32(path)] == ["in_fp32"]


def test_plan_judged_once_per_kind(
    graph: Path, builder: Builder, machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each plan is judged on a GPU of its kind, and only once."""
    judged: list[str] = []

    class Judge(InlineWorker):
        def __init__(self, module: str, log: Path, progress: Any, **options: Any) -> None:
            super().__init__(module, log, progress)
            assert options["environment"]["CUDA_VISIBLE_DEVICES"].startswith("GPU-")

        def __enter__(self) -> Judge:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def call(self, name: str, /, **arguments: Any) -> Any:
            assert name == "evaluate_plan"
            plan = EvaluatePlanRequest.model_validate(arguments["request"]).plan
            assert plan.file.is_file()
            assert plan.lowered is not None
            assert plan.lowered.is_file()
            judged.append(plan.capability)
            return report(plan.capability).model_dump(mode="json")

    monkeypatch.setattr(validate, "Worker", Judge)
    both = {"gpus": ["L4", "A10G"]}
    machine(L4)
    with run_of(graph, **both) as steps, pytest.raises(EngineError, match="no plan for NVIDIA A10G"):
        steps.run()
    machine(A10G)
    with run_of(graph, **both) as steps:
        published, manifest = steps.run()
    assert judged == ["8.9", "8.6"]
    assert manifest.validation.ran == ("8.9", "8.6")
    for plan in manifest.engine.plans.values():
        assert all((Path(published.release) / name).is_file() for name in plan.description_files)
    machine()
    with run_of(graph, **both) as steps:
        assert steps.run()[0].unchanged
    assert len(judged) == len(builder.requests) == 2


def test_failed_report_tells_why() -> None:
    """Of several reports, the one that failed tells why."""
    wrong = report("8.6").model_copy(update={"verdict": "failed", "data": "of the second"})
    summary = combined_report([report("8.9"), wrong])
    assert (summary.verdict, summary.data, summary.ran) == ("failed", "of the second", ("8.9", "8.6"))
    assert summary.candidate == "plan 8.9; plan 8.6"


def report(capability: str) -> ValidationReport:
    """A gate's word on one plan; no figure in it."""
    return ValidationReport(
        verdict="passed",
        reference="",
        candidate=f"plan {capability}",
        data="",
        tolerances={},
        comparisons=(),
        ran=(capability,),
    )


def test_unfinishable_compile_refused_early(graph: Path, builder: Builder, machine: Callable[..., None]) -> None:
    """A compile that no machine here can end is refused before it begins."""
    machine(L4, version="11.1.0.106")
    with run_of(graph) as steps:
        with pytest.raises(PlansmithError, match=r"11\.1\.0\.106") as refused:
            steps.run()
        assert (refused.value.step, steps.steps) == ("compile", [])
    assert not builder.requests
