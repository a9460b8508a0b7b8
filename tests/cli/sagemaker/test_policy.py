"""`plansmith sagemaker policy` as a person types it."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import Any

import pytest

from plansmith.triton.repository.repository import ModelRepository

from ...support.cli.in_process import InProcess
from ...support.sagemaker.endpoints import ACCOUNT, write_endpoint
from ...support.sagemaker.releases import publish_onnx

CPU = {"models": ["tiny"], "instance_type": "ml.m5.large"}


@pytest.fixture
def releases(run: InProcess) -> None:
    """A release, beside the endpoint's file."""
    publish_onnx(ModelRepository(run.folder / "artifacts" / "repository"), run.folder / "made", "tiny")


def statements(run: InProcess, name: str, **changes: Any) -> dict[str, Any]:
    """The statements of a policy by their names."""
    write_endpoint(run.folder, **{"variant": CPU, **changes})
    answer = run("sagemaker", "policy", "endpoint.yaml", "--only", name)
    assert answer.status == 0, answer
    return {statement["Sid"]: statement for statement in answer.document["Statement"]}


@pytest.mark.usefixtures("releases")
def test_deployer(run: InProcess) -> None:
    """The deployer's policy names this endpoint's resources, and those of no other one."""
    policy = statements(run, "deployer")
    for name, statement in policy.items():
        if name not in {"List", "ReadAlarms", "ReadScaling"}:
            assert all(ACCOUNT in arn or ":s3:::models" in arn for arn in statement["Resource"])
    (pattern,) = policy["Configurations"]["Resource"]
    start = f"arn:aws:sagemaker:us-east-1:{ACCOUNT}:endpoint-config/bert"
    assert fnmatch(f"{start}-0123456789ab", pattern)
    assert not fnmatch(f"{start}-prod-0123456789ab", pattern)
    assert policy["Alarms"]["Resource"][1] == f"arn:aws:cloudwatch:us-east-1:{ACCOUNT}:alarm:plansmith-bert-*"
    assert "ScalingRole" not in policy
    scaled = {**CPU, "auto_scaling": {"max_instances": 3, "cpu_utilization": 60}}
    assert "ScalingRole" in statements(run, "deployer", variant=scaled)
    assert not (run.folder / "artifacts" / "sagemaker").exists(), "nothing is written"


@pytest.mark.usefixtures("releases")
def test_execution_role(run: InProcess) -> None:
    """The execution role reads archives and images, and writes logs, captured data and network interfaces."""
    policy = statements(
        run,
        "execution",
        data_capture={"to": "s3://captured/here", "kms_key": "arn:aws:kms:us-east-1:123456789012:key/a"},
        vpc={"subnets": ["subnet-0a"], "security_groups": ["sg-0a"]},
        bucket_kms_key="alias/archives",
    )
    assert policy["Archives"]["Resource"] == ["arn:aws:s3:::models/endpoints/bert/*"]
    assert policy["Images"]["Resource"] == ["arn:aws:ecr:us-east-1:763104351884:repository/sagemaker-tritonserver"]
    assert policy["Logs"]["Resource"][0].endswith(":log-group:/aws/sagemaker/Endpoints/bert")
    assert policy["Capture"]["Resource"] == ["arn:aws:s3:::captured/here/*"]
    assert policy["EncryptCapture"]["Resource"] == ["arn:aws:kms:us-east-1:123456789012:key/a"]
    assert policy["DecryptArchives"]["Resource"] == ["arn:aws:kms:us-east-1:123456789012:key/*"]
    assert "ec2:CreateNetworkInterface" in policy["Network"]["Action"]


def test_policies_without_releases(run: InProcess) -> None:
    """Policies that name no image need no releases; the operator's changes nothing."""
    write_endpoint(run.folder, variant=CPU)
    trust = run("sagemaker", "policy", "endpoint.yaml", "--only", "trust").document
    assert trust["Statement"][0]["Principal"] == {"Service": "sagemaker.amazonaws.com"}
    actions = {action for statement in statements(run, "operator").values() for action in statement["Action"]}
    changing = ("Create", "Update", "Delete", "Put", "Add", "Register")
    assert not [action for action in actions if action.partition(":")[2].startswith(changing)]
    refused = run("sagemaker", "policy", "endpoint.yaml", "--only", "execution")
    assert (refused.status, refused.stdout) == (7, "")
    assert "there is no model repository" in refused.message
