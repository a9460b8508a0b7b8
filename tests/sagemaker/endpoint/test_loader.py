"""The file of an endpoint: all problems at once, each with its line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from plansmith.errors import UsageError
from plansmith.sagemaker.endpoint.loader import read_endpoint
from plansmith.sagemaker.endpoint.recommendation_job import Phase, RecommendationJob, Stairs, StoppingConditions
from plansmith.sagemaker.endpoint.spec import DataCapture, EndpointSpec, SmokeTest, Vpc
from plansmith.sagemaker.endpoint.variant import AutoScaling, Environment, ImageOverride, VariantSpec

from ...support.sagemaker.endpoints import endpoint_spec, write_endpoint
from ...support.source import ROOT

SHADOW = {"name": "next", "models": ["a"], "instance_type": "ml.g5.xlarge"}

PROBLEMS: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown region": ({"region": "us-esat-1"}, "did you mean us-west-1 or us-east-1?"),
    "no region": ({"region": "here"}, "is no region"),
    "a role that is no ARN": ({"role": "endpoint"}, "must be the ARN of a role"),
    "a role of another partition": ({"role": "arn:aws-cn:iam::123456789012:role/a"}, "is of aws-cn"),
    "a folder for a bucket": ({"bucket": "archives"}, "must be s3://bucket/prefix"),
    "an unknown instance type": ({"variant": {"instance_type": "ml.g5.xlagre"}}, "did you mean ml.g5.xlarge"),
    "an instance type without ml.": ({"variant": {"instance_type": "g5.xlarge"}}, "did you mean ml.g5.xlarge"),
    "an unknown container": ({"variant": {"image": {"version": "26.06"}}}, "no SageMaker container '26.06'"),
    "a container that the region lacks": (
        {"region": "ap-southeast-6", "variant": {"image": {"version": "25.04"}}},
        "ap-southeast-6 has no SageMaker container 25.04",
    ),
    "two images": ({"variant": {"image": {"uri": "a/b:1", "version": "26.05"}}}, "uri names the image in full"),
    "an image of another registry": ({"variant": {"image": {"uri": "nvcr.io/a:1"}}}, "is no image in Amazon ECR"),
    "an image of another region": (
        {"variant": {"image": {"uri": "111122223333.dkr.ecr.eu-west-1.amazonaws.com/a:1"}}},
        "is in eu-west-1, and SageMaker pulls from us-east-1 only",
    ),
    "copies of a single model": ({"variant": {"copies": 5}}, "are for multi-model variants"),
    "a default of many models": (
        {"variant": {"multi_model": True, "environment": {"default_model": "bert"}}},
        "has no meaning",
    ),
    "scaling by GPUs that are not there": (
        {"variant": {"instance_type": "ml.c6i.large", "auto_scaling": {"max_instances": 2, "gpu_utilization": 60}}},
        "ml.c6i.large has no GPU",
    ),
    "scaling by nothing": ({"variant": {"auto_scaling": {"max_instances": 2}}}, "names no metric"),
    "more instances than it scales to": (
        {"variant": {"instance_count": 9, "auto_scaling": {"max_instances": 2, "gpu_utilization": 60}}},
        "is not among the 1 to 2",
    ),
    "a key for disks of the machine": ({"kms_key": "alias/a"}, "for which SageMaker takes no key"),
    "a size for disks of the machine": ({"variant": {"volume_gb": 50}}, "whose size is fixed"),
    "a typed variable by its name": (
        {"variant": {"environment": {"variables": {"SAGEMAKER_TRITON_THREAD_COUNT": "4"}}}},
        "has a key of its own: environment.thread_count",
    ),
    "an unknown system image": ({"variant": {"inference_ami": "newest"}}, "is no system image with an NVIDIA driver"),
    "an argument with a space": (
        {"variant": {"environment": {"additional_args": ["--log-file /tmp/a"]}}},
        "must be --NAME=VALUE without spaces",
    ),
    "a reserved tag": ({"tags": {"plansmith:endpoint": "other"}}, "are reserved"),
    "a request that is not there": ({"smoke_test": {"body": "request.json"}}, "there is no file"),
    "no weight": ({"variant": {"weight": 0}}, "no variant gets requests"),
    "two shadows": ({"shadow_variants": [SHADOW, {**SHADOW, "name": "b"}]}, "must have 1 at most"),
    "two variants of a name": ({"shadow_variants": [{**SHADOW, "name": "main"}]}, "is the name of another variant"),
    "a shadow of many models": (
        {"variant": {"multi_model": True}, "shadow_variants": [SHADOW]},
        "does not go with shadow variants",
    ),
    "two models without a default": (
        {"variant": {"models": ["a", "b"]}},
        "a, b share a container that serves one: name it in environment.default_model, or write multi_model: true",
    ),
    "two versions of a model": ({"variant": {"models": ["a@1", "a@2"]}}, "serves one version of a model"),
    "a default that is not there": (
        {"variant": {"environment": {"default_model": "whole"}}},
        "'whole' is none of the models bert",
    ),
    "no release": ({"variant": {"models": ["bert@0"]}}, "is no MODEL or MODEL@VERSION"),
    "no variant": ({"variants": []}, "must have at least 1"),
}


@pytest.mark.parametrize(("changes", "message"), PROBLEMS.values(), ids=PROBLEMS.keys())
def test_problem(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """A problem is said with its line."""
    with pytest.raises(UsageError) as refused:
        endpoint_spec(tmp_path, **changes)
    assert message in refused.value.message
    assert f"1 problem in the endpoint endpoint.yaml:\n  {tmp_path / 'endpoint.yaml'}:" in refused.value.message


def test_all_problems(tmp_path: Path) -> None:
    """All problems are said at once: unknown keys with the key that was meant, which then does not count as missing."""
    variant = {"environment": {"thread_cuont": 4}, "weight": -1, "region": "us-east-1"}
    path = write_endpoint(tmp_path, region="us-esat-1", role="x", thread_count=4, variant=variant)
    path.write_text(path.read_text().replace("bucket:", "bukcet:"))
    with pytest.raises(UsageError) as refused:
        read_endpoint(path)
    for text in (
        "7 problems",
        "'region': is not known",
        "'bukcet' (did you mean bucket?)",
        "(did you mean thread_count?)",
        "'role'",
        "'variants.0.weight': must be 0.0 or more",
        "'thread_count' (it belongs in variants.environment)",
        "'variants.0.region' (it belongs at the top of the file)",
    ):
        assert text in refused.value.message


def test_region_without_images(tmp_path: Path) -> None:
    """A region that is not known to have images needs the account that has a copy."""
    values = {"region": "us-gov-west-1", "role": "arn:aws-us-gov:iam::123456789012:role/a"}
    with pytest.raises(UsageError, match="is not known to have SageMaker's Triton containers"):
        endpoint_spec(tmp_path, **values)
    assert endpoint_spec(tmp_path, **values, variant={"image": {"account": "111122223333"}}).region == "us-gov-west-1"


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths start from the folder of the file."""
    (tmp_path / "request.json").write_text("{}")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    path = write_endpoint(tmp_path, repository="releases", smoke_test={"body": "request.json"})
    spec = read_endpoint(Path("..", path.name))
    assert Path(spec.repository).resolve() == tmp_path / "releases"
    assert spec.smoke_test is not None
    assert Path(spec.smoke_test.body).resolve() == tmp_path / "request.json"


