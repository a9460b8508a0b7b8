"""What an endpoint cannot serve is known before anything is created."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plansmith.errors import EngineError
from plansmith.sagemaker.endpoint.checks import require_serveable
from plansmith.sagemaker.endpoint.desired import container_environment, resolve_image

from ...support.sagemaker.endpoints import archive, cpu_archive, endpoint_spec

GIB = 1 << 30

REASONS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "another compute capability": (
        {"instance_type": "ml.g6.xlarge"},
        {},
        "are for compute capability 8.6, and ml.g6.xlarge has NVIDIA L4 (8.9); ml.g5.xlarge would do",
    ),
    "no GPU": ({"instance_type": "ml.c6i.xlarge"}, {}, "it is for GPUs, and ml.c6i.xlarge has none; ml.g5.xlarge"),
    "no GPU for an ONNX model of the GPU": (
        {"instance_type": "ml.m5.large"},
        {"compute_capabilities": (), "tensorrt": None},
        "it is for GPUs, and ml.m5.large has none",
    ),
    "more than a GPU holds": (
        {"instance_type": "ml.g5.12xlarge"},
        {"unpacked_bytes": 23 * GIB},
        "it loads 23.0 GiB of files, and a GPU of ml.g5.12xlarge has 22.5 GiB of memory",
    ),
    "more than the machine holds": (
        {},
        {"unpacked_bytes": 17 * GIB},
        "it loads 17.0 GiB of files, and ml.g5.xlarge has 16.0 GiB of memory",
    ),
    "a plan for this GPU that is larger than that": (
        {"instance_type": "ml.g5.12xlarge"},
        {"compute_capabilities": ("8.6", "8.9"), "loaded_bytes": {"": 40 * GIB, "8.6": 23 * GIB, "8.9": 17 * GIB}},
        "it loads 23.0 GiB of files",
    ),
    "TensorRT 11": ({}, {"tensorrt": "11.2.1.2"}, "no container of SageMaker's has it yet"),
    "TensorRT 11, version-compatible": (
        {},
        {"tensorrt": "11.2.1.2", "version_compatible": True},
        "its version-compatible plan is of TensorRT 11.2.1.2",
    ),
    "another minor version": (
        {},
        {"tensorrt": "10.13.2.6"},
        "/sagemaker-tritonserver:26.05-py3 has 10.16; image: {version: '25.09'} has it",
    ),
    "a newer plan in an older container": (
        {"image": {"version": "25.04"}},
        {"version_compatible": True},
        "image: {version: '26.05'} has it",
    ),
    "no container of SageMaker's": (
        {},
        {"target": "triton-26.08"},
        "triton-26.08 is no image of SageMaker (compile it for --target sagemaker-26.05",
    ),
}


@pytest.mark.parametrize(("variant", "values", "reason"), REASONS.values(), ids=REASONS.keys())
def test_reason(tmp_path: Path, variant: dict[str, Any], values: dict[str, Any], reason: str) -> None:
    """A variant that cannot serve its archive is refused with the reason and what would do."""
    spec = endpoint_spec(tmp_path, variant=variant)
    with pytest.raises(EngineError) as refused:
        require_serveable(spec, {"main": (archive(tmp_path, **values),)})
    assert reason in refused.value.message
    assert "bert cannot serve this, for 1 reason" in refused.value.message


def test_all_reasons(tmp_path: Path) -> None:
    """All reasons of all variants are said at once."""
    second_variant = {"name": "other", "models": ["b"], "instance_type": "ml.c5.large"}
    spec = endpoint_spec(tmp_path, variants=[{"models": ["a"], "instance_type": "ml.g6.xlarge"}, second_variant])
    large = cpu_archive(tmp_path, "b", unpacked_bytes=5 * GIB)
    with pytest.raises(EngineError) as refused:
        require_serveable(spec, {"main": (archive(tmp_path, "a", tensorrt="11.0.0"),), "other": (large,)})
    assert "for 3 reasons" in refused.value.message
    assert "variant main: a@3: its plan" in refused.value.message
    assert "variant other: b@3: it loads 5.0 GiB of files" in refused.value.message


@pytest.mark.parametrize(
    ("variant", "values"),
    [
        ({}, {}),
        ({}, {"tensorrt": "10.13.2.6", "version_compatible": True}),
        ({"image": {"version": "25.09"}}, {"tensorrt": "10.13.2.6"}),
        ({"image": {"uri": "111122223333.dkr.ecr.us-east-1.amazonaws.com/own:1"}}, {}),
        ({"instance_type": "ml.g6.xlarge"}, {"hardware_compatibility": "ampere_plus"}),
        ({"instance_type": "ml.g6e.48xlarge"}, {"compute_capabilities": ("8.6", "8.9")}),
        ({}, {"compute_capabilities": ("8.6", "8.9"), "loaded_bytes": {"": 30 * GIB, "8.6": 10 * GIB}}),
    ],
    ids=["as built", "compatible", "older container", "own image", "Ampere and later", "plans for both", "one of two"],
)
def test_serveable(tmp_path: Path, variant: dict[str, Any], values: dict[str, Any]) -> None:
    """What can be served passes."""
    require_serveable(endpoint_spec(tmp_path, variant=variant), {"main": (archive(tmp_path, **values),)})


def test_image(tmp_path: Path) -> None:
    """The image follows from the archive's device, and from what the variant overrides."""
    gpu, cpu = archive(tmp_path), cpu_archive(tmp_path, "small")
    (variant,) = endpoint_spec(tmp_path).variants
    assert resolve_image("us-east-1", variant, [gpu]).uri.endswith(":26.05-py3")
    assert resolve_image("us-east-1", variant, [cpu]).uri.endswith(":26.05-py3-cpu")
    image = {"image": {"version": "25.09", "account": "111122223333"}}
    (variant,) = endpoint_spec(tmp_path, variant=image).variants
    assert resolve_image("us-east-1", variant, [gpu]).uri == (
        "111122223333.dkr.ecr.us-east-1.amazonaws.com/sagemaker-tritonserver:25.09-py3"
    )


