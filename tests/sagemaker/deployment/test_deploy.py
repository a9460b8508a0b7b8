"""Deployments against SageMaker's control plane: created, changed, left alone, and rolled back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import boto3
import pytest

from plansmith.errors import EnvironmentFault, RepositoryError, ServedCheckError, UsageError
from plansmith.sagemaker.deployment.account import Account
from plansmith.sagemaker.deployment.deploy import EndpointStatus, delete, plan_deletion, read_status

from ...support.sagemaker.account import IMPATIENT, QUICK, AwsAccount

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("sagemaker-control-plane")]

SCALING = {"max_instances": 4, "invocations_per_instance": 600}
NOTHING: dict[str, list[str]] = {"models": [], "configs": []}


@pytest.fixture
def smoke_test(account: AwsAccount) -> dict[str, Any]:
    """A spec's smoke test with a request."""
    (account.folder / "request.json").write_text('{"inputs": []}')
    return {"smoke_test": {"body": "request.json"}}


def status_of(account: AwsAccount) -> EndpointStatus:
    with Account(account.spec()) as services:
        status = read_status(services)
    assert status is not None
    return status


def test_first_deployment(account: AwsAccount) -> None:
    """A first deployment comes into service, and a second one changes nothing."""
    account.deploy()
    assert account.plane.changes() == ["create_model", "create_endpoint_config", "create_endpoint", "add_tags"]
    assert account.config() == account.plan().plan.config
    assert len(account.keys()) == 1
    assert "Creating: main 1 of 1 instances" in account.progress
    account.deploy()
    assert account.plane.changes() == []
    assert "put_object" not in account.plane.requests


def test_new_release(account: AwsAccount) -> None:
    """A new release updates the endpoint, and the older one is switched back to."""
    account.deploy()
    before = account.config()
    account.deploy("new")
    assert account.plane.changes() == ["create_model", "create_endpoint_config", "update_endpoint", "add_tags"]
    assert account.config() != before
    account.deploy()
    assert account.plane.changes() == ["update_endpoint", "add_tags"]
    assert account.config() == before


def test_failed_first_deployment(account: AwsAccount) -> None:
    """A first deployment that fails leaves nothing but the archive, whose name holds its content."""
    account.plane.failures.append("The container did not pass the ping health check")
    with pytest.raises(ServedCheckError, match="did not pass the ping health check") as failed:
        account.deploy()
    assert "it was the first deployment" in failed.value.message
    assert f"aws logs tail /aws/sagemaker/Endpoints/{account.name} --region us-east-1" in failed.value.remedy
    assert account.describe() is None
    assert account.resources() == NOTHING
    assert len(account.keys()) == 1


def test_failed_update(account: AwsAccount) -> None:
    """An update that fails leaves the endpoint with what it served, which SageMaker does by itself."""
    account.deploy()
    before, resources = account.config(), account.resources()
    account.plane.failures.append("No space left on device")
    with pytest.raises(ServedCheckError, match=r"did not take .* No space left on device"):
        account.deploy("new")
    assert account.config() == before
    assert account.plane.changes().count("update_endpoint") == 1
    assert account.resources() == resources


def test_smoke_test(account: AwsAccount, smoke_test: dict[str, Any]) -> None:
    """The endpoint has to answer, even where nothing changed."""
    (result,) = account.deploy(**smoke_test)
    assert (result.subject, Path(result.request).name, result.compared) == (account.name, "request.json", False)
    account.deploy(**smoke_test)
    assert account.plane.requests.count("invoke_endpoint") == 1
    assert account.plane.changes() == []


def test_failed_smoke_test(account: AwsAccount, smoke_test: dict[str, Any]) -> None:
    """An endpoint that does not answer rolls back to what it served, with the instances that it scaled to."""
    scaled: dict[str, Any] = {"variant": {"auto_scaling": SCALING}, **smoke_test}
    account.deploy(**scaled)
    before, resources = account.config(), account.resources()
    account.plane.refusals["invoke_endpoint"].append(("ModelError", "400: unexpected inference input 'x'"))
    with pytest.raises(ServedCheckError, match="unexpected inference input 'x'") as failed:
        account.deploy("new", **scaled)
    assert f"the endpoint serves {before} again, as before" in failed.value.message
    assert account.config() == before
    assert account.plane.changes()[-3:] == ["update_endpoint", "delete_endpoint_config", "delete_model"]
    assert account.resources() == resources
    forth, back = account.plane.updates
    assert forth["RetainAllVariantProperties"] is True
    assert back == {**forth, "EndpointConfigName": before}


