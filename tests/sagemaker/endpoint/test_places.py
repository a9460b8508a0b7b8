"""The shipped data: which images there are where, and which instance types."""

from __future__ import annotations

import pytest
from botocore.loaders import Loader

from plansmith.config.targets import load_target
from plansmith.errors import UsageError
from plansmith.sagemaker.endpoint.instances import (
    container_target,
    driver_warning,
    find_instance,
    fitting_instances,
    image_uri,
    instances,
    nearest_instances,
    partition_of,
    regions,
    system_images,
    versions,
)


@pytest.mark.parametrize(("version", "count"), [("25.04", 35), ("25.09", 34), ("26.05", 34)])
def test_regions_of_a_version(version: str, count: int) -> None:
    """A version is in as many regions as AWS's list says."""
    present = 0
    for region in regions():
        try:
            assert f".{region}." in image_uri(container_target(version, "gpu"), "gpu", region)
        except UsageError:
            continue
        present += 1
    assert present == count


def test_image_uri() -> None:
    """Images are in the region's own account, in China under another domain, and in an account of one's own."""
    cpu, gpu = load_target("sagemaker-26.05-cpu"), load_target("sagemaker-25.04")
    assert image_uri(cpu, "cpu", "me-central-1") == (
        "914824155844.dkr.ecr.me-central-1.amazonaws.com/sagemaker-tritonserver:26.05-py3-cpu"
    )
    assert image_uri(gpu, "gpu", "cn-north-1") == (
        "727897471807.dkr.ecr.cn-north-1.amazonaws.com.cn/sagemaker-tritonserver:25.04-py3"
    )
    assert image_uri(cpu, "cpu", "cn-north-1", account="111122223333").startswith("111122223333.dkr.ecr.cn-north-1")
    partitions = [partition_of(region) for region in ("cn-north-1", "us-gov-west-1", "us-east-1")]
    assert partitions == ["aws-cn", "aws-us-gov", "aws"]


def test_missing_version() -> None:
    """A region that lacks a version is refused with those that it has."""
    with pytest.raises(UsageError, match=r"cn-north-1 has no SageMaker container 26\.05") as refused:
        image_uri(load_target("sagemaker-26.05"), "gpu", "cn-north-1")
    assert "choose a version that is there (25.04)" in refused.value.remedy


def test_drivers() -> None:
    """A driver that is older than CUDA's own is warned of, with the system image that has a newer one."""
    for version in versions():
        target = container_target(version, "gpu")
        assert driver_warning(target, "al2023-ami-sagemaker-inference-gpu-4-1") == ""
    warning = driver_warning(load_target("sagemaker-26.05"), "al2-ami-sagemaker-inference-gpu-3-1")
    assert "has driver 550, and CUDA 13.2.1" in warning
    assert "inference_ami: al2023-ami-sagemaker-inference-gpu-4-1" in warning
    assert driver_warning(load_target("sagemaker-25.04"), "al2-ami-sagemaker-inference-gpu-3-1") == ""
    default = driver_warning(load_target("sagemaker-26.05"), "")
    assert default.startswith("AWS does not say which driver the default system image has, and CUDA 13.2.1")
    assert driver_warning(load_target("sagemaker-25.04"), "") == ""


def test_names_are_those_of_sagemaker() -> None:
    """SageMaker takes every instance type and system image, and no size of a family is left out."""
    shapes = Loader().load_service_model("sagemaker", "service-2")["shapes"]
    types = set(shapes["ProductionVariantInstanceType"]["enum"])
    assert set(instances()) <= types
    families = ("g4dn", "g5", "g6", "g6e", "p4d", "p4de", "p5", "p5e", "p5en", "c5", "c6i", "c7i", "m5", "m6i", "m7i")
    for family in families:
        sizes = {name for name in types if name.startswith(f"ml.{family}.")}
        assert sizes
        assert sizes <= set(instances())
    assert set(system_images()) <= set(shapes["ProductionVariantInferenceAmiVersion"]["enum"])


@pytest.mark.parametrize(
    ("name", "vcpus", "gib", "gpus", "capability"),
    [
        ("ml.g4dn.12xlarge", 48, 192, 4, "7.5"),
        ("ml.g5.48xlarge", 192, 768, 8, "8.6"),
        ("ml.p4d.24xlarge", 96, 1152, 8, "8.0"),
        ("ml.c5.18xlarge", 72, 144, 0, None),
    ],
)
def test_instance_sizes(name: str, vcpus: int, gib: int, gpus: int, capability: str | None) -> None:
    """An instance type has the size that AWS publishes, and its family's GPU."""
    instance = find_instance(name)
    assert instance is not None
    assert (instance.vcpus, instance.memory_bytes, instance.gpus) == (vcpus, gib << 30, gpus)
    assert instance.compute_capability == capability


def test_nearest_instances() -> None:
    """A name without ml. leads to the type that was meant."""
    assert nearest_instances("g5.xlarge")[0] == "ml.g5.xlarge"
    assert find_instance("g5.xlarge") is None
    assert fitting_instances(capabilities=("8.9",), memory_bytes=30 << 30) == ["ml.g6e.xlarge"]
