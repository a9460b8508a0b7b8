"""An account of AWS as those use it who put models there: queues, buckets, a model registry that tells of itself."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

CHANGE = "SageMaker Model Package State Change"


class Account:
    """Clients of the server at an address; names are made up, so that tests have it for themselves."""

    def __init__(self, address: str) -> None:
        import boto3

        self.address = address
        self._clients = {
            name: boto3.client(name, endpoint_url=address) for name in ("sqs", "s3", "events", "sagemaker")
        }

    def __getattr__(self, name: str) -> Any:
        """The client of a service."""
        return self._clients[name]

    def close(self) -> None:
        """Let go of connections."""
        for client in self._clients.values():
            client.close()

    def queue(self) -> Queue:
        """An empty queue, whose messages come again at once unless they are deleted."""
        response = self.sqs.create_queue(QueueName=f"queue-{uuid.uuid4().hex}", Attributes={"VisibilityTimeout": "0"})
        return Queue(self, response["QueueUrl"])

    def bucket(self) -> str:
        """The name of an empty bucket."""
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        self.s3.create_bucket(Bucket=name)
        return name

    def registry(self, queue: Queue, group: str = "ranker") -> ModelRegistry:
        """A group of model packages; EventBridge puts what happens to it into a queue."""
        rule = f"rule-{uuid.uuid4().hex}"
        name = f"{group}-{uuid.uuid4().hex[:12]}"
        pattern = {"source": ["aws.sagemaker"], "detail-type": [CHANGE], "detail": {"ModelPackageGroupName": [name]}}
        self.events.put_rule(Name=rule, EventPattern=json.dumps(pattern))
        self.events.put_targets(Rule=rule, Targets=[{"Id": "queue", "Arn": queue.arn}])
        self.sagemaker.create_model_package_group(ModelPackageGroupName=name)
        return ModelRegistry(self, name)


@dataclass(frozen=True)
class Queue:
    """A queue."""

    account: Account
    url: str

    @property
    def arn(self) -> str:
        return str(self._attribute("QueueArn"))

    @property
    def length(self) -> int:
        """How many messages are in it."""
        return int(self._attribute("ApproximateNumberOfMessages"))

    def send(self, *bodies: str) -> None:
        """Put messages into it."""
        for body in bodies:
            self.account.sqs.send_message(QueueUrl=self.url, MessageBody=body)

    def delete(self) -> None:
        """Have it be there no more."""
        self.account.sqs.delete_queue(QueueUrl=self.url)

    def _attribute(self, name: str) -> Any:
        return self.account.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=[name])["Attributes"][name]


@dataclass(frozen=True)
class ModelRegistry:
    """A group of model packages. SageMaker tells EventBridge of each change, which moto leaves to us."""

    account: Account
    group: str

    def register(self, artefact: str = "s3://models/ranker.tar.gz", status: str = "PendingManualApproval") -> str:
        """A version; its ARN."""
        container = {"Image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/serving:1", "ModelDataUrl": artefact}
        types = {"SupportedContentTypes": ["text/csv"], "SupportedResponseMIMETypes": ["text/csv"]}
        response = self.account.sagemaker.create_model_package(
            ModelPackageGroupName=self.group,
            ModelApprovalStatus=status,
            InferenceSpecification={"Containers": [container], **types},
        )
        arn = str(response["ModelPackageArn"])
        self.tell(arn)
        return arn

    def approve(self, arn: str, status: str = "Approved") -> None:
        """Somebody decides on a version."""
        self.account.sagemaker.update_model_package(ModelPackageArn=arn, ModelApprovalStatus=status)
        self.tell(arn, "ModelApprovalStatus")

    def annotate(self, arn: str, **properties: str) -> None:
        """Somebody writes properties on a version."""
        status = self._described(arn)["ModelApprovalStatus"]  # that SageMaker keeps, and moto forgets
        self.account.sagemaker.update_model_package(
            ModelPackageArn=arn, CustomerMetadataProperties=properties, ModelApprovalStatus=status
        )
        self.tell(arn, "CustomerMetadataProperties")

    def tell(self, arn: str, *updated: str, **more: Any) -> None:
        """What SageMaker tells EventBridge of a version, with the fields that were changed."""
        detail = {**self._described(arn), **({"UpdatedModelPackageFields": updated} if updated else {}), **more}
        entry = {"Source": "aws.sagemaker", "DetailType": CHANGE, "Resources": [arn]}
        response = self.account.events.put_events(Entries=[{**entry, "Detail": json.dumps(detail, default=str)}])
        assert response["FailedEntryCount"] == 0

    def _described(self, arn: str) -> dict[str, Any]:
        response = self.account.sagemaker.describe_model_package(ModelPackageName=arn)
        return {name: value for name, value in response.items() if name != "ResponseMetadata"}


@pytest.fixture
def account(s3_server: str, aws: None) -> Iterator[Account]:  # noqa: ARG001
    """Credentials, and clients of those who put things there."""
    instance = Account(s3_server)
    yield instance
    instance.close()
