"""The process of a build: a stand-in takes trtexec's place, which shows how it is called, watched and ended.

It computes nothing: of the plan only what the parser itself makes of its words is asserted.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plansmith.compilers import onnx_files
from plansmith.compilers.trt.trtexec.building import (
    build,
    describe_cache,
    first_warnings,
    gpu_environment,
    request_command,
)
from plansmith.compilers.trt.trtexec.output import TrtexecOutput
from plansmith.errors import EngineError, EnvironmentFault
from plansmith.records.engine import BuildRequest, BuildSpec, Gpu, OptimizationProfile, PlanLayer
from plansmith.records.model import InputRange

from ....support.tensorrt import trtexec_logs as logs
from ....support.tensorrt.processes import is_gone
from ....support.tensorrt.trtexec_options import read

BANNER = "&&&& %s TensorRT.trtexec [TensorRT v101601] [b11] # trtexec"
UUID = "GPU-4c431858-85e6-3a03-4064-fa6741957aa5"
GPU = Gpu(name="L4", compute_capability="8.9", memory_bytes=24 * 2**30, uuid=UUID, index=1)
ELEVEN = '{"Layers": ["one"], "Bindings": ["tokens", "scores"]}'

# It answers the question for its version as trtexec does, and then what the test says; `option X` is a value of its own
# command line.
_STAND_IN = """\
#!/bin/sh
printf '{banner}\\n'
test $# -eq 0 && exit 0
option() {{ for part in "$@"; do case "$part" in "$wanted"=*) printf '%s' "${{part#*=}}";; esac; done; }}
value() {{ wanted=$1; shift; option "$@"; }}
plan=$(value --saveEngine "$@"); layers=$(value --exportLayerInfo "$@")
for part in "$@"; do printf '%s\\n' "$part"; done > "$(dirname "$plan")/arguments"
env > "$(dirname "$plan")/environment"
{script}
"""
_TYPED = "echo '[01/24/2025-05:21:16] [I] Precision: Strongly Typed'"
_WRITE = f"printf plan > \"$plan\"; printf '%s' '{ELEVEN}' > \"$layers\""
_PASS = f"printf '{BANNER % 'PASSED'}\\n'"
_WELL = f"{_TYPED}\n{_WRITE}\n{_PASS}"


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    import onnx

    tokens = onnx.helper.make_tensor_value_info("tokens", onnx.TensorProto.INT64, ["batch", 8])
    scores = onnx.helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, ["batch", 8])
    cast = onnx.helper.make_node("Cast", ["tokens"], ["scores"], to=onnx.TensorProto.FLOAT)
    onnx_graph = onnx.helper.make_graph([cast], "g", [tokens], [scores])
    path = tmp_path / "model.onnx"
    onnx.save(onnx.helper.make_model(onnx_graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), path)
    return path


def request(graph: Path, script: str, *, banner: str = BANNER % "RUNNING", **changes: object) -> BuildRequest:
    """A request that a stand-in answers with this script."""
    program, out = graph.parent / "trtexec", graph.parent / "out"
    program.write_text(_STAND_IN.format(banner=banner, script=script))
    program.chmod(0o755)
    out.mkdir(exist_ok=True)
    tokens = InputRange(min=(1, 8), opt=(8, 8), max=(32, 8))
    spec = BuildSpec(profiles=(OptimizationProfile(name="default", shapes={"tokens": tokens}),))
    build_request = BuildRequest(
        graph=str(graph),
        out=str(out),
        spec=spec,
        gpu=GPU,
        trtexec=str(program),
        timing_cache=str(graph.parent / "timings"),
        deadline_seconds=60,
    )
    return build_request.model_copy(update=changes)


def nothing(_: str) -> None:
    """Progress that nobody looks at."""


def test_command_passed_word_for_word(graph: Path) -> None:
    """A build gives the command to the program word for word."""
    build_request = request(graph, _WELL)
    build(build_request, nothing)
    arguments = Path(build_request.out, "arguments").read_text().splitlines()
    command = request_command(build_request, onnx_files.describe(graph), "10.16.1")
    assert [build_request.trtexec, *arguments] == command
    command_line = read(command, 10)
    assert command_line.value("--timingCacheFile") == build_request.timing_cache
    assert "--stronglyTyped" in command_line.flags


def test_user_names_bypass_shell(graph: Path) -> None:
    """No shell reads a name of the user's."""
    odd = graph.rename(graph.with_name("a $(touch owned) b;.onnx"))
    build_request = request(odd, _WELL)
    build(build_request, nothing)
    assert f"--onnx={odd}" in Path(build_request.out, "arguments").read_text().splitlines()
    assert not list(graph.parent.rglob("owned"))


