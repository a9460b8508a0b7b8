"""trtexec's command lines, held against the tables of what its parsers of 10 and 11 take."""

from __future__ import annotations

import itertools
import shlex
import subprocess
from typing import Any

import pytest

from plansmith.compilers.trt.trtexec.command import build_command, shell_line
from plansmith.errors import EngineError
from plansmith.records.engine import BuildSpec, OptimizationProfile
from plansmith.records.model import InputRange, Tensor

from ....support.tensorrt.trtexec_options import (
    GONE_BEFORE_10,
    NEW_IN_11,
    NO_EFFECT_IN_11,
    OPTIONS,
    REMOVED_IN_11,
    WEAKLY_TYPED,
    Read,
    Refused,
    read,
)

MAJORS = (10, 11)
IDS = Tensor(name="input_ids", dtype="int64", dims=("batch", "sequence"))
MASK = Tensor(name="mask:0", dtype="bool", dims=("batch", "sequence"))
SCALE = Tensor(name="scale", dtype="float32", dims=())
IMAGE = Tensor(name="pixels", dtype="float16", dims=(1, 3, 224, 224))
SCORES = Tensor(name="scores", dtype="float32", dims=("batch", 3))
INPUTS, OUTPUTS = (IDS, MASK, SCALE, IMAGE), (SCORES,)
MODEL = {"--onnx": "/a/model.onnx", "--saveEngine": "/b/model.plan", "--exportLayerInfo": "/b/layers.json"}


def span(smallest: tuple[int, ...], usual: tuple[int, ...], largest: tuple[int, ...]) -> InputRange:
    return InputRange(min=smallest, opt=usual, max=largest)


def profile(name: str = "default", *, batch: int = 8) -> OptimizationProfile:
    tokens = span((1, 8), (batch, 64), (4 * batch, 256))
    return OptimizationProfile(name=name, shapes={"input_ids": tokens, "mask:0": tokens})


ONE, TWO = (profile(),), (profile("latency", batch=1), profile("throughput", batch=32))
CHOICES: dict[str, tuple[Any, ...]] = {
    "profiles": (ONE, TWO),
    "memory_pools": (
        {},
        {"workspace": 4 * 2**30},
        {"workspace": 4096 * 2**20 + 3 * 2**10, "tactic_shared_memory": 48 * 2**10},
        {"workspace": 12345},
    ),
    "optimization_level": (0, 3, 5),
    "tf32": (True, False),
    "sparsity": (False, True),
    "version_compatible": (False, True),
    "exclude_lean_runtime": (False, True),
    "hardware_compatibility": ("none", "ampere_plus", "same_compute_capability"),
    "strip_weights": (False, True),
    "refit": (False, True),
    "max_aux_streams": (None, 0, 4),
    "tiling": ("none", "fast", "moderate", "full"),
    "verbosity": ("detailed", "layer_names_only", "none"),
    "formats": ({}, {"pixels": "hwc8"}, {"pixels": "chw32", "scores": "chw"}),
    "plugins": ((), ("/p/one.so", "/p/two.so")),
    "error_on_timing_cache_miss": (False, True),
}


def pairwise() -> list[BuildSpec]:
    """Every value of every field together with every value of every other, the rest as it is by itself."""
    default = {name: values[0] for name, values in CHOICES.items()}
    chosen = []
    for (left, values), (right, others) in itertools.combinations(CHOICES.items(), 2):
        chosen += [default | {left: a, right: b} for a, b in itertools.product(values, others)]
    unique = {repr(fields): fields for fields in chosen}
    return [BuildSpec(**fields) for fields in unique.values()]


def command(spec: BuildSpec, major: int, **changes: Any) -> list[str]:
    defaults: dict[str, Any] = {"inputs": INPUTS, "outputs": OUTPUTS, "timing_cache": "/c/timings", "gpu_index": None}
    return build_command(
        spec,
        graph=MODEL["--onnx"],
        plan=MODEL["--saveEngine"],
        layers=MODEL["--exportLayerInfo"],
        program="trtexec",
        major=major,
        **(defaults | changes),
    )


