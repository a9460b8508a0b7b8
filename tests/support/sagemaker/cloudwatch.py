"""Endpoints on moto, and metrics in its CloudWatch as SageMaker and its instances would put them there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

REGION = "us-east-1"
IMAGE = "763104351884.dkr.ecr.us-east-1.amazonaws.com/sagemaker-tritonserver:26.05-py3"
INVOCATIONS, INSTANCES = "AWS/SageMaker", "/aws/sagemaker/Endpoints"

LATENCIES = (10_000.0, 12_000.0, 14_000.0, 40_000.0)
"""Microseconds of the four requests of each minute."""


@contextmanager
def moto_percentiles() -> Iterator[None]:
    """Have moto compute percentiles, which it does not know: of the values that were put there one by one."""
    from moto.cloudwatch.models import Statistics

    original = Statistics.get_statistics_for_type

    def statistic(self: Any, name: str) -> Any:
        if not name.startswith("p"):
            return original(self, name)
        values = sorted(self.metric_single_values_list)
        return values[max(math.ceil(len(values) * float(name[1:]) / 100), 1) - 1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Statistics, "get_statistics_for_type", statistic)
        yield


@dataclass
class CloudWatchAccount:
    """Clients of moto's server; names are random, so that each test has them for itself."""

    address: str
    sagemaker: Any = field(init=False)
    cloudwatch: Any = field(init=False)
    s3: Any = field(init=False)

    def __post_init__(self) -> None:
        import boto3

        for service in ("sagemaker", "cloudwatch", "s3"):
            setattr(self, service, boto3.client(service, endpoint_url=self.address, region_name=REGION))

    def close(self) -> None:
        """Delete alarms, forget metrics, which moto searches for each query, and close connections."""
        from moto.cloudwatch.models import cloudwatch_backends

        names = [alarm["AlarmName"] for alarm in self.cloudwatch.describe_alarms()["MetricAlarms"]]
        self.cloudwatch.delete_alarms(AlarmNames=names)
        for regions in cloudwatch_backends.values():
            regions[REGION].metric_data.clear()
        for client in (self.sagemaker, self.cloudwatch, self.s3):
            client.close()

    def endpoint(self, *variants: str, data: str = "s3://models/ranker.tar.gz", multi_model: bool = False) -> Endpoint:
        """An endpoint in service, whose variants have two instances each."""
        name = f"ranker-{uuid4().hex[:12]}"
        rows = []
        for variant in variants or ("blue",):
            model = f"{name}-{variant}"
            container = {"Image": IMAGE, "ModelDataUrl": data, **({"Mode": "MultiModel"} if multi_model else {})}
            role = "arn:aws:iam::123456789012:role/serving"
            self.sagemaker.create_model(ModelName=model, PrimaryContainer=container, ExecutionRoleArn=role)
            row = {"VariantName": variant, "ModelName": model, "InitialVariantWeight": 1, "InitialInstanceCount": 2}
            rows.append({**row, "InstanceType": "ml.g4dn.xlarge"})
        self.sagemaker.create_endpoint_config(EndpointConfigName=name, ProductionVariants=rows)
        self.sagemaker.create_endpoint(EndpointName=name, EndpointConfigName=name)
        return Endpoint(self, name)

    def archive(self) -> str:
        """The URI of an archive in a bucket of its own."""
        bucket = f"models-{uuid4().hex[:12]}"
        self.s3.create_bucket(Bucket=bucket)
        self.s3.put_object(Bucket=bucket, Key="ranker.tar.gz", Body=b"archive")
        return f"s3://{bucket}/ranker.tar.gz"


@dataclass(frozen=True)
class Endpoint:
    """An endpoint of an account."""

    account: CloudWatchAccount
    name: str

    def put(self, variant: str, namespace: str, metric: str, time: datetime, values: Sequence[float]) -> None:
        """Values of one moment, one by one."""
        rows = self._rows(variant, metric, time, values)
        self.account.cloudwatch.put_metric_data(Namespace=namespace, MetricData=rows)

    def _rows(self, variant: str, metric: str, time: datetime, values: Sequence[float]) -> list[dict[str, Any]]:
        named = {"EndpointName": self.name, "VariantName": variant}
        dimensions = [{"Name": name, "Value": value} for name, value in named.items()]
        return [{"MetricName": metric, "Dimensions": dimensions, "Timestamp": time, "Value": value} for value in values]

    def serve(self, variant: str = "blue", *, minutes: int = 5, failures: int = 0, latency: float = 1.0) -> datetime:
        """Answer four requests a minute until the last full minute, which is returned.

        Args:
            variant: of the endpoint.
            minutes: how many.
            failures: how many requests, the first ones, end with 5XX.
            latency: multiplies the latencies.
        """
        last = datetime.now(UTC).replace(second=0, microsecond=0)
        rows: dict[str, list[dict[str, Any]]] = {INVOCATIONS: [], INSTANCES: []}
        for age in range(minutes, 0, -1):
            failed = [1.0 if age == minutes and number < failures else 0.0 for number in range(4)]
            values = {
                INVOCATIONS: {
                    "Invocations": [1.0] * 4,
                    "InvocationsPerInstance": [0.5] * 4,
                    "Invocation4XXErrors": [0.0] * 4,
                    "Invocation5XXErrors": failed,
                    "InvocationModelErrors": failed,
                    "ModelLatency": [latency * factor for factor in LATENCIES],
                    "OverheadLatency": [2_000.0] * 4,
                },
                INSTANCES: {
                    "CPUUtilization": [150.0, 152.0],
                    "GPUUtilization": [42.0, 44.0],
                    "GPUMemoryUtilization": [61.0, 63.0],
                },
            }
            for namespace, metrics in values.items():
                for metric, numbers in metrics.items():
                    rows[namespace] += self._rows(variant, metric, last - timedelta(minutes=age), numbers)
        for namespace, data in rows.items():
            self.account.cloudwatch.put_metric_data(Namespace=namespace, MetricData=data)
        return last


@pytest.fixture
def cloudwatch_account(aws: None, s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudWatchAccount]:
    """An account on moto, which is all of AWS in the environment."""
    del aws
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    with moto_percentiles():
        opened = CloudWatchAccount(s3_server)
        yield opened
        opened.close()
