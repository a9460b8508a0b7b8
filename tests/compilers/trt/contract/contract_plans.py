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

from plansmith.compilers.trt.api import combine_timing, layouts, refit
from plansmith.compilers.trt.api import inspect as inspecting
from plansmith.compilers.trt.api import run as running
from plansmith.errors import EngineError, PlansmithError

from ....support.tensorrt import host_cuda
from ....support.tensorrt.made_up import Execution, MadeUp


def test_a_plan_that_tensorrt_refuses_is_an_error(gpu: MadeUp, tmp_path: Path) -> None:
    gpu.say(Runtime={"deserialize_cuda_engine": lambda _content: None})
    (tmp_path / "model.plan").write_bytes(b"ftrt")
    with pytest.raises(PlansmithError, match=r"loading model.plan"):
        inspecting.inspect(tmp_path / "model.plan")


def test_an_inspection_asks_the_plan_for_everything(gpu: MadeUp, tmp_path: Path) -> None:
    (tmp_path / "model.plan").write_bytes(b"ftrt")
    found = inspecting.inspect(tmp_path / "model.plan")
    assert [tensor.name for tensor in found.tensors] == ["ids", "logits"]
    assert gpu.named("get_engine_information") == [{"format": tensorrt.LayerInformationFormat.JSON}]
    assert [one["profile_index"] for one in gpu.named("get_device_memory_size_for_profile_v2")] == [0, 1]


@pytest.mark.parametrize("asked", [True, False])
def test_a_stripped_plan_gets_its_weights_back_and_is_written_with_them(
    gpu: MadeUp, asked: bool, tmp_path: Path
) -> None:
    (tmp_path / "stripped.plan").write_bytes(b"ftrt")
    out = tmp_path / "model.plan"
    refit.refit(
        tmp_path / "stripped.plan",
        tmp_path / "model.onnx",
        out,
        version_compatible=asked,
        exclude_lean_runtime=asked,
        refittable=asked,
    )
    assert gpu.named("refit_from_file") == [{"model": str(tmp_path / "model.onnx")}]
    assert gpu.named("clear_flag") == [{"flag": tensorrt.SerializationFlag.EXCLUDE_WEIGHTS}]
    known = {"EXCLUDE_LEAN_RUNTIME", "INCLUDE_REFIT"} & set(tensorrt.SerializationFlag.__members__)
    assert {one["flag"].name for one in gpu.named("set_flag")} == (known if asked else set())
    names = [call.name for call in gpu.calls]
    assert names.index("refit_from_file") < names.index("refit_cuda_engine") < names.index("serialize_with_config")
    assert out.exists()


def test_a_plan_is_not_written_when_weights_are_refused_or_missing(gpu: MadeUp, tmp_path: Path) -> None:
    plan, out = tmp_path / "stripped.plan", tmp_path / "model.plan"
    plan.write_bytes(b"ftrt")
    errors = {"num_errors": 1, "get_error": lambda _index: gpu.make("ParserError", desc="weights differ")}
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"OnnxParserRefitter": {"refit_from_file": lambda _model: False} | errors}, "weights differ"),
        ({"Refitter": {"get_missing_weights": lambda: ["w1", "w2"]}}, r"lacks w1, w2 \(2 in all\)"),
        ({"Refitter": {"refit_cuda_engine": lambda: False}}, "does not take the weights"),
        ({"ICudaEngine": {"refittable": False}}, "cannot take weights"),
    ]
    for more, words in refusals:
        gpu.say(**more)
        with pytest.raises(EngineError, match=words) as raised:
            refit.refit(plan, tmp_path / "model.onnx", out)
        assert raised.value.remedy
    assert not out.exists()


def opened(folder: Path) -> Path:
    plan = folder / "model.plan"
    plan.write_bytes(b"ftrt")
    return plan


FORMATS = ["LINEAR", "HWC", "CHW2", "CHW4", "CHW16", "CHW32", "HWC8", "HWC16"]


@pytest.mark.parametrize("form", FORMATS)
def test_inputs_and_outputs_go_through_the_format_of_the_plan_and_back(gpu: MadeUp, form: str, tmp_path: Path) -> None:
    feed = {"ids": np.arange(2 * 3 * 2 * 2, dtype=np.float32).reshape(2, 3, 2, 2)}
    execution = Execution(gpu, (2, 3, 2, 2), form)
    gpu.say(**execution.answers())
    with host_cuda.installed() as cuda, running.open_plan(opened(tmp_path)) as runner:
        first = runner.ask(feed, 1)["logits"]
        assert execution.taken == layouts.packed(feed["ids"], form).tobytes()
        runner.ask({"ids": feed["ids"] + 1}, 1)
        np.testing.assert_array_equal(first, feed["ids"])  # the next run writes over what is not copied
    assert [one["profile_index"] for one in gpu.named("set_optimization_profile_async")] == [1]
    assert not cuda.streams
    assert not cuda.allocated


def test_a_shape_that_cannot_lie_in_groups_of_16_is_refused(gpu: MadeUp, tmp_path: Path) -> None:
    execution = Execution(gpu, (2, 3), "LINEAR").answers()
    execution["ICudaEngine"]["get_tensor_format"] = lambda _name, _profile: tensorrt.TensorFormat.CHW16
    gpu.say(**execution)
    with host_cuda.installed(), running.open_plan(opened(tmp_path)) as runner, pytest.raises(EngineError) as raised:
        runner.ask({"ids": np.zeros((2, 3), np.float32)}, 0)
    assert "(2, 3) in the format CHW16" in raised.value.message
    assert raised.value.remedy