def flags_of(spec: BuildSpec, major: int) -> set[str]:
    """The flags without a value that a spec needs, from its own words."""
    named = {
        "--noTF32": not spec.tf32,
        "--versionCompatible": spec.version_compatible,
        "--excludeLeanRuntime": spec.exclude_lean_runtime,
        "--stripWeights": spec.strip_weights,
        "--refit": spec.refit,
        "--errorOnTimingCacheMiss": spec.error_on_timing_cache_miss,
        "--stronglyTyped": major == 10,
        "--skipInference": True,
    }
    return {flag for flag, is_wanted in named.items() if is_wanted}


def values_of(command_line: Read) -> dict[str, object]:
    """What is read for the options with a value, as the spec has it."""
    settings = {name: values[0] for name, values in command_line.values.items() if name != "--staticPlugins"}
    hardware = {"ampere+": "ampere_plus", "sameComputeCapability": "same_compute_capability"}
    pools = {"workspace": "workspace", "tacticSharedMem": "tactic_shared_memory"}
    sizes = settings.get("--memPoolSize", {})
    assert isinstance(sizes, dict)
    return {
        "memory_pools": {pools[name]: size for name, size in sizes.items()},
        "optimization_level": settings["--builderOptimizationLevel"],
        "sparsity": settings.get("--sparsity") == "enable",
        "hardware_compatibility": hardware.get(str(settings.get("--hardwareCompatibilityLevel")), "none"),
        "max_aux_streams": settings.get("--maxAuxStreams"),
        "tiling": ("none", "fast", "moderate", "full")[int(str(settings.get("--tilingOptimizationLevel", 0)))],
        "verbosity": settings["--profilingVerbosity"],
        "plugins": tuple(command_line.values.get("--staticPlugins", ())),
    }


@pytest.mark.parametrize("major", MAJORS)
def test_setting_pairs_parse_as_meant(major: int) -> None:
    """Every pair of settings is a command line that trtexec reads as it was meant."""
    specs = pairwise()
    assert len(specs) > 300
    for spec in specs:
        command_line = read(command(spec, major), major)
        assert command_line.flags == flags_of(spec, major)
        meant = values_of(command_line)
        assert meant == {name: getattr(spec, name) for name in meant}
        assert {name: command_line.value(name) for name in MODEL} == MODEL
        assert command_line.value("--timingCacheFile") == "/c/timings"
        assert len(command_line.profiles) == len(spec.profiles)


@pytest.mark.parametrize("major", MAJORS)
def test_command_asks_for_no_precision(major: int) -> None:
    """No command line asks for a precision."""
    forbidden = set(REMOVED_IN_11) | set(GONE_BEFORE_10) | (set(NO_EFFECT_IN_11) if major == 11 else set())
    for spec in pairwise():
        named = {part.partition("=")[0] for part in command(spec, major)}
        assert not named & forbidden


@pytest.mark.parametrize("option", [*REMOVED_IN_11, *GONE_BEFORE_10])
def test_table_11_refuses_removed_options(option: str) -> None:
    """The table of 11 refuses what is gone."""
    with pytest.raises(Refused, match="Unknown option"):
        read(["trtexec", "--onnx=m", f"{option}=1"], 11)


@pytest.mark.parametrize("option", [*NEW_IN_11, *GONE_BEFORE_10])
def test_table_10_refuses_absent_options(option: str) -> None:
    """The table of 10 refuses what is not there yet or no longer there."""
    with pytest.raises(Refused, match="Unknown option"):
        read(["trtexec", "--onnx=m", f"{option}=1"], 10)


@pytest.mark.parametrize("option", WEAKLY_TYPED)
def test_table_10_refuses_typed_precision(option: str) -> None:
    """The table of 10 refuses a precision for a strongly typed network."""
    with pytest.raises(Refused, match="strongly typed"):
        read(["trtexec", "--onnx=m", "--stronglyTyped", option], 10)