def test_cuda_sees_requested_gpu(graph: Path) -> None:
    """CUDA sees the one GPU that was asked for."""
    build_request = request(graph, _WELL)
    build(build_request, nothing)
    assert f"CUDA_VISIBLE_DEVICES={UUID}" in Path(build_request.out, "environment").read_text().splitlines()
    assert "--device" not in Path(build_request.out, "arguments").read_text()


def test_gpu_counted_like_driver() -> None:
    """A GPU without a UUID is counted as the driver counts."""
    unnamed = GPU.model_copy(update={"uuid": ""})
    assert gpu_environment(unnamed) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_gpu_named_by_number(graph: Path) -> None:
    """A GPU without a UUID is named by its number."""
    build_request = request(graph, _WELL, gpu=GPU.model_copy(update={"uuid": ""}))
    assert "--device=1" in request_command(build_request, onnx_files.describe(graph), "11.1.0")


def test_disabled_timing_cache_unread(graph: Path) -> None:
    """A timing cache that is switched off is not read."""
    build_request = request(graph, _WELL)
    without = build_request.model_copy(update={"spec": build_request.spec.model_copy(update={"timing_cache": False})})
    assert build(without, nothing).timing_cache == "none"
    assert "timingCache" not in Path(build_request.out, "arguments").read_text()


def test_answer_names_files_and_version(graph: Path) -> None:
    """The answer names the files the version and the tensors."""
    build_request = request(graph, _WELL)
    plan = build(build_request, nothing)
    assert (plan.file, plan.log, plan.reproduce) == ("model.plan", "build.log", "reproduce.sh")
    assert (plan.builder, plan.tensorrt, plan.gpu) == ("trtexec", "10.16.1.11", GPU)
    assert plan.bytes == Path(build_request.out, plan.file).stat().st_size
    assert [(t.name, t.is_input, t.dtype, t.dims, t.format) for t in plan.tensors] == [
        ("tokens", True, "int64", (-1, 8), "LINEAR"),
        ("scores", False, "float32", (-1, 8), "LINEAR"),
    ]
    layers = json.loads(Path(build_request.out, plan.layers_file).read_text())
    assert [PlanLayer.model_validate(layer) for layer in layers]
    assert sorted(p.name for p in Path(build_request.out).iterdir()) == [
        "arguments",
        "environment",
        "layers.json",
        "model.plan",
    ]


def test_program_output_logged_live(graph: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What the program writes goes to the log as it comes."""
    build(request(graph, f"echo out; echo complaint >&2\n{_WELL}"), nothing)
    printed = capfd.readouterr().out.splitlines()
    assert printed[:3] == [BANNER % "RUNNING", "out", "complaint"]
    assert printed[-1] == BANNER % "PASSED"


def test_told_words_stand_in_log(graph: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What is told stands in the log already."""
    outputs: list[str] = []
    script = f"echo '[01/24/2025-05:21:16] [I] Start parsing network model.'\n{_WELL}"
    build(request(graph, script), lambda _: outputs.append(capfd.readouterr().out))
    assert "Start parsing network model." in outputs[0]


def test_progress_follows_the_log(graph: Path) -> None:
    messages: list[str] = []
    steps = [
        "Loading standard plugins",
        "Start parsing network model.",
        "Finished parsing network model. Parse time: 1",
    ]
    steps += ["[TRT] Detected 2 inputs and 1 output network tensors.", "Engine built in 3 sec."]
    script = "\n".join(f"echo '[01/24/2025-05:21:16] [I] {step}'" for step in steps)
    build(request(graph, f"{script}\n{_WELL}"), messages.append)
    assert messages == [
        "starting TensorRT",
        "reading the graph",
        "looking for the fastest kernels",
        "putting the plan together",
        "writing the plan",
    ]


def failing(log: str) -> str:
    return f"cat <<'END'\n{log}\nEND\nprintf plan > \"$plan\"\nexit 1"


@pytest.mark.parametrize(
    ("log", "kind", "said"),
    [
        (logs.INVALID_NODE, EngineError, "/Tile"),
        (logs.OUT_OF_DEVICE_MEMORY, EnvironmentFault, "memory"),
        (logs.UNKNOWN, EngineError, "validateCaskKLibSize"),
    ],
)
def test_failed_build_leaves_no_plan(log: str, kind: type[Exception], said: str, graph: Path) -> None:
    """A build that failed says why and leaves no plan."""
    build_request = request(graph, failing(log))
    with pytest.raises(kind, match=said) as refused:
        build(build_request, nothing)
    assert "building a plan of model.onnx" in str(refused.value)
    assert not Path(build_request.out, "model.plan").exists()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (f"{_TYPED}\n{_PASS}", "left no plan"),
        (f"{_TYPED}\n: > \"$plan\"\nprintf '%s' '{ELEVEN}' > \"$layers\"\n{_PASS}", "left no plan"),
        (f"{_TYPED}\n{_WRITE}", "left no plan"),
        (f"{_WRITE}\n{_PASS}", "strongly typed"),
        (f'{_TYPED}\nprintf plan > "$plan"\n{_PASS}', "nothing of its layers"),
        (f"echo '[01/24/2025-05:21:16] [I] Selected Device UUID: GPU-1'\n{_WELL}", "took the GPU GPU-1"),
    ],
    ids=["no plan", "an empty plan", "no last line", "not strongly typed", "no layers", "another GPU"],
)
def test_incomplete_success_is_failure(script: str, said: str, graph: Path) -> None:
    """An end that looks fine is no success without all that belongs to it."""
    build_request = request(graph, script)
    with pytest.raises(EngineError, match=said) as refused:
        build(build_request, nothing)
    assert refused.value.remedy
    assert not Path(build_request.out, "model.plan").exists()