def test_archives_of_two_targets(tmp_path: Path) -> None:
    """Archives for two images do not share a container."""
    spec = endpoint_spec(tmp_path, variant={"multi_model": True, "models": ["a", "b"]})
    archives = (archive(tmp_path, "a"), archive(tmp_path, "b", target="sagemaker-25.09", tensorrt="10.13.2"))
    with pytest.raises(EngineError, match=r"its archives are for sagemaker-25\.09 and sagemaker-26\.05"):
        require_serveable(spec, {"main": archives})


def test_environment(tmp_path: Path) -> None:
    """The container's environment has the variables of the start script."""
    environment = {
        "thread_count": 4,
        "shm_default_bytes": "64M",
        "log_info": False,
        "model_load_gpu_limit": 0.8,
        "model_namespacing": False,
        "additional_args": ["--rate-limit=off"],
        "variables": {"MY_OWN": "1", "SAGEMAKER_TRITON_OF_A_NEWER_SCRIPT": "1"},
    }
    (variant,) = endpoint_spec(tmp_path, variant={"environment": environment}).variants
    assert container_environment(variant, [archive(tmp_path, version_compatible=True)]) == {
        "MY_OWN": "1",
        "SAGEMAKER_TRITON_ADDITIONAL_ARGS": "--rate-limit=off --backend-config=tensorrt,version-compatible=true",
        "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "bert",
        "SAGEMAKER_TRITON_DISABLE_MODEL_NAMESPACING": "false",
        "SAGEMAKER_TRITON_LOG_INFO": "false",
        "SAGEMAKER_TRITON_LOG_VERBOSE": "false",
        "SAGEMAKER_TRITON_MODEL_LOAD_GPU_LIMIT": "0.8",
        "SAGEMAKER_TRITON_OF_A_NEWER_SCRIPT": "1",
        "SAGEMAKER_TRITON_SHM_DEFAULT_BYTE_SIZE": "67108864",
        "SAGEMAKER_TRITON_THREAD_COUNT": "4",
    }


def test_environment_of_many_models(tmp_path: Path) -> None:
    """A multi-model variant has no default model, and what its archives need once."""
    needed = {
        "SAGEMAKER_TRITON_ADDITIONAL_ARGS": "--backend-config=tensorrt,version-compatible=true --load-model=part",
        "SAGEMAKER_TRITON_PING_MODE": "live",
    }
    archives = [archive(tmp_path, name, version_compatible=True, environment=needed) for name in "ab"]
    (variant,) = endpoint_spec(tmp_path, variant={"multi_model": True}).variants
    assert container_environment(variant, archives) == {**needed, "SAGEMAKER_TRITON_LOG_VERBOSE": "false"}
