"""Which plans a target can have, who builds them here, and whether one that was built is for it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal

import pytest

from plansmith.compilers.trt.plan_header import PlanHeader
from plansmith.compilers.trt.rules import (
    builders_of,
    choose_builder,
    describe_containers,
    require_header,
    require_target,
)
from plansmith.compilers.trt.versions import is_same, is_supported, loads_in
from plansmith.config.engine_options import TensorRTOptions
from plansmith.config.target_names import runtime_names
from plansmith.config.targets import Target, load_target
from plansmith.errors import EngineError, EnvironmentFault
from plansmith.records.engine import BuildFlags, BuildMachine, Gpu
from plansmith.records.model import Precision
from plansmith.system.gpu_catalog import find_kind

TRITON = load_target("triton-26.03")  # TensorRT 10.16.0.72, CUDA 13.2
SAGEMAKER = load_target("sagemaker-26.05")  # says TensorRT 10.16 alone
NEWEST = load_target("triton-26.08")  # TensorRT 11.2.1.2
L4, T4, A10G, A100, H100 = (find_kind(name) for name in ("L4", "T4", "A10G", "A100-SXM4-40GB", "H100-SXM"))


def options(**values: Any) -> TensorRTOptions:
    return TensorRTOptions.model_validate(values)


def machine(
    *kinds: Gpu, api: str = "10.16.0.72", problem: str = "", trtexec: str = "", driver: str = "595.45.04"
) -> BuildMachine:
    """A machine with these GPUs, the Python API of a version, and trtexec of another where one is given."""
    gpus = [kind.model_copy(update={"uuid": f"GPU-{n}", "index": n, "driver": driver}) for n, kind in enumerate(kinds)]
    return BuildMachine(
        gpus=tuple(gpus), api=api, api_problem=problem, trtexec=trtexec and "/opt/trtexec", trtexec_version=trtexec
    )


def refused(
    target: Target,
    settings: TensorRTOptions,
    kinds: Sequence[Gpu] = (L4,),
    precision: Precision | Literal["auto"] = Precision.FP16,
) -> EngineError:
    with pytest.raises(EngineError) as refusal:
        require_target(target, settings, precision, kinds)
    assert refusal.value.remedy
    return refusal.value


def test_plan_capable_targets_listed() -> None:
    """Of the shipped targets, those with GPUs and a known TensorRT from 10.12 on can have plans."""
    names = set()
    for name in runtime_names():
        target = load_target(name)
        with suppress(EngineError):
            require_target(target, options(), Precision.FP16, [L4])
            names.add(name)
    assert names == {
        *("sagemaker-25.09", "sagemaker-26.05"),
        *(f"triton-25.{month:02}" for month in range(8, 13)),
        *(f"triton-26.{month:02}" for month in (2, 3, 4, 5, 7, 8, 9, 10)),
    }


def test_cpu_instances_take_no_plan() -> None:
    """CPU instances are no place for a plan, and the target with GPUs is named."""
    assert "has no GPU instances" in refused(load_target("triton-26.03-cpu"), options()).message
    assert "--target triton-26.03" in refused(load_target("triton-26.03-cpu"), options()).remedy
    both = refused(load_target("local-cpu"), options())
    assert both.message.startswith("2 problems")
    assert "nothing says which TensorRT local-cpu has" in both.message


def test_unknown_tensorrt_looked_up() -> None:
    """An unknown TensorRT is to be looked up in the image."""
    refusal = refused(load_target("triton-26.06"), options())
    assert refusal.message == "nothing says which TensorRT triton-26.06 has"
    assert "nvcr.io/nvidia/tritonserver:26.06-py3 (dpkg -l | grep nvinfer)" in refusal.remedy
    assert "a copy of `plansmith targets triton-26.06 --yaml`" in refusal.remedy
    own = load_target("triton-26.06").model_copy(update={"name": "/x/ours.yaml"})
    assert refused(own, options()).remedy.endswith("into /x/ours.yaml")


@pytest.mark.parametrize("version", ["10.9.0.34", "10.11.0.33", "9.3", "10.17.0", "12.0.0.1"])
def test_unsupported_tensorrt_refused(version: str) -> None:
    """A TensorRT that plansmith does not build for is refused."""
    assert f"has TensorRT {version}" in refused(TRITON.model_copy(update={"tensorrt": version}), options()).message


@pytest.mark.parametrize("version", ["10", "11"])
def test_major_number_insufficient(version: str) -> None:
    """A major number alone is too little."""
    refusal = refused(TRITON.model_copy(update={"tensorrt": version}), options())
    assert f"tells only TensorRT {version}" in refusal.message
    assert "at least two numbers" in refusal.remedy


def test_sagemaker_lacks_tensorrt_11() -> None:
    """SageMaker has no TensorRT 11 yet."""
    refusal = refused(SAGEMAKER.model_copy(update={"tensorrt": "11.1.0.106"}), options())
    assert "no container of SageMaker has TensorRT 11" in refusal.message
    assert "--target sagemaker-26.05" in refusal.remedy


def test_problems_told_at_once() -> None:
    """Every problem is told at once."""
    settings = options(
        memory_pools={"workspace": "64G", "tactic_shared_memory": "1G"},
        hardware_compatibility="ampere_plus",
        formats={"x": "chw16", "y": "chw32", "a": "dla_hwc4"},
    )
    old = find_kind("V100=7.0:16G")
    refusal = refused(TRITON, settings, [T4, A10G, find_kind("A10"), old], Precision.BF16)
    lines = refusal.message.splitlines()
    assert lines[0] == "13 problems with TensorRT plans for triton-26.03:"
    assert [line.strip() for line in lines[1:]] == [
        "NVIDIA A10G and NVIDIA A10 both have compute capability 8.6, by which Triton chooses a release's plan",
        "the pool tactic_shared_memory has to be below 1 GiB",
        "a cannot have the format dla_hwc4: it is for Jetson's DLA",
        "x cannot have the format chw16: it is for Jetson's DLA",
        "Tesla T4 has compute capability 7.5, and BF16 begins with 8.0",
        "Tesla T4 has compute capability 7.5, and plans for Ampere and later (ampere_plus) begin with 8.0",
        "the pool workspace of 64.0 GiB is more than the 15.0 GiB of Tesla T4",
        "the pool workspace of 64.0 GiB is more than the 22.5 GiB of NVIDIA A10G",
        "the pool workspace of 64.0 GiB is more than the 22.5 GiB of NVIDIA A10",
        "V100 has compute capability 7.0, and triton-26.03 begins with 7.5",
        "V100 has compute capability 7.0, and BF16 begins with 8.0",
        "V100 has compute capability 7.0, and plans for Ampere and later (ampere_plus) begin with 8.0",
        "the pool workspace of 64.0 GiB is more than the 16.0 GiB of V100",
    ]
    assert refusal.remedy.count("name a newer GPU") == 2


@pytest.mark.parametrize("precision", [*Precision, "auto"])
def test_gpu_and_target_facts_taken(precision: Precision | Literal["auto"]) -> None:
    """What the GPU and the target have is taken."""
    settings = options(memory_pools={"workspace": "23034M"}, formats={"x": "chw32"}, strip_weights=True, refit=True)
    require_target(TRITON, settings, precision, [L4, H100])
    require_target(SAGEMAKER, options(hardware_compatibility="same_compute_capability"), Precision.INT8, [T4])
    require_target(NEWEST, options(), precision, [])


def test_fp8_begins_with_ada() -> None:
    refusal = refused(TRITON, options(), [A100], Precision.FP8)
    assert "compute capability 8.0, and FP8 begins with 8.9" in refusal.message
    refusal = refused(TRITON, options(hardware_compatibility="ampere_plus"), [L4], Precision.FP8)
    assert "(ampere_plus) begin with 8.0, and FP8 with 8.9" in refusal.message


def test_kind_below_floor_refused() -> None:
    """A kind below the target's own floor is refused."""
    hopper = TRITON.model_copy(update={"min_compute_capability": "9.0"})
    assert "begins with 9.0" in refused(hopper, options()).message
    unknown = TRITON.model_copy(update={"min_compute_capability": None})
    assert "begins with 7.5" in refused(unknown, options(), [find_kind("V100=7.0:16G")]).message