def test_named_failure_beats_exit_code(graph: Path) -> None:
    """A failure that the program names is one whatever its exit code."""
    build_request = request(graph, f"{_TYPED}\n{_WRITE}\ncat <<'END'\n{logs.UNKNOWN}\nEND")
    with pytest.raises(EngineError, match="validateCaskKLibSize"):
        build(build_request, nothing)
    assert not Path(build_request.out, "model.plan").exists()


def test_overlooked_failure_read_from_log(graph: Path) -> None:
    """A failure that the program overlooked is told from its log."""
    script = f"cat <<'END'\n{logs.NO_IMPLEMENTATION}\nEND\n: > \"$plan\"\n{_PASS}"
    with pytest.raises(EngineError, match="no kernel for"):
        build(request(graph, script), nothing)


def test_eleven_skips_strong_typing_flag(graph: Path) -> None:
    """TensorRT 11 need not say that it is strongly typed."""
    banner = "&&&& %s TensorRT.trtexec [TensorRT v110100] [b106]"
    well = f"{_WRITE}\nprintf '{banner % 'PASSED'}\\n'"
    build_request = request(graph, well, banner=banner % "RUNNING")
    assert build(build_request, nothing).tensorrt == "11.1.0.106"
    assert "--stronglyTyped" not in Path(build_request.out, "arguments").read_text()


def test_silent_plan_has_no_layers(graph: Path) -> None:
    """A plan that keeps its layers to itself has none."""
    build_request = request(graph, f'{_TYPED}\nprintf plan > "$plan"\n{_PASS}')
    quiet = build_request.model_copy(update={"spec": build_request.spec.model_copy(update={"verbosity": "none"})})
    assert build(quiet, nothing).tensors
    assert json.loads(Path(build_request.out, "layers.json").read_text()) == []


def test_crash_named_by_signal(graph: Path) -> None:
    """A crash is named by its signal."""
    with pytest.raises(EngineError, match="crashed with SIGSEGV; its last words were: on it") as refused:
        build(request(graph, "echo on it; kill -SEGV $$"), nothing)
    assert "reproduce.sh" in refused.value.remedy


def test_kill_told_with_kernel_facts(graph: Path) -> None:
    """A kill is told with what the kernel knows."""
    with pytest.raises(EnvironmentFault, match="trtexec was killed"):
        build(request(graph, "kill -KILL $$"), nothing)


@pytest.mark.slow
def test_slow_build_names_its_limit(graph: Path) -> None:
    """A build that takes too long is ended and says which limit."""
    build_request = request(graph, 'echo $$ > "$plan.pid"; exec sleep 600', deadline_seconds=2)
    with pytest.raises(EngineError, match="did not end within") as refused:
        build(build_request, nothing)
    assert "tensorrt: deadline_minutes" in refused.value.remedy
    assert is_gone(int(Path(build_request.out, "model.plan.pid").read_text()))


@pytest.mark.parametrize(
    ("said", "file", "words"),
    [
        (TrtexecOutput(), "", "none"),
        (TrtexecOutput(cache_written_bytes=9), "/c", "begun anew, written back (9 bytes)"),
        (TrtexecOutput(cache_read_bytes=8, cache_written_bytes=9), "/c", "read (8 bytes), written back (9 bytes)"),
        (
            TrtexecOutput(cache_read_bytes=8, warnings=("Detected invalid timing cache, setup a local cache instead",)),
            "/c",
            "refused by TensorRT; begun anew",
        ),
    ],
)
def test_timing_cache_told_in_words(said: TrtexecOutput, file: str, words: str) -> None:
    """The timing cache is told in words."""
    assert describe_cache(said, file) == words


def test_first_warnings_are_kept() -> None:
    """Of many warnings, the first are kept."""
    many = [f"w{number}" for number in range(25)]
    assert first_warnings(many) == (*many[:20], "5 more warnings stand in the log")
    assert first_warnings(many[:20]) == tuple(many[:20])
