"""Builds, against the bindings of one version of TensorRT: test_contract.py runs this.

The fakes check how TensorRT is called; what they answer is made up, and no test says anything about it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorrt

from plansmith.compilers.trt.api.building import build
from plansmith.errors import EngineError, PlansmithError

from ....support.tensorrt.made_up import EVERYTHING, NOTHING, MadeUp, request_for

FLAG = tensorrt.BuilderFlag
NO_KERNEL = "Error Code 10: Internal Error (Could not find any implementation for node {x}.)"


def test_full_build_sets_options_by_name(gpu: MadeUp, tmp_path: Path) -> None:
    """A build with everything asked for sets it by name."""
    cache = tmp_path / "cache"
    messages: list[str] = []
    plan = build(request_for(tmp_path, EVERYTHING, timing_cache=str(cache)), messages.append)
    (network,) = gpu.named("create_network")
    assert network == {"flags": 1 << int(tensorrt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)}
    assert gpu.flags() == {
        FLAG.EDITABLE_TIMING_CACHE,
        FLAG.ERROR_ON_TIMING_CACHE_MISS,
        FLAG.EXCLUDE_LEAN_RUNTIME,
        FLAG.REFIT_IDENTICAL,
        FLAG.SPARSE_WEIGHTS,
        FLAG.STRIP_PLAN,
        FLAG.TF32,
        FLAG.VERSION_COMPATIBLE,
    }
    assert gpu.named("clear_flag") == []
    pools = {record["pool"].name: record["pool_size"] for record in gpu.named("set_memory_pool_limit")}
    assert pools == {"WORKSPACE": 1 << 30, "TACTIC_SHARED_MEMORY": 1 << 16}
    written = {
        call.name: call.arguments["value"]
        for call in gpu.calls
        if call.owner == "IBuilderConfig" and "value" in call.arguments
    }
    assert isinstance(written.pop("progress_monitor"), tensorrt.IProgressMonitor)
    assert written == {
        "builder_optimization_level": 5,
        "hardware_compatibility_level": tensorrt.HardwareCompatibilityLevel.AMPERE_PLUS,
        "max_aux_streams": 2,
        "profiling_verbosity": tensorrt.ProfilingVerbosity.DETAILED,
        "tiling_optimization_level": tensorrt.TilingOptimizationLevel.FULL,
    }
    formats = [call.arguments["value"] for call in gpu.calls if call.name == "allowed_formats"]
    assert formats == [1 << int(tensorrt.TensorFormat.CHW32), 1 << int(tensorrt.TensorFormat.LINEAR)]
    assert messages[0] == "reading the graph"
    assert (plan.file, plan.tensorrt, plan.builder) == ("model.plan", tensorrt.__version__, "api")
    assert plan.timing_cache.startswith("started empty")
    assert {"model.plan", "layers.json", "cache"} <= {path.name for path in tmp_path.iterdir()}
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert type(plan).model_validate_json(plan.model_dump_json()) == plan


def test_tf32_can_be_switched_off(gpu: MadeUp, tmp_path: Path) -> None:
    gpu.tensors[:3] = [gpu.tensors[3]] * 3
    build(request_for(tmp_path, NOTHING.model_copy(update={"tf32": False, "refit": True})), lambda _: None)
    assert gpu.named("clear_flag") == [{"flag": FLAG.TF32}]
    assert gpu.flags() == {FLAG.REFIT}


def test_missing_plugin_refused_early(gpu: MadeUp, tmp_path: Path) -> None:
    """A missing plugin is refused before anything is built."""
    text = tmp_path / "libtext.so"
    text.write_text("no library")
    for library, problem in ((tmp_path / "libnone.so", "is not there"), (text, "cannot be loaded")):
        with pytest.raises(EngineError, match=problem) as raised:
            build(request_for(tmp_path, EVERYTHING.model_copy(update={"plugins": (str(library),)})), lambda _: None)
        assert raised.value.remedy
    assert gpu.named("build_serialized_network") == []


def test_log_has_all_but_verbose_lines(gpu: MadeUp, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Every line but verbose ones goes to the log with time and severity."""
    build(request_for(tmp_path, EVERYTHING), lambda _: None)
    for name in ("INTERNAL_ERROR", "ERROR", "WARNING", "INFO", "VERBOSE"):
        gpu.log(name, f"line of {name}")
    lines = [line.partition(" ")[2] for line in capfd.readouterr().err.splitlines() if "[TRT]" in line]
    assert lines == [
        "[F] [TRT] line of INTERNAL_ERROR",
        "[E] [TRT] line of ERROR",
        "[W] [TRT] line of WARNING",
        "[I] [TRT] line of INFO",
    ]


def test_warnings_in_plan_once(gpu: MadeUp, tmp_path: Path) -> None:
    """Warnings of TensorRT are in the plan, each only once."""

    def warn(_network: object, _config: object) -> Any:
        for number in [*range(30), *range(30)]:
            gpu.log("WARNING", f"warning {number}")
        return gpu.memory(b"plan")

    gpu.say(Builder={"build_serialized_network": warn})
    warnings = build(request_for(tmp_path, EVERYTHING), lambda _: None).warnings
    assert warnings[:2] == ("warning 0", "warning 1")
    assert warnings[-1] == "10 more warnings stand in the log"