@pytest.mark.parametrize(
    "part",
    [
        "--memPoolSize=workspace:4096MiB",
        "--memPoolSize=workspace:all",
        "--memPoolSize=scratch:4096M",
        "--builderOptimizationLevel=high",
        "--hardwareCompatibilityLevel=ampere_plus",
        "--sparsity=true",
        "--tilingOptimizationLevel=full",
        "--minShapes=a,b:1x2",
        "--minShapes=x:4294967296",
        "--minShapes='x:1x2",
        "--inputIOFormats=chw,int8:chw",
    ],
)
@pytest.mark.parametrize("major", MAJORS)
def test_tables_know_value_traps(part: str, major: int) -> None:
    """The tables know the traps of values."""
    with pytest.raises(Refused):
        read(["trtexec", "--onnx=m", part], major)


@pytest.mark.parametrize(
    ("limit", "said"), [(4 * 2**30, "4096M"), (2**20 + 2**10, "1025K"), (1000, "1000B"), (5 * 2**20, "5M")]
)
def test_memory_limit_has_fitting_unit(limit: int, said: str) -> None:
    """A limit of memory is said in a unit that holds it."""
    spec = BuildSpec(profiles=ONE, memory_pools={"workspace": limit})
    assert f"--memPoolSize=workspace:{said}" in command(spec, 11)
    assert read(command(spec, 11), 11).value("--memPoolSize") == {"workspace": limit}


@pytest.mark.parametrize("major", MAJORS)
def test_profiles_numbered_with_three_shapes(major: int) -> None:
    """Several profiles are numbered and each is followed by its three shapes."""
    parts = command(BuildSpec(profiles=TWO), major)
    begin = parts.index("--profile=0")
    names = [part.partition("=")[0] for part in parts[begin : begin + 8]]
    assert names == ["--profile", "--minShapes", "--optShapes", "--maxShapes"] * 2
    profile_shapes = read(parts, major).profiles
    for number, profile in enumerate(TWO):
        for option, which in (("--minShapes", "min"), ("--optShapes", "opt"), ("--maxShapes", "max")):
            shapes = profile_shapes[number][option]
            assert shapes["input_ids"] == getattr(profile.shapes["input_ids"], which)
            assert set(shapes) == {tensor.name for tensor in INPUTS}


def test_one_profile_has_no_number() -> None:
    parts = command(BuildSpec(profiles=ONE), 11)
    assert not [part for part in parts if part.startswith("--profile=")]
    assert len(read(parts, 11).profiles) == 1


def test_fixed_graph_gets_no_profile() -> None:
    """A graph of fixed shapes gets no profile."""
    parts = command(BuildSpec(profiles=()), 10, inputs=(IMAGE,))
    assert not [part for part in parts if "Shapes" in part or "--profile=" in part]


def test_odd_inputs_read_verbatim() -> None:
    """Names with colons, scalars and fixed inputs are read as they are."""
    parts = command(BuildSpec(profiles=ONE), 10)
    assert "--optShapes=input_ids:8x64,'mask:0':8x64,scale:scalar,pixels:1x3x224x224" in parts
    shapes = read(parts, 10).profiles[0]["--optShapes"]
    assert shapes == {"input_ids": (8, 64), "mask:0": (8, 64), "scale": (), "pixels": (1, 3, 224, 224)}


def test_shape_input_gets_its_contents() -> None:
    """An input that holds a shape gets its contents."""
    size = Tensor(name="size", dtype="int64", dims=(2,))
    contents = span((-1, 64), (224, 224), (512, 512))
    spec = BuildSpec(
        profiles=(
            OptimizationProfile(
                name="p", shapes={"size": span((2,), (2,), (2,))} | ONE[0].shapes, values={"size": contents}
            ),
        )
    )
    profile = read(command(spec, 11, inputs=(*INPUTS, size)), 11).profiles[0]
    assert [profile[option]["size"] for option in ("--minShapes", "--optShapes", "--maxShapes")] == [
        contents.min,
        contents.opt,
        contents.max,
    ]


