"""SageMaker Model Registry events, queued by EventBridge: a package was approved.

The envelope is that of docs.aws.amazon.com/eventbridge/latest/userguide/eb-events-structure.html, the rest that of
docs.aws.amazon.com/sagemaker/latest/dg/automating-sagemaker-with-eventbridge.html. SageMaker may send several events
for one change. Nothing is signed: who may write into the queue is for its policy to say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from plansmith.config.service_triggers import SageMakerRegistry
from plansmith.system.aws.service import AwsService
from plansmith.system.digest import digest_of
from plansmith.triggers.registries.delivery import (
    Delivery,
    Event,
    Ignored,
    RequestRejected,
    name_of,
    object_of,
    read_object,
)

_SOURCE = "aws.sagemaker"
_TYPE = "SageMaker Model Package State Change"
_APPROVAL = "ModelApprovalStatus"
_STATUS = "ModelPackageStatus"
_ARN = re.compile(r"arn:aws[a-z-]*:sagemaker:[a-z0-9-]+:([0-9]{12}):model-package/([A-Za-z0-9-]+)/([0-9]+)")
_S3 = re.compile(r"s3://[A-Za-z0-9][A-Za-z0-9._-]+/.+")
_LONGEST_URL = 1024


def read_message(config: SageMakerRegistry, body: bytes, *, registry: str) -> Delivery | Ignored:
    """Parse a queue message.

    Args:
        config: of the registry.
        body: of the message.
        registry: the registry's name.

    Raises:
        RequestRejected: it is not of SageMaker or of another account, or not what SageMaker sends.
    """
    values = read_object(body)
    if name_of(values, "source") != _SOURCE or name_of(values, "detail-type") != _TYPE:
        raise RequestRejected("malformed", "it is no event of a model package")
    if config.account and values.get("account") != config.account:
        raise RequestRejected("signature", "it is of another account")
    return read_package(config, object_of(values, "detail"), registry=registry, at=_moment(values.get("time")))


def read_package(
    config: SageMakerRegistry, detail: Mapping[str, Any], *, registry: str, at: float
) -> Delivery | Ignored:
    """Return the delivery for a package; an approved one that cannot be built is delivered too, with the reason.

    The event's source is the address of the artefact in S3, such as s3://bucket/model.tar.gz, which whoever registers a
    package chooses: the registry's `sources` say which of them are built.

    Args:
        config: of the registry.
        detail: what SageMaker says of it, in an event or when it is asked.
        registry: the registry's name.
        at: when it was approved, as a Unix time; 0 where nobody knows.

    Raises:
        RequestRejected: it is of another account, or of a group that cannot be named.
    """
    if ignored := _ignored(detail):
        return Ignored(reason=ignored)
    group = name_of(detail, "ModelPackageGroupName")
    version = digest_of(str(detail.get("ModelPackageArn")))
    address = image = wrong = ""
    try:
        version = _arn(config, detail, group)
        address, image = _artefact(object_of(detail, "InferenceSpecification"))
    except RequestRejected as refused:
        if refused.kind != "malformed":
            raise
        wrong = refused.reason
    event = Event(
        registry=registry, model=group, version=version, change="approved", source=address, at=at, wrong=wrong
    )
    return Delivery(id=digest_of([version, address, image, *([wrong] if wrong else [])]), events=(event,))


def _arn(config: SageMakerRegistry, detail: Mapping[str, Any], group: str) -> str:
    """The ARN of a package."""
    arn = name_of(detail, "ModelPackageArn")
    match = _ARN.fullmatch(arn)
    if not match or match[2] != group:
        raise RequestRejected("malformed", "ModelPackageArn is of no version of its group")
    if config.account and match[1] != config.account:
        raise RequestRejected("signature", "its package is of another account")
    return arn


def _moment(time: object) -> float:
    """The Unix time of an EventBridge event; 0 where it has none."""
    try:
        moment = datetime.fromisoformat(time) if isinstance(time, str) else None
    except ValueError:
        return 0
    return moment.timestamp() if moment is not None and moment.tzinfo is not None else 0


def _ignored(detail: Mapping[str, Any]) -> str:
    """Why a package change is ignored; empty where the change approved the package."""
    if detail.get(_APPROVAL) != "Approved":
        return "no approved package"
    updated = detail.get("UpdatedModelPackageFields")
    # What was approved before it was complete is told of when it is; what we write back changes neither.
    if isinstance(updated, list) and updated and not {_APPROVAL, _STATUS} & set(map(str, updated)):
        return "something else of an approved package was changed, such as by ourselves"
    if detail.get(_STATUS, "Completed") != "Completed":
        return "a package that is not complete"
    return "" if detail.get("ModelPackageGroupName") else "a package without versions"


def _artefact(specification: Mapping[str, Any]) -> tuple[str, str]:
    """The address of a package's only artefact and the digest of its serving image, if any."""
    containers = specification.get("Containers")
    if not isinstance(containers, list) or len(containers) != 1 or not isinstance(containers[0], dict):
        raise RequestRejected("malformed", "InferenceSpecification has not one container")
    (container,) = containers
    if "ModelDataUrl" in container:
        address = name_of(container, "ModelDataUrl", longest=_LONGEST_URL)
    else:
        place = object_of(object_of(container, "ModelDataSource"), "S3DataSource")
        address = name_of(place, "S3Uri", longest=_LONGEST_URL)
    if not _S3.fullmatch(address):
        raise RequestRejected("malformed", "the artefact is not in S3")
    return address.rstrip("/"), name_of(container, "ImageDigest") if container.get("ImageDigest") else ""


def package_service(config: SageMakerRegistry, arn: str) -> AwsService:
    """Return the SageMaker client for the region of a package.

    Args:
        config: of the registry.
        arn: of the package.
    """
    return AwsService(
        "sagemaker",
        f"the package {arn}",
        region=arn.split(":")[3],
        endpoint_url=config.sagemaker_endpoint_url,
        settings="the region of the package and sagemaker_endpoint_url",
        remedy=f"see what these credentials may: aws sagemaker describe-model-package --model-package-name {arn}",
    )


def is_approved(config: SageMakerRegistry, arn: str) -> bool:
    """Whether a package is currently approved.

    Raises:
        UsageError: there is no such package.
        EnvironmentFault: SageMaker cannot be asked.
    """
    sagemaker = package_service(config, arn)
    try:
        document = sagemaker.call("describe_model_package", ModelPackageName=arn)
    finally:
        sagemaker.close()
    return bool(document.get("ModelApprovalStatus") == "Approved")