def test_api_preferred_to_trtexec() -> None:
    """The API goes before trtexec unless one is named."""
    both = machine(L4, trtexec="10.16.0")
    assert builders_of(both) == {"api": "10.16.0.72", "trtexec": "10.16.0"}
    choice = choose_builder(TRITON, options(), both, L4)
    assert (choice.builder, choice.trtexec, choice.tensorrt) == ("api", "", "10.16.0.72")
    assert (choice.gpu.uuid, choice.notices) == ("GPU-0", ())
    choice = choose_builder(TRITON, options(builder="trtexec"), both, L4)
    assert (choice.builder, choice.trtexec, choice.tensorrt) == ("trtexec", "/opt/trtexec", "10.16.0")


def test_target_builder_comes_first() -> None:
    """The builder of the target's TensorRT goes before the other."""
    mixed = machine(L4, api="10.13.3.9", trtexec="10.16.0")
    for settings in (options(), options(version_compatible=True)):
        assert choose_builder(TRITON, settings, mixed, L4).builder == "trtexec"


def test_gpu_chosen_by_kind() -> None:
    """The GPU of the kind is chosen among several."""
    assert choose_builder(TRITON, options(), machine(T4, A10G, L4), L4).gpu.uuid == "GPU-2"
    level = options(hardware_compatibility="ampere_plus")
    assert choose_builder(TRITON, level, machine(A100, L4), L4).gpu.uuid == "GPU-1"


