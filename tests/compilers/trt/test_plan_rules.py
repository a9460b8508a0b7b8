"""Which plans a target can have, who builds them here, and whether one that was built is for it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal

import pytest

from plansmith.compilers.trt.inspection.header import PlanHeader
from plansmith.compilers.trt.rules import (
    builders_of,
    choose_builder,
    describe_containers,
    require_header,
    require_target,
)
from plansmith.compilers.trt.versions import is_same, is_supported, loads_in
from plansmith.config.target.names import runtime_names
from plansmith.config.target.targets import Target, load_target
from plansmith.config.tensorrt import TensorRTOptions
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
    given: TensorRTOptions,
    kinds: Sequence[Gpu] = (L4,),
    precision: Precision | Literal["auto"] = Precision.FP16,
) -> EngineError:
    with pytest.raises(EngineError) as refusal:
        require_target(target, given, precision, kinds)
    assert refusal.value.remedy
    return refusal.value


def test_of_the_shipped_targets_those_with_gpus_and_a_known_tensorrt_of_10_12_and_later_can_have_plans() -> None:
    taken = set()
    for name in runtime_names():
        target = load_target(name)
        with suppress(EngineError):
            require_target(target, options(), Precision.FP16, [L4])
            taken.add(name)
    assert taken == {
        *("sagemaker-25.09", "sagemaker-26.05"),
        *(f"triton-25.{month:02}" for month in range(8, 13)),
        *(f"triton-26.{month:02}" for month in (2, 3, 4, 5, 7, 8, 9, 10)),
    }


def test_cpu_instances_are_no_place_for_a_plan_and_the_target_with_gpus_is_named() -> None:
    assert "has no GPU instances" in refused(load_target("triton-26.03-cpu"), options()).message
    assert "--target triton-26.03" in refused(load_target("triton-26.03-cpu"), options()).remedy
    both = refused(load_target("local-cpu"), options())
    assert both.message.startswith("2 problems")
    assert "nothing says which TensorRT local-cpu has" in both.message


def test_an_unknown_tensorrt_is_to_be_looked_up_in_the_image() -> None:
    found = refused(load_target("triton-26.06"), options())
    assert found.message == "nothing says which TensorRT triton-26.06 has"
    assert "nvcr.io/nvidia/tritonserver:26.06-py3 (dpkg -l | grep nvinfer)" in found.remedy
    assert "a copy of `plansmith targets triton-26.06 --yaml`" in found.remedy
    own = load_target("triton-26.06").model_copy(update={"name": "/x/ours.yaml"})
    assert refused(own, options()).remedy.endswith("into /x/ours.yaml")


@pytest.mark.parametrize("version", ["10.9.0.34", "10.11.0.33", "9.3", "10.17.0", "12.0.0.1"])
def test_a_tensorrt_that_plansmith_does_not_build_for_is_refused(version: str) -> None:
    assert f"has TensorRT {version}" in refused(TRITON.model_copy(update={"tensorrt": version}), options()).message


@pytest.mark.parametrize("version", ["10", "11"])
def test_a_major_number_alone_is_too_little(version: str) -> None:
    found = refused(TRITON.model_copy(update={"tensorrt": version}), options())
    assert f"tells only TensorRT {version}" in found.message
    assert "at least two numbers" in found.remedy


def test_sagemaker_has_no_tensorrt_11_yet() -> None:
    found = refused(SAGEMAKER.model_copy(update={"tensorrt": "11.1.0.106"}), options())
    assert "no container of SageMaker has TensorRT 11" in found.message
    assert "--target sagemaker-26.05" in found.remedy


def test_every_problem_is_told_at_once() -> None:
    given = options(
        memory_pools={"workspace": "64G", "tactic_shared_memory": "1G"},
        hardware_compatibility="ampere_plus",
        formats={"x": "chw16", "y": "chw32", "a": "dla_hwc4"},
    )
    old = find_kind("V100=7.0:16G")
    found = refused(TRITON, given, [T4, A10G, find_kind("A10"), old], Precision.BF16)
    lines = found.message.splitlines()
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
    assert found.remedy.count("name a newer GPU") == 2


@pytest.mark.parametrize("precision", [*Precision, "auto"])
def test_what_the_gpu_and_the_target_have_is_taken(precision: Precision | Literal["auto"]) -> None:
    given = options(memory_pools={"workspace": "23034M"}, formats={"x": "chw32"}, strip_weights=True, refit=True)
    require_target(TRITON, given, precision, [L4, H100])
    require_target(SAGEMAKER, options(hardware_compatibility="same_compute_capability"), Precision.INT8, [T4])
    require_target(NEWEST, options(), precision, [])


def test_fp8_begins_with_ada() -> None:
    found = refused(TRITON, options(), [A100], Precision.FP8)
    assert "compute capability 8.0, and FP8 begins with 8.9" in found.message
    found = refused(TRITON, options(hardware_compatibility="ampere_plus"), [L4], Precision.FP8)
    assert "(ampere_plus) begin with 8.0, and FP8 with 8.9" in found.message


def test_a_kind_below_the_targets_own_floor_is_refused() -> None:
    hopper = TRITON.model_copy(update={"min_compute_capability": "9.0"})
    assert "begins with 9.0" in refused(hopper, options()).message
    unknown = TRITON.model_copy(update={"min_compute_capability": None})
    assert "begins with 7.5" in refused(unknown, options(), [find_kind("V100=7.0:16G")]).message


def test_the_api_goes_before_trtexec_unless_one_is_named() -> None:
    both = machine(L4, trtexec="10.16.0")
    assert builders_of(both) == {"api": "10.16.0.72", "trtexec": "10.16.0"}
    choice = choose_builder(TRITON, options(), both, L4)
    assert (choice.builder, choice.trtexec, choice.tensorrt) == ("api", "", "10.16.0.72")
    assert (choice.gpu.uuid, choice.notices) == ("GPU-0", ())
    choice = choose_builder(TRITON, options(builder="trtexec"), both, L4)
    assert (choice.builder, choice.trtexec, choice.tensorrt) == ("trtexec", "/opt/trtexec", "10.16.0")


def test_the_builder_of_the_targets_tensorrt_goes_before_the_other() -> None:
    mixed = machine(L4, api="10.13.3.9", trtexec="10.16.0")
    for given in (options(), options(version_compatible=True)):
        assert choose_builder(TRITON, given, mixed, L4).builder == "trtexec"


def test_the_gpu_of_the_kind_is_chosen_among_several() -> None:
    assert choose_builder(TRITON, options(), machine(T4, A10G, L4), L4).gpu.uuid == "GPU-2"
    level = options(hardware_compatibility="ampere_plus")
    assert choose_builder(TRITON, level, machine(A100, L4), L4).gpu.uuid == "GPU-1"


def fault(
    here: BuildMachine, target: Target = TRITON, kind: Gpu = L4, given: TensorRTOptions | None = None
) -> EnvironmentFault:
    with pytest.raises(EnvironmentFault) as refusal:
        choose_builder(target, given or options(), here, kind)
    return refusal.value


CONTAINERS = "nvcr.io/nvidia/tensorrt:26.03-py3 or nvcr.io/nvidia/tritonserver:26.03-py3"


def test_a_machine_without_a_gpu_is_told_where_to_build() -> None:
    found = fault(machine())
    assert found.message == "a plan for NVIDIA L4 (8.9) is built on one, and this machine has no NVIDIA GPU"
    assert found.remedy == f"build on a machine with NVIDIA L4, in {CONTAINERS}"


def test_another_gpu_is_refused_with_the_level_of_compatibility_that_would_do() -> None:
    other = fault(machine(A10G))
    assert "this machine has NVIDIA A10G (8.6)" in other.message
    assert "gpus: [NVIDIA A10G]" in other.remedy
    assert other.remedy.endswith("set hardware_compatibility: ampere_plus")
    assert fault(machine(find_kind("L40S"))).remedy.endswith("set hardware_compatibility: same_compute_capability")
    assert "hardware_compatibility" not in fault(machine(T4)).remedy
    assert "hardware_compatibility" not in fault(machine(L4), kind=T4).remedy


def test_a_hardware_compatible_plan_is_built_on_another_gpu_that_nvidia_allows() -> None:
    same, ampere = (options(hardware_compatibility=level) for level in ("same_compute_capability", "ampere_plus"))
    here = machine(find_kind("L40S"))
    for given in (same, ampere):
        choice = choose_builder(TRITON, given, here, L4)
        assert choice.notices == ("the plan for NVIDIA L4 is tuned on NVIDIA L40S, so that it may be slower there",)
    assert choose_builder(TRITON, ampere, machine(H100), L4).gpu.name == H100.name
    fault(machine(H100), given=same)
    fault(machine(T4), given=ampere)
    fault(machine(L4), kind=T4, given=ampere)


def test_a_machine_without_tensorrt_is_told_why_and_where_to_build() -> None:
    found = fault(machine(L4, api="", problem="libnvinfer.so.10 is missing"))
    assert "neither its Python package (libnvinfer.so.10 is missing) nor trtexec" in found.message
    assert found.remedy == f"build in {CONTAINERS}"


def test_a_builder_that_is_not_here_is_refused_with_the_one_that_is() -> None:
    found = fault(machine(L4), given=options(builder="trtexec"))
    assert found.message == "trtexec is not on this machine"
    assert found.remedy.startswith("take --builder api")
    found = fault(machine(L4, api="", problem="no module", trtexec="10.16.0"), given=options(builder="api"))
    assert found.message == "TensorRT's Python package is not on this machine: no module"
    assert found.remedy.startswith("take --builder trtexec")
    assert "neither" in fault(machine(L4, api=""), given=options(builder="api")).message


def test_another_tensorrt_is_refused_and_an_older_one_may_be_version_compatible() -> None:
    older = fault(machine(L4, api="10.13.3.9", trtexec="10.14.1"))
    assert "this machine has TensorRT 10.13.3.9 (api) and 10.14.1 (trtexec), and triton-26.03 has" in older.message
    assert (
        older.remedy
        == f"build in {CONTAINERS}; or set version_compatible, with which TensorRT 10.16.0.72 loads older plans"
    )
    for version in ("10.16.1.11", "11.0.0.114"):
        assert fault(machine(L4, api=version)).remedy == f"build in {CONTAINERS}"
    newer = fault(machine(L4, api="11.0.0.114"), given=options(version_compatible=True))
    assert newer.remedy.endswith("loads in newer versions only")


def test_the_last_number_of_a_version_counts() -> None:
    assert "has 10.16.0.72" in fault(machine(L4, api="10.16.0.71")).message


def test_a_version_compatible_plan_is_built_by_an_older_tensorrt_that_nvidia_allows() -> None:
    given = options(version_compatible=True)
    choice = choose_builder(TRITON, given, machine(L4, api="10.13.3.9"), L4)
    assert choice.tensorrt == "10.13.3.9"
    assert "built by TensorRT 10.13.3.9 and loaded by 10.16.0.72" in choice.notices[0]
    assert choose_builder(NEWEST, given, machine(L4, driver="615.61"), L4).tensorrt == "10.16.0.72"
    fault(machine(L4, api="10.11.0.33"), given=given)


def test_without_its_lean_runtime_a_plan_is_for_one_version_alone() -> None:
    given = options(version_compatible=True, exclude_lean_runtime=True)
    assert choose_builder(TRITON, given, machine(L4), L4).builder == "api"
    assert "leave exclude_lean_runtime out" in fault(machine(L4, api="10.13.3.9"), given=given).remedy


def test_what_a_target_does_not_tell_of_its_tensorrt_is_said() -> None:
    choice = choose_builder(SAGEMAKER, options(), machine(L4, api="10.16.1.11"), L4)
    assert choice.notices == (
        "of its TensorRT, sagemaker-26.05 tells only 10.16; a plan of another 10.16 may not load there",
    )
    inferred = load_target("triton-25.09")
    (said,) = choose_builder(inferred, options(), machine(L4, api=inferred.tensorrt or ""), L4).notices
    assert "has TensorRT 10.13.3.9 was inferred; verify it in nvcr.io/nvidia/tritonserver:25.09-py3" in said


def test_an_old_driver_is_refused_where_nothing_makes_newer_cuda_run_on_it() -> None:
    consumer = find_kind("RTX 4090")
    found = fault(machine(consumer, driver="530.41.03"), kind=consumer)
    assert found.message == ("TensorRT 10.16.0.72 wants driver 535 or later, and NVIDIA GeForce RTX 4090 has 530.41.03")
    assert "update the driver" in found.remedy
    newer = machine(consumer, api="11.2.1.2", driver="575.57.08")
    assert "wants driver 580" in fault(newer, NEWEST, consumer).message


def test_an_old_driver_of_a_data_centre_is_worth_a_notice() -> None:
    (said,) = choose_builder(TRITON, options(), machine(L4, driver="530.41.03"), L4).notices
    assert "works only with CUDA's compatibility package" in said
    (said,) = choose_builder(TRITON, options(), machine(L4, driver="580.95.05"), L4).notices
    assert said == "triton-26.03 was made for driver 595.45.04, and this machine has 580.95.05"
    assert choose_builder(TRITON, options(), machine(L4, driver=""), L4).notices == ()


def test_the_containers_to_build_in_have_the_targets_number() -> None:
    assert describe_containers(TRITON) == CONTAINERS
    assert describe_containers(SAGEMAKER) == "nvcr.io/nvidia/tritonserver:26.05-py3"
    own = TRITON.model_copy(update={"images": {"gpu": "registry.here/serving:7"}})
    assert describe_containers(own) == "registry.here/serving:7"
    assert describe_containers(TRITON.model_copy(update={"images": {}})) == "a container with TensorRT 10.16.0.72"


def header(version: str) -> PlanHeader:
    return PlanHeader(serialization=0, tensorrt=version)


def test_a_plan_of_the_targets_tensorrt_is_for_it() -> None:
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
def test_a_plan_that_the_target_cannot_load_is_refused(version: str, target: Target, flags: BuildFlags) -> None:
    with pytest.raises(EngineError, match=f"built by TensorRT {version}") as refusal:
        require_header(header(version), target, flags)
    assert refusal.value.remedy.startswith("build it in nvcr.io/nvidia/")


def test_versions_compare_as_far_as_both_are_known() -> None:
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
