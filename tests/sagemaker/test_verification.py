"""Whether an endpoint serves what was deployed: against moto, and against what only AWS says (botocore's Stubber)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.session import Session
from botocore.stub import Stubber

from plansmith.errors import EnvironmentFault
from plansmith.sagemaker.verification import EndpointLimits, EndpointVerification, verify_endpoint

from ..support.sagemaker.cloudwatch import IMAGE, REGION, CloudWatchAccount, Endpoint, cloudwatch_account

__all__ = ["cloudwatch_account"]

pytestmark = pytest.mark.slow

NO_LIMITS = EndpointLimits()
ARN = "arn:aws:sagemaker:us-east-1:123456789012"

Services = dict[str, Stubber]


@pytest.fixture
def endpoint(cloudwatch_account: CloudWatchAccount) -> Endpoint:
    """An endpoint with its archive."""
    return cloudwatch_account.endpoint(data=cloudwatch_account.archive())


def verify(endpoint: Endpoint, limits: EndpointLimits = NO_LIMITS) -> list[str]:
    """The problems of the last hour."""
    since = datetime.now(UTC) - timedelta(hours=1)
    verification = verify_endpoint(endpoint.name, REGION, limits, since)
    assert EndpointVerification.model_validate_json(verification.model_dump_json()) == verification
    return [finding.problem for finding in verification.findings]


def test_requests_and_limits(endpoint: Endpoint) -> None:
    """Requests that ended with 5XX are a finding, and limits that are not kept."""
    endpoint.serve(failures=2)
    failures = "2 of 20 requests ended with 5XX or without an answer"
    assert verify(endpoint) == [failures]
    assert verify(endpoint, EndpointLimits(error_rate=0.1, p99_ms=40.0)) == [failures]
    assert verify(endpoint, EndpointLimits(error_rate=0.05, p99_ms=39.5)) == [
        failures,
        "10 % of its requests failed, and 5 % may",
        "the p99 of the container's latency is 40 ms, and 39.5 ms is the limit",
    ]


def test_no_requests(endpoint: Endpoint) -> None:
    """No requests are right without limits, and nothing to compare a limit with."""
    assert verify(endpoint) == []
    (problem,) = verify(endpoint, EndpointLimits(p99_ms=1000.0))
    assert problem.startswith("there is nothing to compare with a limit: ")


def test_missing_archive(cloudwatch_account: CloudWatchAccount, endpoint: Endpoint) -> None:
    """An archive, a prefix or a bucket that is gone is a finding: no instance could start."""
    model = cloudwatch_account.sagemaker.describe_model(ModelName=f"{endpoint.name}-blue")
    data = model["PrimaryContainer"]["ModelDataUrl"]
    bucket = data.split("/")[2]
    many = cloudwatch_account.endpoint(data=f"s3://{bucket}/many/", multi_model=True)
    cloudwatch_account.s3.put_object(Bucket=bucket, Key="ranker.tar.gz.old", Body=b"")
    cloudwatch_account.s3.delete_object(Bucket=bucket, Key="ranker.tar.gz")
    assert verify(endpoint) == [f"{data} is gone, so that no instance can start"]
    assert verify(many) == [f"s3://{bucket}/many/ is gone, so that no instance can start"]
    cloudwatch_account.s3.put_object(Bucket=bucket, Key="many/bert-0.tar.gz", Body=b"")
    assert verify(many) == []
    for key in ("ranker.tar.gz.old", "many/bert-0.tar.gz"):
        cloudwatch_account.s3.delete_object(Bucket=bucket, Key=key)
    cloudwatch_account.s3.delete_bucket(Bucket=bucket)
    assert verify(endpoint) == [f"{data} is gone: there is no such bucket"]


def test_missing_model(cloudwatch_account: CloudWatchAccount, endpoint: Endpoint) -> None:
    """A model that was deleted is a finding."""
    cloudwatch_account.sagemaker.delete_model(ModelName=f"{endpoint.name}-blue")
    (problem,) = verify(endpoint)
    assert problem == f"SageMaker has no model {endpoint.name}-blue any more, so that no instance can start"


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> Iterator[Services]:
    """The services of AWS, with prepared answers."""
    keys = {"aws_access_key_id": "id", "aws_secret_access_key": "key", "region_name": REGION}
    clients = {name: Session().create_client(name, **keys) for name in ("sagemaker", "cloudwatch", "s3")}
    monkeypatch.setattr(
        "plansmith.system.aws.service.AwsService._connect", lambda service: clients[vars(service)["_name"]]
    )
    stubbers = {name: Stubber(client) for name, client in clients.items()}
    for stubber in stubbers.values():
        stubber.activate()
    yield stubbers
    for client in clients.values():
        client.close()


def describe(services: Services, *, status: str = "InService", failure: str = "", **running: Any) -> None:
    """Have SageMaker describe an endpoint whose one variant differs in this from what was deployed."""
    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    variant = {
        "VariantName": "blue",
        "DeployedImages": [{"SpecifiedImage": IMAGE, "ResolvedImage": f"{IMAGE}@sha256:0"}],
        "CurrentWeight": 1.0,
        "DesiredWeight": 1.0,
        "CurrentInstanceCount": 2,
        "DesiredInstanceCount": 2,
    }
    endpoint = {
        "EndpointName": "ranker",
        "EndpointArn": f"{ARN}:endpoint/ranker",
        "EndpointConfigName": "ranker-1",
        "EndpointStatus": status,
        "CreationTime": hour_ago,
        "LastModifiedTime": hour_ago,
        "ProductionVariants": [{**variant, **running}],
    }
    row = {"VariantName": "blue", "ModelName": "ranker-1", "InitialVariantWeight": 1.0, "InstanceType": "ml.g5.xlarge"}
    configuration = {
        "EndpointConfigName": "ranker-1",
        "EndpointConfigArn": f"{ARN}:endpoint-config/ranker-1",
        "ProductionVariants": [row],
        "CreationTime": hour_ago,
    }
    model = {
        "ModelName": "ranker-1",
        "ModelArn": f"{ARN}:model/ranker-1",
        "CreationTime": hour_ago,
        "PrimaryContainer": {"Image": IMAGE, "ModelDataUrl": "s3://models/ranker.tar.gz"},
    }
    reason = {"FailureReason": failure} if failure else {}
    services["sagemaker"].add_response("describe_endpoint", {**endpoint, **reason})
    services["sagemaker"].add_response("describe_endpoint_config", configuration)
    services["sagemaker"].add_response("describe_model", model)
    services["cloudwatch"].add_response("get_metric_data", {"MetricDataResults": []})


@pytest.mark.parametrize(
    ("running", "problem"),
    [
        ({"CurrentWeight": 0.0, "DesiredWeight": 1.0}, "its weight is 0, and is changing to 1"),
        ({"CurrentWeight": 0.2, "DesiredWeight": 0.2}, "its weight is 0.2, and it was deployed with 1"),
        ({"CurrentInstanceCount": 1}, "1 of 2 instances run"),
        ({"DeployedImages": [{"SpecifiedImage": "other:1"}]}, f"its instances run other:1, and its model has {IMAGE}"),
        ({"status": "Failed", "failure": "No ping."}, "it is Failed and not InService: No ping."),
    ],
)
def test_differences(running: dict[str, Any], problem: str, services: Services) -> None:
    """What runs differently from what was deployed is a finding."""
    describe(services, **running)
    services["s3"].add_response("list_objects_v2", {"Contents": [{"Key": "ranker.tar.gz"}]})
    verification = verify_endpoint("ranker", REGION, NO_LIMITS)
    assert [finding.problem for finding in verification.findings] == [problem]
    assert verification.metrics.start == verification.endpoint.changed.replace(second=0, microsecond=0)


def test_missing_variant(services: Services) -> None:
    """A variant of the configuration that does not run is a finding."""
    describe(services, VariantName="green")
    services["s3"].add_response("list_objects_v2", {"Contents": []})
    verification = verify_endpoint("ranker", REGION, NO_LIMITS)
    assert [(finding.variant, finding.problem) for finding in verification.findings] == [
        ("blue", "its configuration has it, and it does not run")
    ]


def test_unreadable_archive(services: Services) -> None:
    """An archive that may not be seen is a note, and no finding."""
    describe(services)
    services["s3"].add_client_error("list_objects_v2", "AccessDenied", "Access Denied", http_status_code=403)
    verification = verify_endpoint("ranker", REGION, NO_LIMITS)
    assert verification.findings == ()
    (note,) = verification.notes
    assert note.startswith("blue: whether its archive is there could not be seen: ")
    assert "s3:ListObjectsV2" in note or "s3:ListBucket" in note


def test_missing_permission(services: Services) -> None:
    """A permission that is missing is named."""
    services["sagemaker"].add_client_error("describe_endpoint", "AccessDeniedException", "", http_status_code=400)
    with pytest.raises(EnvironmentFault, match="not allowed sagemaker:DescribeEndpoint"):
        verify_endpoint("ranker", REGION, NO_LIMITS)