def test_another_profile_is_asked_for_by_its_number(gpu: MadeUp, tmp_path: Path) -> None:
    feed = {"ids": np.zeros((2, 3, 2, 2), np.float32)}
    gpu.say(**Execution(gpu, (2, 3, 2, 2), "LINEAR").answers())
    with host_cuda.installed(), running.open_plan(opened(tmp_path)) as runner:
        for profile in (0, 1, 1, 0):
            runner.ask(feed, profile)
        with pytest.raises(EngineError, match="no profile 2") as raised:
            runner.ask(feed, 2)
    assert raised.value.remedy
    assert [one["profile_index"] for one in gpu.named("set_optimization_profile_async")] == [0, 1, 0]


@pytest.mark.parametrize("form", ["LINEAR", "HWC8"])
@pytest.mark.parametrize("wrong", [{"ids": np.zeros((2, 3, 2, 2), np.float64)}, {}, {"x": np.zeros(1, np.float32)}])
def test_inputs_of_another_type_or_name_are_refused_before_they_are_misread(
    gpu: MadeUp, wrong: dict[str, Any], form: str, tmp_path: Path
) -> None:
    gpu.say(**Execution(gpu, (2, 3, 2, 2), form).answers())
    with host_cuda.installed(), running.open_plan(opened(tmp_path)) as runner:
        for run in (runner.ask, runner.runner_for, lambda feed, profile: runner.layer_times(feed, profile, 1)):
            with pytest.raises(EngineError, match=r"takes ids \(float32\), and was given ") as raised:
                run(wrong, 0)
            assert raised.value.remedy
    assert gpu.named("execute_async_v3") == []


def test_a_shape_outside_of_the_profile_is_refused(gpu: MadeUp, tmp_path: Path) -> None:
    answers = Execution(gpu, (1, 3, 2, 2)).answers()
    answers["IExecutionContext"]["set_input_shape"] = lambda _name, _shape: False
    gpu.say(**answers)
    with host_cuda.installed(), running.open_plan(opened(tmp_path)) as runner, pytest.raises(EngineError) as raised:
        runner.ask({"ids": np.zeros((2, 3, 2, 2), np.float32)}, 0)
    assert "failed to set shape" in raised.value.message
    assert "within the profile" in raised.value.remedy


def test_layers_are_timed_by_a_profiler_and_runs_after_the_first_count(gpu: MadeUp, tmp_path: Path) -> None:
    feed = {"ids": np.zeros((2, 3, 2, 2), np.float32)}
    gpu.say(**Execution(gpu, (2, 3, 2, 2), "LINEAR").answers())
    with host_cuda.installed() as cuda, running.open_plan(opened(tmp_path)) as runner:
        assert set(runner.layer_times(feed, 0, repeats=3)) == {"matmul"}
    assert len(gpu.named("execute_async_v3")) == 4
    assert not cuda.allocated
    assert isinstance(gpu.named("profiler")[0]["value"], tensorrt.IProfiler)


def test_a_run_for_speed_copies_nothing_and_waits_for_its_end(gpu: MadeUp, tmp_path: Path) -> None:
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


def test_a_plan_that_fails_says_so(gpu: MadeUp, tmp_path: Path) -> None:
    executing = Execution(gpu, (2, 3, 2, 2), "LINEAR").answers()
    executing["IExecutionContext"]["execute_async_v3"] = lambda _stream: False
    gpu.say(**executing)
    with (
        host_cuda.installed(),
        running.open_plan(opened(tmp_path)) as runner,
        pytest.raises(EngineError, match=r"model.plan does not run: .*execute_async_v3"),
    ):
        runner.ask({"ids": np.zeros((2, 3, 2, 2), np.float32)}, 0)


def test_a_plugin_library_is_in_the_process_before_a_plan_is_opened(gpu: MadeUp, tmp_path: Path) -> None:
    library = tmp_path / "libours.so"
    subprocess.run(["gcc", "-shared", "-x", "c", "-o", str(library), "/dev/null"], check=True)
    there: list[bool] = []

    def look(_content: bytes) -> Any:
        there.append(str(library) in Path("/proc/self/maps").read_text())
        return gpu.make("ICudaEngine")

    gpu.say(Runtime={"deserialize_cuda_engine": look})
    inspecting.inspect(opened(tmp_path), plugins=[str(library)])
    assert there == [True]


def test_timing_caches_are_combined_strictly_and_the_first_counts(gpu: MadeUp, tmp_path: Path) -> None:
    files = [tmp_path / name for name in "abc"]
    for file in files:
        file.write_bytes(file.name.encode())
    assert combine_timing.combine(files, files[0])
    assert [one["serialized_timing_cache"] for one in gpu.named("create_timing_cache")] == [b"a", b"b", b"c"]
    assert {one["ignore_mismatch"] for one in gpu.named("combine") + gpu.named("set_timing_cache")} == {False}
    assert len(gpu.named("combine")) == 2
    assert files[0].read_bytes() == b"measured"


REFUSALS: list[dict[str, dict[str, Any]]] = [
    {"IBuilderConfig": {"create_timing_cache": lambda _content: None}},
    {"IBuilderConfig": {"set_timing_cache": lambda _cache, **_: False}},
    {"ITimingCache": {"combine": lambda _other, **_: False}},
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=["corrupt", "foreign", "of another version"])
def test_timing_caches_that_do_not_go_together_are_left_alone(
    gpu: MadeUp, refusal: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    files = [tmp_path / name for name in "ab"]
    for file in files:
        file.write_bytes(file.name.encode())
    gpu.say(**refusal)
    assert not combine_timing.combine(files, files[0])
    assert [file.read_bytes() for file in files] == [b"a", b"b"]
