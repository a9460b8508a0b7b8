"""The process of a build: a stand-in takes trtexec's place, which shows how it is called, watched and ended.

It computes nothing: of the plan only what the parser itself makes of its words is asserted.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plansmith.compilers import onnx_files
from plansmith.compilers.trtexec.building import (
    build,
    describe_cache,
    first_warnings,
    gpu_environment,
    request_command,
)
from plansmith.compilers.trtexec.output import TrtexecOutput
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
    made = onnx.helper.make_graph([cast], "g", [tokens], [scores])
    path = tmp_path / "model.onnx"
    onnx.save(onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", 17)]), path)
    return path


def request(graph: Path, script: str, *, banner: str = BANNER % "RUNNING", **changes: object) -> BuildRequest:
    """A request that a stand-in answers with this script."""
    program, out = graph.parent / "trtexec", graph.parent / "out"
    program.write_text(_STAND_IN.format(banner=banner, script=script))
    program.chmod(0o755)
    out.mkdir(exist_ok=True)
    tokens = InputRange(min=(1, 8), opt=(8, 8), max=(32, 8))
    spec = BuildSpec(profiles=(OptimizationProfile(name="default", shapes={"tokens": tokens}),))
    made = BuildRequest(
        graph=str(graph),
        out=str(out),
        spec=spec,
        gpu=GPU,
        trtexec=str(program),
        timing_cache=str(graph.parent / "timings"),
        deadline_seconds=60,
    )
    return made.model_copy(update=changes)


def nothing(_: str) -> None:
    """Progress that nobody looks at."""


def test_a_build_gives_the_command_to_the_program_word_for_word(graph: Path) -> None:
    asked = request(graph, _WELL)
    build(asked, nothing)
    arguments = Path(asked.out, "arguments").read_text().splitlines()
    command = request_command(asked, onnx_files.describe(graph), "10.16.1")
    assert [asked.trtexec, *arguments] == command
    found = read(command, 10)
    assert found.value("--timingCacheFile") == asked.timing_cache
    assert "--stronglyTyped" in found.flags


def test_no_shell_reads_a_name_of_the_user_s(graph: Path) -> None:
    odd = graph.rename(graph.with_name("a $(touch owned) b;.onnx"))
    asked = request(odd, _WELL)
    build(asked, nothing)
    assert f"--onnx={odd}" in Path(asked.out, "arguments").read_text().splitlines()
    assert not list(graph.parent.rglob("owned"))


def test_cuda_sees_the_one_gpu_that_was_asked_for(graph: Path) -> None:
    asked = request(graph, _WELL)
    build(asked, nothing)
    assert f"CUDA_VISIBLE_DEVICES={UUID}" in Path(asked.out, "environment").read_text().splitlines()
    assert "--device" not in Path(asked.out, "arguments").read_text()


def test_a_gpu_without_a_uuid_is_counted_as_the_driver_counts() -> None:
    unnamed = GPU.model_copy(update={"uuid": ""})
    assert gpu_environment(unnamed) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_a_gpu_without_a_uuid_is_named_by_its_number(graph: Path) -> None:
    asked = request(graph, _WELL, gpu=GPU.model_copy(update={"uuid": ""}))
    assert "--device=1" in request_command(asked, onnx_files.describe(graph), "11.1.0")


def test_a_timing_cache_that_is_switched_off_is_not_read(graph: Path) -> None:
    asked = request(graph, _WELL)
    without = asked.model_copy(update={"spec": asked.spec.model_copy(update={"timing_cache": False})})
    assert build(without, nothing).timing_cache == "none"
    assert "timingCache" not in Path(asked.out, "arguments").read_text()


def test_the_answer_names_the_files_the_version_and_the_tensors(graph: Path) -> None:
    asked = request(graph, _WELL)
    plan = build(asked, nothing)
    assert (plan.file, plan.log, plan.reproduce) == ("model.plan", "build.log", "reproduce.sh")
    assert (plan.builder, plan.tensorrt, plan.gpu) == ("trtexec", "10.16.1.11", GPU)
    assert plan.bytes == Path(asked.out, plan.file).stat().st_size
    assert [(t.name, t.is_input, t.dtype, t.dims, t.format) for t in plan.tensors] == [
        ("tokens", True, "int64", (-1, 8), "LINEAR"),
        ("scores", False, "float32", (-1, 8), "LINEAR"),
    ]
    layers = json.loads(Path(asked.out, plan.layers_file).read_text())
    assert [PlanLayer.model_validate(layer) for layer in layers]
    assert sorted(p.name for p in Path(asked.out).iterdir()) == [
        "arguments",
        "environment",
        "layers.json",
        "model.plan",
    ]


def test_what_the_program_writes_goes_to_the_log_as_it_comes(graph: Path, capfd: pytest.CaptureFixture[str]) -> None:
    build(request(graph, f"echo out; echo complaint >&2\n{_WELL}"), nothing)
    printed = capfd.readouterr().out.splitlines()
    assert printed[:3] == [BANNER % "RUNNING", "out", "complaint"]
    assert printed[-1] == BANNER % "PASSED"


def test_what_is_told_stands_in_the_log_already(graph: Path, capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []
    script = f"echo '[01/24/2025-05:21:16] [I] Start parsing network model.'\n{_WELL}"
    build(request(graph, script), lambda _: seen.append(capfd.readouterr().out))
    assert "Start parsing network model." in seen[0]


def test_progress_follows_the_log(graph: Path) -> None:
    said: list[str] = []
    steps = [
        "Loading standard plugins",
        "Start parsing network model.",
        "Finished parsing network model. Parse time: 1",
    ]
    steps += ["[TRT] Detected 2 inputs and 1 output network tensors.", "Engine built in 3 sec."]
    script = "\n".join(f"echo '[01/24/2025-05:21:16] [I] {step}'" for step in steps)
    build(request(graph, f"{script}\n{_WELL}"), said.append)
    assert said == [
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
def test_a_build_that_failed_says_why_and_leaves_no_plan(
    log: str, kind: type[Exception], said: str, graph: Path
) -> None:
    asked = request(graph, failing(log))
    with pytest.raises(kind, match=said) as refused:
        build(asked, nothing)
    assert "building a plan of model.onnx" in str(refused.value)
    assert not Path(asked.out, "model.plan").exists()


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
def test_an_end_that_looks_well_is_no_success_without_all_that_belongs_to_it(
    script: str, said: str, graph: Path
) -> None:
    asked = request(graph, script)
    with pytest.raises(EngineError, match=said) as refused:
        build(asked, nothing)
    assert refused.value.remedy
    assert not Path(asked.out, "model.plan").exists()


def test_a_failure_that_the_program_names_is_one_whatever_its_exit_code(graph: Path) -> None:
    asked = request(graph, f"{_TYPED}\n{_WRITE}\ncat <<'END'\n{logs.UNKNOWN}\nEND")
    with pytest.raises(EngineError, match="validateCaskKLibSize"):
        build(asked, nothing)
    assert not Path(asked.out, "model.plan").exists()


def test_a_failure_that_the_program_overlooked_is_told_from_its_log(graph: Path) -> None:
    script = f"cat <<'END'\n{logs.NO_IMPLEMENTATION}\nEND\n: > \"$plan\"\n{_PASS}"
    with pytest.raises(EngineError, match="no kernel for"):
        build(request(graph, script), nothing)


def test_eleven_need_not_say_that_it_is_strongly_typed(graph: Path) -> None:
    banner = "&&&& %s TensorRT.trtexec [TensorRT v110100] [b106]"
    well = f"{_WRITE}\nprintf '{banner % 'PASSED'}\\n'"
    asked = request(graph, well, banner=banner % "RUNNING")
    assert build(asked, nothing).tensorrt == "11.1.0.106"
    assert "--stronglyTyped" not in Path(asked.out, "arguments").read_text()


def test_a_plan_that_keeps_its_layers_to_itself_has_none(graph: Path) -> None:
    asked = request(graph, f'{_TYPED}\nprintf plan > "$plan"\n{_PASS}')
    quiet = asked.model_copy(update={"spec": asked.spec.model_copy(update={"verbosity": "none"})})
    assert build(quiet, nothing).tensors
    assert json.loads(Path(asked.out, "layers.json").read_text()) == []


def test_a_crash_is_named_by_its_signal(graph: Path) -> None:
    with pytest.raises(EngineError, match="crashed with SIGSEGV; its last words were: on it") as refused:
        build(request(graph, "echo on it; kill -SEGV $$"), nothing)
    assert "reproduce.sh" in refused.value.remedy


def test_a_kill_is_told_with_what_the_kernel_knows(graph: Path) -> None:
    with pytest.raises(EnvironmentFault, match="trtexec was killed"):
        build(request(graph, "kill -KILL $$"), nothing)


@pytest.mark.slow
def test_a_build_that_takes_too_long_is_ended_and_says_which_limit(graph: Path) -> None:
    asked = request(graph, 'echo $$ > "$plan.pid"; exec sleep 600', deadline_seconds=2)
    with pytest.raises(EngineError, match="did not end within") as refused:
        build(asked, nothing)
    assert "tensorrt: deadline_minutes" in refused.value.remedy
    assert is_gone(int(Path(asked.out, "model.plan.pid").read_text()))


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
def test_the_timing_cache_is_told_in_words(said: TrtexecOutput, file: str, words: str) -> None:
    assert describe_cache(said, file) == words


def test_of_many_warnings_the_first_are_kept() -> None:
    many = [f"w{number}" for number in range(25)]
    assert first_warnings(many) == (*many[:20], "5 more warnings stand in the log")
    assert first_warnings(many[:20]) == tuple(many[:20])