def fault(
    here: BuildMachine, target: Target = TRITON, kind: Gpu = L4, settings: TensorRTOptions | None = None
) -> EnvironmentFault:
    with pytest.raises(EnvironmentFault) as refusal:
        choose_builder(target, settings or options(), here, kind)
    return refusal.value


CONTAINERS = "nvcr.io/nvidia/tensorrt:26.03-py3 or nvcr.io/nvidia/tritonserver:26.03-py3"


def test_missing_gpu_names_build_place() -> None:
    """A machine without a GPU is told where to build."""
    refusal = fault(machine())
    assert refusal.message == "a plan for NVIDIA L4 (8.9) is built on one, and this machine has no NVIDIA GPU"
    assert refusal.remedy == f"build on a machine with NVIDIA L4, in {CONTAINERS}"


def test_other_gpu_refused() -> None:
    """Another GPU is refused with the level of compatibility that would do."""
    refusal = fault(machine(A10G))
    assert "this machine has NVIDIA A10G (8.6)" in refusal.message
    assert "gpus: [NVIDIA A10G]" in refusal.remedy
    assert refusal.remedy.endswith("set hardware_compatibility: ampere_plus")
    assert fault(machine(find_kind("L40S"))).remedy.endswith("set hardware_compatibility: same_compute_capability")
    assert "hardware_compatibility" not in fault(machine(T4)).remedy
    assert "hardware_compatibility" not in fault(machine(L4), kind=T4).remedy


def test_compatible_plan_built_on_allowed_gpu() -> None:
    """A hardware-compatible plan is built on another GPU that NVIDIA allows."""
    same, ampere = (options(hardware_compatibility=level) for level in ("same_compute_capability", "ampere_plus"))
    host = machine(find_kind("L40S"))
    for settings in (same, ampere):
        choice = choose_builder(TRITON, settings, host, L4)
        assert choice.notices == ("the plan for NVIDIA L4 is tuned on NVIDIA L40S, so that it may be slower there",)
    assert choose_builder(TRITON, ampere, machine(H100), L4).gpu.name == H100.name
    fault(machine(H100), settings=same)
    fault(machine(T4), settings=ampere)
    fault(machine(L4), kind=T4, settings=ampere)


