"""Approved packages come from SageMaker through EventBridge and a queue, and nothing else starts a build."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from plansmith.config.service_triggers import SageMakerRegistry
from plansmith.errors import EnvironmentFault
from plansmith.triggers.pollers.sagemaker import SageMakerPoller
from plansmith.triggers.registries.delivery import OWN_TAGS, Delivery

from ...support.servers.aws_server import KEY_ID, SECRET
from ...support.triggers.aws_account import CHANGE, Account, ModelRegistry, Queue

pytestmark = pytest.mark.slow

NOW = 1795165608.0


class Looks:
    """Looks at a queue; each keeps what it finds, unless told otherwise."""

    def __init__(self, queue_url: str, address: str, account: str = "") -> None:
        self.messages: list[str] = []
        registry = SageMakerRegistry(type="sagemaker", queue_url=queue_url, endpoint_url=address, account=account)
        self.poller = SageMakerPoller("ours", registry, (), tell=self.messages.append, wait_seconds=0)

    def __call__(self, *, keep: bool = True) -> list[Delivery]:
        deliveries = self.poller.poll(NOW)
        if keep:
            self.poller.acknowledge()
        return deliveries


@pytest.fixture
def queue(account: Account) -> Queue:
    return account.queue()


@pytest.fixture
def look(queue: Queue) -> Iterator[Looks]:
    looks = Looks(queue.url, queue.account.address)
    yield looks
    looks.poller.close()


@pytest.fixture
def registry(account: Account, queue: Queue) -> ModelRegistry:
    return account.registry(queue)


def test_package_told_when_approved(look: Looks, registry: ModelRegistry) -> None:
    """A package is told when it is approved and not before."""
    arn = registry.register()
    assert look() == []
    registry.approve(arn)
    (delivery,) = look()
    (event,) = delivery.events
    assert (event.registry, event.model, event.version) == ("ours", registry.group, arn)
    assert (event.change, event.source) == ("approved", "s3://models/ranker.tar.gz")
    assert (look(), look.messages) == ([], [])


@pytest.mark.parametrize("status", ["Rejected", "PendingManualApproval"])
def test_unapproved_package_never_told(status: str, look: Looks, registry: ModelRegistry) -> None:
    """A package that is not approved is never told."""
    registry.approve(registry.register(), status)
    assert (look(), look.messages) == ([], [])


def test_write_back_starts_nothing(look: Looks, registry: ModelRegistry) -> None:
    """What is written back to a package starts nothing."""
    arn = registry.register()
    registry.approve(arn)
    (approved,) = look()
    registry.annotate(arn, **{f"{OWN_TAGS}verdict": "passed"})
    assert (look(), look.messages) == ([], [])
    registry.tell(arn)  # should SageMaker ever not say what was changed, it is the same delivery
    (again,) = look()
    assert again.id == approved.id


def test_early_approval_told_when_complete(look: Looks, registry: ModelRegistry) -> None:
    """A package that was approved before it was complete is told when it is."""
    arn = registry.register(status="Approved")
    look()
    registry.tell(arn, ModelPackageStatus="InProgress")
    assert look() == []
    registry.tell(arn, "ModelPackageStatus")
    assert len(look()) == 1


def test_approval_events_are_one_delivery(look: Looks, registry: ModelRegistry) -> None:
    """Events of one approval are one delivery, and another artefact is another."""
    arn = registry.register()
    for _ in range(3):
        registry.approve(arn)
    other_arn = registry.register("s3://models/other.tar.gz")
    registry.approve(other_arn)
    deliveries = look()
    assert len(deliveries) == 4
    assert [event.version for item in deliveries for event in item.events] == [arn, arn, arn, other_arn]
    assert len({delivery.id for delivery in deliveries}) == 2


def test_packages_told_in_approval_order(look: Looks, queue: Queue) -> None:
    """Packages are told in the order in which they were approved."""
    arns = [f"arn:aws:sagemaker:us-east-1:111122223333:model-package/ranker/{number}" for number in range(12)]

    def send(number: int, time: str) -> None:
        container = {"ModelDataUrl": f"s3://models/{number}.tar.gz"}
        detail = {
            "ModelApprovalStatus": "Approved",
            "ModelPackageGroupName": "ranker",
            "ModelPackageArn": arns[number],
            "InferenceSpecification": {"Containers": [container]},
        }
        queue.send(_message(detail, time=time))

    for number, time in ((7, "2026-11-20T12:00:03Z"), (5, "2026-11-20T12:00:01Z"), (6, "2026-11-20T12:00:02Z")):
        send(number, time)
    for number in (11, 9):
        send(number, "2026-11-20T12:00:00Z")
    send(4, "yesterday")
    events = [event for delivery in look() for event in delivery.events]
    assert [event.version for event in events] == [arns[number] for number in (4, 9, 11, 5, 6, 7)]
    assert [event.at for event in events[:4:3]] == [0, 1795176001]


def test_message_deleted_when_kept(look: Looks, queue: Queue, registry: ModelRegistry) -> None:
    """A message is deleted when it is kept, and comes again until then."""
    registry.approve(registry.register())
    deliveries = look(keep=False)
    assert len(deliveries) == 1
    assert queue.length == 2
    assert look(keep=False) == deliveries
    assert look() == deliveries
    assert queue.length == 0


POISON = {
    "no JSON": ("{", "the body is no JSON"),
    "no object": ("[]", "the body is no object"),
    "a test of a person": ('"hello"', "the body is no object"),
    "of another service": (json.dumps({"source": "aws.s3", "detail-type": CHANGE}), "no event of a model package"),
    "of another kind": (json.dumps({"source": "aws.sagemaker", "detail-type": "x"}), "no event of a model package"),
    "empty": (json.dumps({"source": "aws.sagemaker", "detail-type": CHANGE}), "detail is no object"),
}


@pytest.mark.parametrize(("poison", "words"), POISON.values(), ids=POISON.keys())
def test_unknown_message_told_stops_nothing(
    poison: str, words: str, look: Looks, queue: Queue, registry: ModelRegistry
) -> None:
    """A message that is not understood is said and stops no other."""
    arn = registry.register()
    queue.send(poison)
    registry.approve(arn)
    deliveries = look()
    assert [event.version for delivery in deliveries for event in delivery.events] == [arn]
    assert len(look.messages) == 1
    assert words in look.messages[0]
    assert "is not understood and deleted" in look.messages[0]
    assert queue.length == 0


WRONG_PACKAGES: dict[str, tuple[dict[str, Any], str]] = {
    "an ARN of another group": ({"ModelPackageGroupName": "other"}, "ModelPackageArn is of no version of its group"),
    "no ARN": ({"ModelPackageArn": "x\n"}, "ModelPackageArn is too long, or has characters"),
    "no artefact": ({"InferenceSpecification": {"Containers": []}}, "has not one container"),
    "an artefact elsewhere": (
        {"InferenceSpecification": {"Containers": [{"ModelDataUrl": "file:///etc/passwd"}]}},
        "the artefact is not in S3",
    ),
    "a model of no text": (
        {"InferenceSpecification": {"Containers": [{"ModelDataUrl": 7}]}},
        "ModelDataUrl is no text",
    ),
}


@pytest.mark.parametrize(("poison", "words"), WRONG_PACKAGES.values(), ids=WRONG_PACKAGES.keys())
def test_unbuildable_package_told_with_reason(
    poison: dict[str, Any], words: str, look: Looks, queue: Queue, registry: ModelRegistry
) -> None:
    """An approved package that cannot be built is told with what is wrong."""
    arn = registry.register()
    sound = {"ModelPackageGroupName": registry.group, "ModelPackageArn": arn, "ModelApprovalStatus": "Approved"}
    bodies = [_message({**sound, **poison}, time=f"2026-11-20T12:00:0{second}Z") for second in (1, 2)]
    queue.send(*bodies)
    registry.approve(arn)
    first, again, third = look()
    assert (third.events[0].version, third.events[0].wrong) == (arn, "")
    assert first.id == again.id != third.id
    (event,) = first.events
    assert words in event.wrong
    assert (event.model, event.source) == (poison.get("ModelPackageGroupName", registry.group), "")
    assert event.version == arn or "ModelPackageArn" in words
    assert (look.messages, queue.length) == ([], 0)


def test_unnamable_group_told_and_deleted(look: Looks, queue: Queue) -> None:
    """A package of a group that cannot be named is told and deleted."""
    queue.send(_message({"ModelApprovalStatus": "Approved", "ModelPackageGroupName": "a\nb"}))
    assert look() == []
    assert "is not understood and deleted: ModelPackageGroupName" in look.messages[0]


def test_only_named_account_counts(queue: Queue) -> None:
    """Only packages of the account that is named count."""
    look = Looks(queue.url, queue.account.address, account="111122223333")
    detail = {
        "ModelApprovalStatus": "Approved",
        "ModelPackageGroupName": "ranker",
        "InferenceSpecification": {"Containers": [{"ModelDataUrl": "s3://models/ranker.tar.gz"}]},
    }
    ours, theirs = (
        f"arn:aws:sagemaker:us-east-1:{owner}:model-package/ranker/1" for owner in ("111122223333", "444455556666")
    )
    queue.send(
        _message({**detail, "ModelPackageArn": ours}, account="444455556666"),
        _message({**detail, "ModelPackageArn": theirs}, account="111122223333"),
        _message({**detail, "ModelPackageArn": ours}),
        _message({**detail, "ModelPackageArn": ours}, account="111122223333"),
    )
    assert [event.version for delivery in look() for event in delivery.events] == [ours]
    assert [line.partition("deleted: ")[2] for line in look.messages] == [
        "it is of another account",
        "its package is of another account",
        "it is of another account",
    ]
    look.poller.close()


def test_unpacked_package_is_its_folder(look: Looks, queue: Queue) -> None:
    """A package that is not packed is the folder that it names."""
    place = {"S3DataSource": {"S3Uri": "s3://models/ranker/", "S3DataType": "S3Prefix", "CompressionType": "None"}}
    detail = {
        "ModelApprovalStatus": "Approved",
        "ModelPackageGroupName": "ranker",
        "ModelPackageArn": "arn:aws:sagemaker:us-east-1:111122223333:model-package/ranker/1",
        "InferenceSpecification": {"Containers": [{"ModelDataSource": place}]},
    }
    queue.send(_message(detail))
    assert [event.source for delivery in look() for event in delivery.events] == ["s3://models/ranker"]


def test_missing_queue_recovers(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that is not there is one clear error, and works when it is."""
    queue = account.queue()
    look = Looks(queue.url, account.address)
    assert look() == []
    queue.delete()
    with pytest.raises(EnvironmentFault, match=r"refuses receive message: .*NonExistentQueue") as missing:
        look()
    assert not missing.value.transient
    assert f"aws sqs get-queue-attributes --queue-url {queue.url}" in missing.value.remedy
    look.poller.close()
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    away = Looks("http://127.0.0.1:9/123456789012/queue", "http://127.0.0.1:9")
    with pytest.raises(EnvironmentFault, match="cannot be reached") as unreachable:
        away()
    assert unreachable.value.transient
    assert not any(secret in f"{error.value}" for error in (missing, unreachable) for secret in (KEY_ID, SECRET))
    away.poller.close()


def test_missing_credentials_told_remedy(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without credentials, it is said what to do."""
    queue = account.queue()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(EnvironmentFault) as caught:
        Looks(queue.url, account.address)()
    assert caught.value.remedy


def _message(detail: dict[str, Any], **envelope: str) -> str:
    return json.dumps({"source": "aws.sagemaker", "detail-type": CHANGE, "detail": detail, **envelope})