def test_permission_to_invoke(account: AwsAccount, smoke_test: dict[str, Any]) -> None:
    """A permission that the smoke test lacks is named."""
    denied = "User: arn:aws:iam::123456789012:user/a is not authorized to perform: sagemaker:InvokeEndpoint"
    account.plane.refusals["invoke_endpoint"].append(("AccessDeniedException", denied))
    with pytest.raises(EnvironmentFault, match="not authorized to perform: sagemaker:InvokeEndpoint"):
        account.deploy(**smoke_test)


def test_large_request(account: AwsAccount, smoke_test: dict[str, Any]) -> None:
    """A request that SageMaker does not take is refused before anything is created."""
    with (account.folder / "request.json").open("wb") as file:
        file.truncate((6 << 20) + 1)
    with pytest.raises(UsageError, match="has 6291457 bytes, and SageMaker takes 6"):
        account.deploy(**smoke_test)
    assert account.plane.changes() == []


NOT_ALLOWED = (
    "User: arn:aws:iam::123456789012:user/a is not authorized to perform: iam:PassRole on resource:"
    " arn:aws:iam::123456789012:role/endpoint because no identity-based policy allows it"
)
EXCEEDED = (
    "The account-level service limit 'ml.g5.xlarge for endpoint usage' is 0 Instances, with current utilization of 0"
    " Instances and a request delta of 1 Instances."
)


@pytest.mark.parametrize(
    ("operation", "code", "answer", "message", "remedy"),
    [
        (
            "create_model",
            "AccessDeniedException",
            NOT_ALLOWED,
            "these credentials are not allowed iam:PassRole on arn:aws:iam::123456789012:role/endpoint",
            "plansmith sagemaker policy SPEC.yaml",
        ),
        (
            "create_endpoint",
            "ResourceLimitExceeded",
            EXCEEDED,
            "the quota 'ml.g5.xlarge for endpoint usage' of this account in us-east-1 is exceeded",
            "servicequotas/home/services/sagemaker/quotas?region=us-east-1",
        ),
        ("create_model", "SomethingNewException", "the moon is full", "SomethingNewException: the moon is full", ""),
    ],
    ids=["permission", "quota", "unknown"],
)
def test_refusal(account: AwsAccount, operation: str, code: str, answer: str, message: str, remedy: str) -> None:
    """What AWS refuses is named, and what was begun is undone."""
    account.plane.refusals[operation].append((code, answer))
    with pytest.raises(EnvironmentFault) as refused:
        account.deploy()
    assert message in refused.value.message
    assert remedy in refused.value.remedy
    assert "no endpoint was created" in refused.value.message
    assert account.resources() == NOTHING