def test_missing_tensorrt_names_build_place() -> None:
    """A machine without TensorRT is told why and where to build."""
    refusal = fault(machine(L4, api="", problem="libnvinfer.so.10 is missing"))
    assert "neither its Python package (libnvinfer.so.10 is missing) nor trtexec" in refusal.message
    assert refusal.remedy == f"build in {CONTAINERS}"


def test_missing_builder_refused() -> None:
    """A builder that is not here is refused with the one that is."""
    refusal = fault(machine(L4), settings=options(builder="trtexec"))
    assert refusal.message == "trtexec is not on this machine"
    assert refusal.remedy.startswith("take --builder api")
    refusal = fault(machine(L4, api="", problem="no module", trtexec="10.16.0"), settings=options(builder="api"))
    assert refusal.message == "TensorRT's Python package is not on this machine: no module"
    assert refusal.remedy.startswith("take --builder trtexec")
    assert "neither" in fault(machine(L4, api=""), settings=options(builder="api")).message


def test_other_tensorrt_refused() -> None:
    """Another TensorRT is refused, and an older one may be version-compatible."""
    older = fault(machine(L4, api="10.13.3.9", trtexec="10.14.1"))
    assert "this machine has TensorRT 10.13.3.9 (api) and 10.14.1 (trtexec), and triton-26.03 has" in older.message
    assert (
        older.remedy
        == f"build in {CONTAINERS}; or set version_compatible, with which TensorRT 10.16.0.72 loads older plans"
    )
    for version in ("10.16.1.11", "11.0.0.114"):
        assert fault(machine(L4, api=version)).remedy == f"build in {CONTAINERS}"
    newer = fault(machine(L4, api="11.0.0.114"), settings=options(version_compatible=True))
    assert newer.remedy.endswith("loads in newer versions only")


def test_last_version_number_counts() -> None:
    """The last number of a version counts."""
    assert "has 10.16.0.72" in fault(machine(L4, api="10.16.0.71")).message


def test_older_tensorrt_builds_compatible_plan() -> None:
    """A version-compatible plan is built by an older TensorRT that NVIDIA allows."""
    settings = options(version_compatible=True)
    choice = choose_builder(TRITON, settings, machine(L4, api="10.13.3.9"), L4)
    assert choice.tensorrt == "10.13.3.9"
    assert "built by TensorRT 10.13.3.9 and loaded by 10.16.0.72" in choice.notices[0]
    assert choose_builder(NEWEST, settings, machine(L4, driver="615.61"), L4).tensorrt == "10.16.0.72"
    fault(machine(L4, api="10.11.0.33"), settings=settings)


def test_plan_without_lean_runtime() -> None:
    """Without its lean runtime, a plan is for one version alone."""
    settings = options(version_compatible=True, exclude_lean_runtime=True)
    assert choose_builder(TRITON, settings, machine(L4), L4).builder == "api"
    assert "leave exclude_lean_runtime out" in fault(machine(L4, api="10.13.3.9"), settings=settings).remedy


def test_untold_tensorrt_facts_are_said() -> None:
    """What a target does not tell of its TensorRT is said."""
    choice = choose_builder(SAGEMAKER, options(), machine(L4, api="10.16.1.11"), L4)
    assert choice.notices == (
        "of its TensorRT, sagemaker-26.05 tells only 10.16; a plan of another 10.16 may not load there",
    )
    inferred = load_target("triton-25.09")
    (notice,) = choose_builder(inferred, options(), machine(L4, api=inferred.tensorrt or ""), L4).notices
    assert "has TensorRT 10.13.3.9 was inferred; verify it in nvcr.io/nvidia/tritonserver:25.09-py3" in notice