def test_measurements_kept_at_deadline(gpu: MadeUp, tmp_path: Path) -> None:
    """What a build measured up to its deadline is kept."""

    def late(_network: object, _config: object) -> Any:
        (monitor,) = (record["value"] for record in gpu.named("progress_monitor"))
        monitor.phase_start("Building engine", None, 3)
        goes_on = monitor.step_complete("Building engine", 0)
        monitor.phase_finish("Building engine")
        return gpu.memory(b"plan") if goes_on else None

    gpu.say(Builder={"build_serialized_network": late})
    request = request_for(tmp_path, EVERYTHING, seconds=0, timing_cache=str(tmp_path / "cache"))
    with pytest.raises(EngineError, match="within 0 minutes") as raised:
        build(request, lambda _: None)
    assert "tensorrt: deadline_minutes" in raised.value.remedy
    assert (tmp_path / "cache").read_bytes() == b"measured"
    assert not (tmp_path / "model.plan").exists()


def test_timing_cache_read_and_written(gpu: MadeUp, tmp_path: Path) -> None:
    """The timing cache is started from and written back."""
    cache = tmp_path / "cache"
    cache.write_bytes(b"earlier")
    plan = build(request_for(tmp_path, EVERYTHING, timing_cache=str(cache)), lambda _: None)
    contents = [record["serialized_timing_cache"] for record in gpu.named("create_timing_cache")]
    assert contents[-1] == b"earlier"
    assert {record["ignore_mismatch"] for record in gpu.named("set_timing_cache")} == {False}
    order = [call.arguments.get("flag") if call.name == "set_flag" else call.name for call in gpu.calls]
    assert "create_timing_cache" in order[order.index(FLAG.EDITABLE_TIMING_CACHE) :]
    assert plan.timing_cache.startswith("started from 7 bytes")
    assert plan.warnings == ()
    assert cache.read_bytes() == b"measured"


def test_disabled_timing_cache_untouched(gpu: MadeUp, tmp_path: Path) -> None:
    """A build that is to use no timing cache reads and writes none."""
    cache = tmp_path / "cache"
    cache.write_bytes(b"earlier")
    spec = EVERYTHING.model_copy(update={"timing_cache": False, "error_on_timing_cache_miss": False})
    plan = build(request_for(tmp_path, spec, timing_cache=str(cache)), lambda _: None)
    assert {"serialized_timing_cache": b"earlier"} not in gpu.named("create_timing_cache")
    assert plan.timing_cache == "not used"
    assert cache.read_bytes() == b"earlier"


class Refusing:
    """TensorRT's two ways to refuse a timing cache with something in it; both complain."""

    def __init__(self, gpu: MadeUp, kind: str) -> None:
        self.gpu = gpu
        answers: dict[str, dict[str, Any]] = {
            "corrupt": {"create_timing_cache": self.create},
            "foreign": {"set_timing_cache": self.set},
        }
        self.answers = answers[kind]

    def create(self, content: bytes) -> Any:
        return self.complain() if content else self.gpu.make("ITimingCache")

    def set(self, _cache: object, *, ignore_mismatch: bool) -> Any:
        del ignore_mismatch
        return self.complain() if self.gpu.named("create_timing_cache")[-1]["serialized_timing_cache"] else True

    def complain(self) -> None:
        self.gpu.log("ERROR", "Version tag does not match.")


@pytest.mark.parametrize("kind", ["corrupt", "foreign"])
def test_corrupt_timing_cache_ignored(gpu: MadeUp, kind: str, tmp_path: Path) -> None:
    """A corrupt or foreign timing cache is ignored with a warning."""
    cache = tmp_path / "cache"
    cache.write_bytes(b"\0nonsense")
    gpu.say(IBuilderConfig=Refusing(gpu, kind).answers)
    plan = build(request_for(tmp_path, EVERYTHING, timing_cache=str(cache)), lambda _: None)
    assert plan.timing_cache.startswith("ignored, as ")
    assert "cache was ignored" in plan.warnings[0]
    assert plan.warnings[1:] == ("Version tag does not match.",)
    assert gpu.named("create_timing_cache")[-1] == {"serialized_timing_cache": b""}


def test_refused_cache_is_no_failure_cause(gpu: MadeUp, tmp_path: Path) -> None:
    """What TensorRT says of a refused timing cache is not why a build fails."""
    cache = tmp_path / "cache"
    cache.write_bytes(b"\0nonsense")

    def fail(_network: object, _config: object) -> None:
        gpu.log("ERROR", NO_KERNEL)

    gpu.say(IBuilderConfig=Refusing(gpu, "foreign").answers, Builder={"build_serialized_network": fail})
    with pytest.raises(PlansmithError, match=r"node \{x\}"):
        build(request_for(tmp_path, EVERYTHING, timing_cache=str(cache)), lambda _: None)
    assert cache.read_bytes() == b"\0nonsense"


def test_host_rights_need_version_compatibility(gpu: MadeUp, tmp_path: Path) -> None:
    """A plan is opened with host rights only if it was built version-compatible."""
    plain = EVERYTHING.model_copy(update={"version_compatible": False, "exclude_lean_runtime": False})
    for spec, expected in ((EVERYTHING, [{"value": True}]), (plain, [])):
        gpu.calls.clear()
        build(request_for(tmp_path, spec), lambda _: None)
        assert gpu.named("engine_host_code_allowed") == expected