def test_formats_follow_graph_order() -> None:
    """Formats name the type for 10 only, and every tensor in the graph's order."""
    spec = BuildSpec(profiles=ONE, formats={"pixels": "hwc8"})
    assert "--inputIOFormats=int64:chw,bool:chw,fp32:chw,fp16:hwc8" in command(spec, 10)
    assert "--inputIOFormats=chw,chw,chw,hwc8" in command(spec, 11)
    assert not [part for part in command(spec, 10) if part.startswith("--outputIOFormats")]


def test_gpu_and_cache_named_where_present() -> None:
    """A GPU and a timing cache are named only where there are any."""
    bare = command(BuildSpec(profiles=ONE), 11, timing_cache="")
    assert not [part for part in bare if "--device" in part or "timingCache" in part.lower()]
    assert "--device=1" in command(BuildSpec(profiles=ONE), 11, gpu_index=1)


IMPOSSIBLE: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "an editable timing cache": ({"editable_timing_cache": True}, {}, "--builder api"),
    "a miss without a cache": ({"error_on_timing_cache_miss": True}, {"timing_cache": ""}, "timing_cache"),
    "a comma in a name": ({}, {"inputs": (*INPUTS, Tensor(name="a,b", dtype="int8", dims=(1,)))}, "--builder api"),
    "a pattern for a name": ({}, {"inputs": (*INPUTS, Tensor(name="a*", dtype="int8", dims=(1,)))}, "--builder api"),
    "a number of 33 bits": (
        {},
        {"inputs": (*INPUTS, Tensor(name="big", dtype="int8", dims=(2**31,)))},
        "--builder api",
    ),
    "an input without a range": (
        {},
        {"inputs": (*INPUTS, Tensor(name="more", dtype="int8", dims=("n",)))},
        "tensorrt: profiles",
    ),
    "a range of no input": ({}, {"inputs": (IDS, SCALE)}, "name one of its inputs"),
    "a type that 10 has no name for": (
        {"formats": {"scores": "chw"}},
        {"outputs": (Tensor(name="scores", dtype="float64", dims=(1,)),)},
        "--builder api",
    ),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_unsupported_settings_refused(case: str) -> None:
    """What trtexec cannot do is refused with the way out."""
    fields, changes, way_out = IMPOSSIBLE[case]
    with pytest.raises(EngineError) as refused:
        command(BuildSpec(**({"profiles": ONE} | fields)), 10, **changes)
    assert way_out in refused.value.remedy


@pytest.mark.parametrize("major", [8, 9, 12])
def test_other_versions_not_guessed(major: int) -> None:
    """Other versions are not guessed at."""
    with pytest.raises(EngineError, match="10 and 11") as refused:
        command(BuildSpec(profiles=ONE), major)
    assert "--builder api" in refused.value.remedy


def test_shell_line_keeps_arguments() -> None:
    """A line for a shell gives a shell the same arguments."""
    parts = command(BuildSpec(profiles=TWO, plugins=("/a folder/it's.so",)), 10)
    line = shell_line(parts)
    assert line.count(" \\\n  ") == len(parts) - 1
    assert shlex.split(line.replace("\\\n", "")) == parts
    printed = subprocess.run(
        ["/bin/sh", "-c", f"printf '%s\\n' {line}"], capture_output=True, text=True, check=True
    ).stdout
    assert printed.splitlines() == parts


def test_tables_differ_with_versions() -> None:
    """The tables differ where the versions do."""
    assert set(OPTIONS[10]) - set(OPTIONS[11]) == set(REMOVED_IN_11)
    assert set(OPTIONS[11]) - set(OPTIONS[10]) == set(NEW_IN_11)