def test_old_driver_refused() -> None:
    """An old driver is refused where nothing makes a newer CUDA run on it."""
    consumer = find_kind("RTX 4090")
    refusal = fault(machine(consumer, driver="530.41.03"), kind=consumer)
    assert refusal.message == (
        "TensorRT 10.16.0.72 wants driver 535 or later, and NVIDIA GeForce RTX 4090 has 530.41.03"
    )
    assert "update the driver" in refusal.remedy
    newer = machine(consumer, api="11.2.1.2", driver="575.57.08")
    assert "wants driver 580" in fault(newer, NEWEST, consumer).message


def test_old_data_centre_driver_is_noticed() -> None:
    """An old driver of a data centre is worth a notice."""
    (notice,) = choose_builder(TRITON, options(), machine(L4, driver="530.41.03"), L4).notices
    assert "works only with CUDA's compatibility package" in notice
    (notice,) = choose_builder(TRITON, options(), machine(L4, driver="580.95.05"), L4).notices
    assert notice == "triton-26.03 was made for driver 595.45.04, and this machine has 580.95.05"
    assert choose_builder(TRITON, options(), machine(L4, driver=""), L4).notices == ()


def test_build_containers_match_target() -> None:
    """The containers to build in have the target's number."""
    assert describe_containers(TRITON) == CONTAINERS
    assert describe_containers(SAGEMAKER) == "nvcr.io/nvidia/tritonserver:26.05-py3"
    own = TRITON.model_copy(update={"images": {"gpu": "registry.here/serving:7"}})
    assert describe_containers(own) == "registry.here/serving:7"
    assert describe_containers(TRITON.model_copy(update={"images": {}})) == "a container with TensorRT 10.16.0.72"


def header(version: str) -> PlanHeader:
    return PlanHeader(serialization=0, tensorrt=version)


def test_matching_plan_fits_target() -> None:
    """A plan of the target's TensorRT is for it."""
    require_header(header("10.16.0.72"), TRITON, BuildFlags())
    require_header(header("10.16.1.11"), SAGEMAKER, BuildFlags())
    compatible = BuildFlags(version_compatible=True)
    for version in ("10.12.0.36", "10.16.1.11", "11.2.1.2"):
        require_header(header(version), NEWEST, compatible)


@pytest.mark.parametrize(
    ("version", "target", "flags"),
    [
        ("10.16.1.11", TRITON, BuildFlags()),
        ("10.13.3.9", TRITON, BuildFlags()),
        ("10.15.1.29", SAGEMAKER, BuildFlags()),
        ("10.16.1.11", TRITON, BuildFlags(version_compatible=True)),
        ("11.0.0.114", TRITON, BuildFlags(version_compatible=True)),
        ("8.6.1.6", NEWEST, BuildFlags(version_compatible=True)),
        ("10.16.1.11", NEWEST, BuildFlags(version_compatible=True, exclude_lean_runtime=True)),
        ("10.16.0.72", TRITON.model_copy(update={"tensorrt": None}), BuildFlags(version_compatible=True)),
    ],
)
def test_unloadable_plan_refused(version: str, target: Target, flags: BuildFlags) -> None:
    """A plan that the target cannot load is refused."""
    with pytest.raises(EngineError, match=f"built by TensorRT {version}") as refusal:
        require_header(header(version), target, flags)
    assert refusal.value.remedy.startswith("build it in nvcr.io/nvidia/")


def test_versions_compared_where_known() -> None:
    """Versions compare as far as both are known."""
    assert is_same("10.16.1.11", "10.16")
    assert is_same("10.16.1", "10.16.1.11")
    assert not is_same("10.16.1.11", "10.1")
    assert not is_same("10.16.1.11", "10")
    assert not is_same("10.16.1.11", "")
    assert [v for v in ("", "10", "10.12.0", "10.16.1.11.post1", "11", "11.4.0.106") if is_supported(v)] == [
        *("10.12.0", "10.16.1.11.post1", "11", "11.4.0.106")
    ]
    assert not loads_in("10.16.1.11", "")
    assert not loads_in("11.4", "10.16")
