"""Approved packages come from SageMaker through EventBridge and a queue, and nothing else starts a build."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from plansmith.config.service.triggers import SageMakerRegistry
from plansmith.errors import EnvironmentFault
from plansmith.triggers.pollers.sagemaker import SageMakerPoller
from plansmith.triggers.registries.delivery import Delivery
from plansmith.triggers.registries.event import OWN_TAGS

from ...support.servers.aws_server import KEY_ID, SECRET
from ...support.triggers.aws_account import CHANGE, Account, ModelRegistry, Queue

pytestmark = pytest.mark.slow

NOW = 1795165608.0


class Looks:
    """Looks at a queue; each keeps what it finds, unless told otherwise."""

    def __init__(self, queue_url: str, address: str, account: str = "") -> None:
        self.said: list[str] = []
        registry = SageMakerRegistry(type="sagemaker", queue_url=queue_url, endpoint_url=address, account=account)
        self.poller = SageMakerPoller("ours", registry, (), tell=self.said.append, wait_seconds=0)

    def __call__(self, *, keep: bool = True) -> list[Delivery]:
        found = self.poller.poll(NOW)
        if keep:
            self.poller.acknowledge()
        return found


@pytest.fixture
def queue(account: Account) -> Queue:
    return account.queue()


@pytest.fixture
def look(queue: Queue) -> Iterator[Looks]:
    made = Looks(queue.url, queue.account.address)
    yield made
    made.poller.close()


@pytest.fixture
def registry(account: Account, queue: Queue) -> ModelRegistry:
    return account.registry(queue)


def test_a_package_is_told_when_it_is_approved_and_not_before(look: Looks, registry: ModelRegistry) -> None:
    arn = registry.register()
    assert look() == []
    registry.approve(arn)
    (delivery,) = look()
    (event,) = delivery.events
    assert (event.registry, event.model, event.version) == ("ours", registry.group, arn)
    assert (event.change, event.source) == ("approved", "s3://models/ranker.tar.gz")
    assert (look(), look.said) == ([], [])


@pytest.mark.parametrize("status", ["Rejected", "PendingManualApproval"])
def test_a_package_that_is_not_approved_is_never_told(status: str, look: Looks, registry: ModelRegistry) -> None:
    registry.approve(registry.register(), status)
    assert (look(), look.said) == ([], [])


def test_what_is_written_back_to_a_package_starts_nothing(look: Looks, registry: ModelRegistry) -> None:
    arn = registry.register()
    registry.approve(arn)
    (approved,) = look()
    registry.annotate(arn, **{f"{OWN_TAGS}verdict": "passed"})
    assert (look(), look.said) == ([], [])
    registry.tell(arn)  # should SageMaker ever not say what was changed, it is the same delivery
    (again,) = look()
    assert again.id == approved.id


def test_a_package_that_was_approved_before_it_was_complete_is_told_when_it_is(
    look: Looks, registry: ModelRegistry
) -> None:
    arn = registry.register(status="Approved")
    look()
    registry.tell(arn, ModelPackageStatus="InProgress")
    assert look() == []
    registry.tell(arn, "ModelPackageStatus")
    assert len(look()) == 1


def test_events_of_one_approval_are_one_delivery_and_another_artefact_another(
    look: Looks, registry: ModelRegistry
) -> None:
    arn = registry.register()
    for _ in range(3):
        registry.approve(arn)
    other = registry.register("s3://models/other.tar.gz")
    registry.approve(other)
    found = look()
    assert len(found) == 4
    assert [event.version for one in found for event in one.events] == [arn, arn, arn, other]
    assert len({delivery.id for delivery in found}) == 2


def test_packages_are_told_in_the_order_in_which_they_were_approved(look: Looks, queue: Queue) -> None:
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


def test_a_message_is_deleted_when_it_is_kept_and_comes_again_until_then(
    look: Looks, queue: Queue, registry: ModelRegistry
) -> None:
    registry.approve(registry.register())
    found = look(keep=False)
    assert len(found) == 1
    assert queue.length == 2
    assert look(keep=False) == found
    assert look() == found
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
def test_a_message_that_is_not_understood_is_said_and_stops_no_other(
    poison: str, words: str, look: Looks, queue: Queue, registry: ModelRegistry
) -> None:
    arn = registry.register()
    queue.send(poison)
    registry.approve(arn)
    found = look()
    assert [event.version for delivery in found for event in delivery.events] == [arn]
    assert len(look.said) == 1
    assert words in look.said[0]
    assert "is not understood and deleted" in look.said[0]
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
def test_an_approved_package_that_cannot_be_built_is_told_with_what_is_wrong(
    poison: dict[str, Any], words: str, look: Looks, queue: Queue, registry: ModelRegistry
) -> None:
    arn = registry.register()
    sound = {"ModelPackageGroupName": registry.group, "ModelPackageArn": arn, "ModelApprovalStatus": "Approved"}
    bodies = [_message({**sound, **poison}, time=f"2026-11-20T12:00:0{second}Z") for second in (1, 2)]
    queue.send(*bodies)
    registry.approve(arn)
    first, again, other = look()
    assert (other.events[0].version, other.events[0].wrong) == (arn, "")
    assert first.id == again.id != other.id
    (event,) = first.events
    assert words in event.wrong
    assert (event.model, event.source) == (poison.get("ModelPackageGroupName", registry.group), "")
    assert event.version == arn or "ModelPackageArn" in words
    assert (look.said, queue.length) == ([], 0)


def test_a_package_of_a_group_that_cannot_be_named_is_said_and_deleted(look: Looks, queue: Queue) -> None:
    queue.send(_message({"ModelApprovalStatus": "Approved", "ModelPackageGroupName": "a\nb"}))
    assert look() == []
    assert "is not understood and deleted: ModelPackageGroupName" in look.said[0]


def test_only_packages_of_the_account_that_is_named_count(queue: Queue) -> None:
    look = Looks(queue.url, queue.account.address, account="111122223333")
    detail = {
        "ModelApprovalStatus": "Approved",
        "ModelPackageGroupName": "ranker",
        "InferenceSpecification": {"Containers": [{"ModelDataUrl": "s3://models/ranker.tar.gz"}]},
    }
    ours, theirs = (
        f"arn:aws:sagemaker:us-east-1:{one}:model-package/ranker/1" for one in ("111122223333", "444455556666")
    )
    queue.send(
        _message({**detail, "ModelPackageArn": ours}, account="444455556666"),
        _message({**detail, "ModelPackageArn": theirs}, account="111122223333"),
        _message({**detail, "ModelPackageArn": ours}),
        _message({**detail, "ModelPackageArn": ours}, account="111122223333"),
    )
    assert [event.version for delivery in look() for event in delivery.events] == [ours]
    assert [line.partition("deleted: ")[2] for line in look.said] == [
        "it is of another account",
        "its package is of another account",
        "it is of another account",
    ]
    look.poller.close()


def test_a_package_that_is_not_packed_is_the_folder_that_it_names(look: Looks, queue: Queue) -> None:
    place = {"S3DataSource": {"S3Uri": "s3://models/ranker/", "S3DataType": "S3Prefix", "CompressionType": "None"}}
    detail = {
        "ModelApprovalStatus": "Approved",
        "ModelPackageGroupName": "ranker",
        "ModelPackageArn": "arn:aws:sagemaker:us-east-1:111122223333:model-package/ranker/1",
        "InferenceSpecification": {"Containers": [{"ModelDataSource": place}]},
    }
    queue.send(_message(detail))
    assert [event.source for delivery in look() for event in delivery.events] == ["s3://models/ranker"]


def test_a_queue_that_is_not_there_is_one_clear_error_and_works_when_it_is(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = account.queue()
    look = Looks(queue.url, account.address)
    assert look() == []
    queue.delete()
    with pytest.raises(EnvironmentFault, match=r"refuses receive message: .*NonExistentQueue") as gone:
        look()
    assert not gone.value.transient
    assert f"aws sqs get-queue-attributes --queue-url {queue.url}" in gone.value.remedy
    look.poller.close()
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    away = Looks("http://127.0.0.1:9/123456789012/queue", "http://127.0.0.1:9")
    with pytest.raises(EnvironmentFault, match="cannot be reached") as unreachable:
        away()
    assert unreachable.value.transient
    assert not any(secret in f"{one.value}" for one in (gone, unreachable) for secret in (KEY_ID, SECRET))
    away.poller.close()


def test_without_credentials_it_is_said_what_to_do(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = account.queue()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(EnvironmentFault) as caught:
        Looks(queue.url, account.address)()
    assert caught.value.remedy


def _message(detail: dict[str, Any], **envelope: str) -> str:
    return json.dumps({"source": "aws.sagemaker", "detail-type": CHANGE, "detail": detail, **envelope})