def test_documented_example(tmp_path: Path) -> None:
    """The documentation has an endpoint that is read, and shows every key."""
    text = (ROOT / "docs" / "sagemaker.md").read_text()
    (example,) = re.findall(r"^```yaml\n(name: bert-prod.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "endpoint.yaml").write_text(example)
    (tmp_path / "request.json").write_text("{}")
    assert [variant.name for variant in read_endpoint(tmp_path / "endpoint.yaml").all_variants] == ["main", "next"]
    kinds = (EndpointSpec, VariantSpec, ImageOverride, Environment, AutoScaling, DataCapture, SmokeTest, Vpc)
    keys = {key for kind in kinds for key in kind.model_fields}
    assert not {key for key in keys if not re.search(rf"\b{key}\b", example)}
    (job,) = re.findall(r"^```yaml\n(recommendation_job:.*?)^```$", text, re.MULTILINE | re.DOTALL)
    keys = {key for kind in (RecommendationJob, Phase, Stairs, StoppingConditions) for key in kind.model_fields}
    assert not {key for key in keys - {"variant"} if not re.search(rf"\b{key}\b", job)}
    (tmp_path / "endpoint.yaml").write_text(example.replace(example[example.index("recommendation_job:") :], job))
    job_spec = read_endpoint(tmp_path / "endpoint.yaml").recommendation_job
    assert job_spec is not None
    assert job_spec.is_advanced
