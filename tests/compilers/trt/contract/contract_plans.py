"""Plans opened, refitted and run, against the bindings of one version of TensorRT: test_contract.py runs this.

The fakes check how TensorRT is called; what they answer is made up, and no test says anything about it.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorrt

from plansmith.compilers.trt.api import building, run, timing_cache
from plansmith.compilers.trt.api import run as inspecting
from plansmith.compilers.trt.api import run as running
from plansmith.errors import EngineError, PlansmithError

from ....support.tensorrt import host_cuda
from ....support.tensorrt.made_up import Execution, MadeUp


def test_refused_plan_is_error(gpu: MadeUp, tmp_path: Path) -> None:
    """A plan that TensorRT refuses is an error."""
    gpu.say(Runtime={"deserialize_cuda_engine": lambda _content: None})
    (tmp_path / "model.plan").write_bytes(b"ftrt")
    with pytest.raises(PlansmithError, match=r"loading model.plan"):
        inspecting.inspect(tmp_path / "model.plan")


def test_inspection_asks_for_everything(gpu: MadeUp, tmp_path: Path) -> None:
    """An inspection asks the plan for everything."""
    (tmp_path / "model.plan").write_bytes(b"ftrt")
    inspection = inspecting.inspect(tmp_path / "model.plan")
    assert [tensor.name for tensor in inspection.tensors] == ["ids", "logits"]
    assert gpu.named("get_engine_information") == [{"format": tensorrt.LayerInformationFormat.JSON}]
    assert [record["profile_index"] for record in gpu.named("get_device_memory_size_for_profile_v2")] == [0, 1]


@pytest.mark.parametrize("asked", [True, False])
def test_stripped_plan_gets_weights_back(gpu: MadeUp, asked: bool, tmp_path: Path) -> None:
    """A stripped plan gets its weights back and is written with them."""
    (tmp_path / "stripped.plan").write_bytes(b"ftrt")
    out = tmp_path / "model.plan"
    building.refit(
        tmp_path / "stripped.plan",
        tmp_path / "model.onnx",
        out,
        version_compatible=asked,
        exclude_lean_runtime=asked,
        refittable=asked,
    )
    assert gpu.named("refit_from_file") == [{"model": str(tmp_path / "model.onnx")}]
    assert gpu.named("clear_flag") == [{"flag": tensorrt.SerializationFlag.EXCLUDE_WEIGHTS}]
    flags = {"EXCLUDE_LEAN_RUNTIME", "INCLUDE_REFIT"} & set(tensorrt.SerializationFlag.__members__)
    assert {record["flag"].name for record in gpu.named("set_flag")} == (flags if asked else set())
    names = [call.name for call in gpu.calls]
    assert names.index("refit_from_file") < names.index("refit_cuda_engine") < names.index("serialize_with_config")
    assert out.exists()


def test_plan_unwritten_without_weights(gpu: MadeUp, tmp_path: Path) -> None:
    """A plan is not written when weights are refused or missing."""
    plan, out = tmp_path / "stripped.plan", tmp_path / "model.plan"
    plan.write_bytes(b"ftrt")
    errors = {"num_errors": 1, "get_error": lambda _index: gpu.make("ParserError", desc="weights differ")}
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"OnnxParserRefitter": {"refit_from_file": lambda _model: False} | errors}, "weights differ"),
        ({"Refitter": {"get_missing_weights": lambda: ["w1", "w2"]}}, r"lacks w1, w2 \(2 in all\)"),
        ({"Refitter": {"refit_cuda_engine": lambda: False}}, "does not take the weights"),
        ({"ICudaEngine": {"refittable": False}}, "cannot take weights"),
    ]
    for more, pattern in refusals:
        gpu.say(**more)
        with pytest.raises(EngineError, match=pattern) as raised:
            building.refit(plan, tmp_path / "model.onnx", out)
        assert raised.value.remedy
    assert not out.exists()


def opened(folder: Path) -> Path:
    plan = folder / "model.plan"
    plan.write_bytes(b"ftrt")
    return plan


FORMATS = ["LINEAR", "HWC", "CHW2", "CHW4", "CHW16", "CHW32", "HWC8", "HWC16"]


@pytest.mark.parametrize("form", FORMATS)
def test_tensors_pass_through_plan_format(gpu: MadeUp, form: str, tmp_path: Path) -> None:
    """Inputs and outputs go through the format of the plan and back."""
    feed = {"ids": np.arange(2 * 3 * 2 * 2, dtype=np.float32).reshape(2, 3, 2, 2)}
    execution = Execution(gpu, (2, 3, 2, 2), form)
    gpu.say(**execution.answers())
    with host_cuda.installed() as cuda, running.open_plan(opened(tmp_path)) as runner:
        first = runner.ask(feed, 1)["logits"]
        assert execution.data == run.packed(feed["ids"], form).tobytes()
        runner.ask({"ids": feed["ids"] + 1}, 1)
        np.testing.assert_array_equal(first, feed["ids"])  # the next run writes over what is not copied
    assert [record["profile_index"] for record in gpu.named("set_optimization_profile_async")] == [1]
    assert not cuda.streams
    assert not cuda.allocated


def test_ungroupable_shape_refused(gpu: MadeUp, tmp_path: Path) -> None:
    """A shape that cannot lie in groups of 16 is refused."""
    execution = Execution(gpu, (2, 3), "LINEAR").answers()
    execution["ICudaEngine"]["get_tensor_format"] = lambda _name, _profile: tensorrt.TensorFormat.CHW16
    gpu.say(**execution)
    with host_cuda.installed(), running.open_plan(opened(tmp_path)) as runner, pytest.raises(EngineError) as raised:
        runner.ask({"ids": np.zeros((2, 3), np.float32)}, 0)
    assert "(2, 3) in the format CHW16" in raised.value.message
    assert raised.value.remedy


def test_profile_selected_by_number(gpu: MadeUp, tmp_path: Path) -> None:
    """Another profile is asked for by its number."""
    feed = {"ids": np.zeros((2, 3, 2, 2), np.float32)}
    gpu.say(**Execution(gpu, (2, 3, 2, 2), "LINEAR").answers())
    with host_cuda.installed(), running.open_plan(opened(tmp_path)) as runner:
        for profile in (0, 1, 1, 0):
            runner.ask(feed, profile)
        with pytest.raises(EngineError, match="no profile 2") as raised:
            runner.ask(feed, 2)
    assert raised.value.remedy
    assert [record["profile_index"] for record in gpu.named("set_optimization_profile_async")] == [0, 1, 0]


@pytest.mark.parametrize("form", ["LINEAR", "HWC8"])
@pytest.mark.parametrize("wrong", [{"ids": np.zeros((2, 3, 2, 2), np.float64)}, {}, {"x": np.zeros(1, np.float32)}])
def test_unfitting_inputs_refused(gpu: MadeUp, wrong: dict[str, Any], form: str, tmp_path: Path) -> None:
    """Inputs of another type or name are refused before they are misread."""
    gpu.say(**Execution(gpu, (2, 3, 2, 2), form).answers())
    with host_cuda.installed(), running.open_plan(opened(tmp_path)) as runner:
        for run in (runner.ask, runner.runner_for, lambda feed, profile: runner.layer_times(feed, profile, 1)):
            with pytest.raises(EngineError, match=r"takes ids \(float32\), and was given ") as raised:
                run(wrong, 0)
            assert raised.value.remedy
    assert gpu.named("execute_async_v3") == []


def test_shape_outside_profile_refused(gpu: MadeUp, tmp_path: Path) -> None:
    """A shape outside the profile is refused."""
    answers = Execution(gpu, (1, 3, 2, 2)).answers()
    answers["IExecutionContext"]["set_input_shape"] = lambda _name, _shape: False
    gpu.say(**answers)
    with host_cuda.installed(), running.open_plan(opened(tmp_path)) as runner, pytest.raises(EngineError) as raised:
        runner.ask({"ids": np.zeros((2, 3, 2, 2), np.float32)}, 0)
    assert "failed to set shape" in raised.value.message
    assert "within the profile" in raised.value.remedy


def test_profiler_times_layers(gpu: MadeUp, tmp_path: Path) -> None:
    """Layers are timed by a profiler, and runs after the first count."""
    feed = {"ids": np.zeros((2, 3, 2, 2), np.float32)}
    gpu.say(**Execution(gpu, (2, 3, 2, 2), "LINEAR").answers())
    with host_cuda.installed() as cuda, running.open_plan(opened(tmp_path)) as runner:
        assert set(runner.layer_times(feed, 0, repeats=3)) == {"matmul"}
    assert len(gpu.named("execute_async_v3")) == 4
    assert not cuda.allocated
    assert isinstance(gpu.named("profiler")[0]["value"], tensorrt.IProfiler)


def test_speed_run_copies_nothing(gpu: MadeUp, tmp_path: Path) -> None:
    """A run for speed copies nothing and waits for its end."""
    feed = {"ids": np.zeros((2, 3, 2, 2), np.float32)}
    gpu.say(**Execution(gpu, (2, 3, 2, 2), "LINEAR").answers())
    with host_cuda.installed() as cuda, running.open_plan(opened(tmp_path)) as runner:
        run = runner.runner_for(feed, 0)
        waited, calls = cuda.waits, len(gpu.calls)
        cuda.memcpy = None  # type: ignore[assignment,method-assign]
        run()
        assert cuda.waits == waited + 1
        assert [call.name for call in gpu.calls[calls:]] == ["execute_async_v3"]
    assert not cuda.streams
    assert not cuda.allocated


def test_failing_plan_says_so(gpu: MadeUp, tmp_path: Path) -> None:
    """A plan that fails says so."""
    executing = Execution(gpu, (2, 3, 2, 2), "LINEAR").answers()
    executing["IExecutionContext"]["execute_async_v3"] = lambda _stream: False
    gpu.say(**executing)
    with (
        host_cuda.installed(),
        running.open_plan(opened(tmp_path)) as runner,
        pytest.raises(EngineError, match=r"model.plan does not run: .*execute_async_v3"),
    ):
        runner.ask({"ids": np.zeros((2, 3, 2, 2), np.float32)}, 0)


def test_plugin_library_loaded_first(gpu: MadeUp, tmp_path: Path) -> None:
    """A plugin library is in the process before a plan is opened."""
    library = tmp_path / "libours.so"
    subprocess.run(["gcc", "-shared", "-x", "c", "-o", str(library), "/dev/null"], check=True)
    observations: list[bool] = []

    def look(_content: bytes) -> Any:
        observations.append(str(library) in Path("/proc/self/maps").read_text())
        return gpu.make("ICudaEngine")

    gpu.say(Runtime={"deserialize_cuda_engine": look})
    inspecting.inspect(opened(tmp_path), plugins=[str(library)])
    assert observations == [True]


def test_timing_caches_combined_strictly(gpu: MadeUp, tmp_path: Path) -> None:
    """Timing caches are combined strictly and the first counts."""
    files = [tmp_path / name for name in "abc"]
    for file in files:
        file.write_bytes(file.name.encode())
    assert timing_cache.combine(files, files[0])
    assert [record["serialized_timing_cache"] for record in gpu.named("create_timing_cache")] == [b"a", b"b", b"c"]
    assert {record["ignore_mismatch"] for record in gpu.named("combine") + gpu.named("set_timing_cache")} == {False}
    assert len(gpu.named("combine")) == 2
    assert files[0].read_bytes() == b"measured"


REFUSALS: list[dict[str, dict[str, Any]]] = [
    {"IBuilderConfig": {"create_timing_cache": lambda _content: None}},
    {"IBuilderConfig": {"set_timing_cache": lambda _cache, **_: False}},
    {"ITimingCache": {"combine": lambda _other, **_: False}},
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=["corrupt", "foreign", "of another version"])
def test_incompatible_timing_caches_left_alone(gpu: MadeUp, refusal: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    """Timing caches that do not go together are left alone."""
    files = [tmp_path / name for name in "ab"]
    for file in files:
        file.write_bytes(file.name.encode())
    gpu.say(**refusal)
    assert not timing_cache.combine(files, files[0])
    assert [file.read_bytes() for file in files] == [b"a", b"b"]