@pytest.mark.parametrize("times", [3, 5])
def test_throttling(account: AwsAccount, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Throttling while an endpoint is created is waited out, a few times in a row."""

    def throttle(line: str) -> None:
        if line.startswith("create endpoint bert"):
            account.plane.refusals["describe_endpoint"] += [("ThrottlingException", "Rate exceeded")] * times

    monkeypatch.setattr(account, "progress", _Listener(throttle))
    if times < 5:
        account.deploy()
        assert account.describe() is not None
    else:
        with pytest.raises(EnvironmentFault, match="went on to answer ThrottlingException"):
            account.deploy()
        assert account.resources() == NOTHING


class _Listener(list[str]):
    """Lines of progress, which something listens to."""

    def __init__(self, listen: Any) -> None:
        super().__init__()
        self._listen = listen

    def append(self, line: str) -> None:
        self._listen(line)
        super().append(line)


def test_eventual_consistency(account: AwsAccount) -> None:
    """What was created a moment ago and is not known everywhere is requested again."""
    answer = ("ValidationException", "Could not find endpoint configuration")
    account.plane.refusals["create_endpoint"] += [answer] * 2
    account.deploy()
    assert account.plane.requests.count("create_endpoint") == 3
    assert account.describe() is not None


def test_endpoint_of_somebody_else(account: AwsAccount) -> None:
    """An endpoint that plansmith did not create is neither changed nor deleted, and shown as such."""
    client = boto3.client("sagemaker")
    variant = {"VariantName": "parts", "InstanceType": "ml.m5.large", "InitialInstanceCount": 1}
    client.create_endpoint_config(EndpointConfigName=f"{account.name}-own", ProductionVariants=[variant])
    client.create_endpoint(EndpointName=account.name, EndpointConfigName=f"{account.name}-own")
    client.close()
    with pytest.raises(RepositoryError, match="was not created by plansmith"):
        account.deploy()
    with Account(account.spec()) as services, pytest.raises(RepositoryError, match="was not created by plansmith"):
        plan_deletion(services, with_archives=False)
    assert account.plane.changes() == []
    status = status_of(account)
    assert not status.is_owned
    assert [(variant.name, variant.model) for variant in status.variants] == [("parts", None)]


def test_time_limit(account: AwsAccount) -> None:
    """A deployment that takes too long goes on, and the next one waits for it."""
    with pytest.raises(EnvironmentFault, match="is still Creating after") as late:
        account.deploy(polling=IMPATIENT)
    assert late.value.transient
    assert account.resources()["configs"]
    account.deploy()
    assert account.plane.changes() == ["add_tags"]
    assert account.config()


def test_scaled_variant(account: AwsAccount) -> None:
    """A variant scales once the endpoint is in service, and the status shows it."""
    scaled: dict[str, Any] = {"variant": {"auto_scaling": SCALING}}
    account.deploy(**scaled)
    assert account.plane.changes()[-3:-1] == ["register_scalable_target", "put_scaling_policy"]
    account.deploy(**scaled)
    assert account.plane.changes() == []
    status = status_of(account)
    assert status.is_owned
    assert status.events
    (variant,) = status.variants
    assert (variant.name, variant.min_instances, variant.max_instances, variant.instances) == ("main", 1, 4, 1)
    assert variant.model is not None
    assert variant.releases == ("bert@3",)
    assert variant.model.image.endswith("/sagemaker-tritonserver:26.05-py3")
    assert variant.model.data == f"s3://{account.bucket}/{account.keys()[0]}"
    account.plane.refusals["describe_scaling_activities"].append(("AccessDeniedException", "not authorized"))
    status = status_of(account)
    assert status.variants == (variant,)
    assert "DescribeScalingActivities" in status.unknown[0]


def test_scaling_after_a_failed_update(account: AwsAccount) -> None:
    """A variant that had to stop scaling for an update scales again as before when that fails."""
    scaled: dict[str, Any] = {"variant": {"auto_scaling": SCALING}}
    account.deploy(**scaled)
    account.plane.failures.append("No capacity")
    with pytest.raises(ServedCheckError):
        account.deploy(variant={"auto_scaling": SCALING, "instance_type": "ml.g5.2xlarge"})
    assert "deregister_scalable_target" in account.plane.changes()
    account.deploy(**scaled)
    assert account.plane.changes() == [], "limits and policy are there"


def test_another_archive_of_many(account: AwsAccount) -> None:
    """The status shows the releases of a multi-model variant, whose archives change without the endpoint."""
    for version in (1, 2):
        variant = {"multi_model": True, "models": [f"bert@{version}"]}
        account.deploy(str(version), variant=variant, archive_values={"releases": (f"bert@{version}",)})
    assert account.plane.changes() == ["add_tags"]
    assert [variant.releases for variant in status_of(account).variants] == [("bert@2",)]


def test_several_variants(account: AwsAccount) -> None:
    """Two variants, data capture and scaling come into service together."""
    base = {"models": ["bert"], "instance_type": "ml.g5.xlarge"}
    rows = [{**base, "name": "blue", "weight": 3, "auto_scaling": SCALING}, {**base, "name": "green"}]
    values: dict[str, Any] = {
        "variants": rows,
        "data_capture": {"to": f"s3://{account.bucket}/captured", "percent": 20},
    }
    account.deploy(**values)
    client = boto3.client("sagemaker")
    config = client.describe_endpoint_config(EndpointConfigName=account.config())
    client.close()
    assert [variant["VariantName"] for variant in config["ProductionVariants"]] == ["blue", "green"]
    assert config["DataCaptureConfig"]["InitialSamplingPercentage"] == 20
    account.deploy(**values)
    assert account.plane.changes() == []


def test_shadow_variant(account: AwsAccount) -> None:
    """A shadow variant comes into service beside the production variant, and goes again."""
    shadow = {"name": "next", "models": ["bert@4"], "instance_type": "ml.g5.xlarge", "weight": 0.5}
    account.deploy(shadow_variants=[shadow])
    assert [(entry.name, entry.shadow) for entry in status_of(account).variants] == [("main", False), ("next", True)]
    account.deploy()
    assert account.plane.changes()[-2:] == ["update_endpoint", "add_tags"]
    assert [variant.name for variant in status_of(account).variants] == ["main"]


def test_deletion(account: AwsAccount) -> None:
    """A deletion takes all that was created for the endpoint, its archives on request, and nothing else."""
    for content in ("", "new"):
        account.deploy(content, variant={"auto_scaling": SCALING})
    client = boto3.client("sagemaker")
    client.create_model(ModelName=f"{account.name}-own", ExecutionRoleArn="arn:aws:iam::123456789012:role/endpoint")
    client.close()
    s3 = boto3.client("s3")
    s3.put_object(Bucket=account.bucket, Key=f"endpoints/{account.name}/notes.txt", Body=b"somebody's")
    s3.close()
    with Account(account.spec()) as services:
        plan = plan_deletion(services, with_archives=True)
        delete(services, plan, QUICK, account.progress.append)
        assert plan_deletion(services, with_archives=True).count == 0
    assert [call.operation for call in plan.calls] == [
        *("deregister_scalable_target", "delete_endpoint"),
        *["delete_endpoint_config"] * 2,
        *["delete_model"] * 2,
    ]
    assert account.describe() is None
    assert account.resources() == {"models": [f"{account.name}-own"], "configs": []}
    assert account.keys() == [f"endpoints/{account.name}/notes.txt"]


def test_endpoint_that_is_being_deleted(account: AwsAccount) -> None:
    """An endpoint that is being deleted already is waited for before what it needs is deleted."""
    account.deploy()
    account.plane.deleting[account.name] = 3
    account.progress.clear()
    with Account(account.spec()) as services:
        plan = plan_deletion(services, with_archives=True)
        delete(services, plan, QUICK, account.progress.append)
    assert [call.operation for call in plan.calls] == ["delete_endpoint_config", "delete_model"]
    assert account.progress[0].startswith("Deleting")
    assert account.describe() is None
    assert account.keys() == []


def test_bucket_of_another_region(account: AwsAccount) -> None:
    """A bucket of another region, of archives or of captured data, or that cannot be read, is refused."""
    client = boto3.client("s3", region_name="eu-west-1")
    client.create_bucket(Bucket=f"{account.bucket}-eu", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    client.close()
    with pytest.raises(RepositoryError, match="is in eu-west-1, and the endpoint in us-east-1"):
        account.deploy(bucket=f"s3://{account.bucket}-eu/a")
    with pytest.raises(RepositoryError, match=r"(?s)is in eu-west-1, .* captures data in its own region only"):
        account.deploy(data_capture={"to": f"s3://{account.bucket}-eu/captured"})
    account.plane.refusals["head_bucket"].append(("AccessDenied", "Access Denied"))
    with pytest.raises(RepositoryError, match="these credentials are not allowed s3:ListBucket"):
        account.deploy()
    assert account.plane.changes() == []


def test_object_blocks_archive_place(account: AwsAccount) -> None:
    """An object with the key of an archive is not overwritten."""
    key = account.plan().plan.uploads[0].key
    client = boto3.client("s3")
    client.put_object(Bucket=account.bucket, Key=key, Body=b"other")
    with pytest.raises(RepositoryError, match="is there already, with other content"):
        account.deploy()
    assert client.get_object(Bucket=account.bucket, Key=key)["Body"].read() == b"other"
    client.close()


def test_role(account: AwsAccount) -> None:
    """A role of another account, or that does not exist or trust SageMaker, is refused; an unreadable one is not."""
    client = boto3.client("iam")
    untrusted = f"untrusted-{account.name}"
    client.create_role(RoleName=untrusted, AssumeRolePolicyDocument='{"Statement": []}')
    client.close()
    for role, message in (
        ("arn:aws:iam::999999999999:role/endpoint", "is of another account than these credentials"),
        ("arn:aws:iam::123456789012:role/absent", "there is no role"),
        (f"arn:aws:iam::123456789012:role/{untrusted}", "cannot be assumed by SageMaker"),
    ):
        with pytest.raises(UsageError, match=message):
            account.deploy(role=role)
    assert account.plane.changes() == []
    account.plane.refusals["get_role"].append(("AccessDenied", "not authorized to perform: iam:GetRole"))
    account.deploy()


def test_dry_run_without_credentials(account: AwsAccount, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dry run without credentials asks nothing of AWS, and says so."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    account.plane.requests.clear()
    planned = account.plan(dry_run=True)
    assert planned.is_assumed
    assert account.plane.requests == []
    assert len(planned.plan.calls) == 4
    with pytest.raises(EnvironmentFault, match="no usable AWS credentials"):
        account.plan()
