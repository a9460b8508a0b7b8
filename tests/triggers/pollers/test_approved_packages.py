"""An approved package whose event was lost is found in the list of SageMaker, and told as its event would have been."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from plansmith.config.service_triggers import Rule, SageMakerRegistry
from plansmith.triggers.pollers import sagemaker
from plansmith.triggers.pollers.sagemaker import SageMakerPoller
from plansmith.triggers.registries.delivery import OWN_TAGS, Delivery

from ...support.triggers.aws_account import Account, ModelRegistry, Queue

pytestmark = pytest.mark.slow

POLL_SECONDS = 300
DAY = 86_400


class Looks:
    """Looks at a queue and a list, as if some time had passed since it was made."""

    def __init__(self, queue: Queue, *models: str, **more: Any) -> None:
        self.messages: list[str] = []
        address = queue.account.address
        config = {"queue_url": queue.url, "endpoint_url": address, "sagemaker_endpoint_url": address, **more}
        registry = SageMakerRegistry.model_validate({"type": "sagemaker", "poll_seconds": POLL_SECONDS, **config})
        rules = [Rule(registry="ours", model=model, when="approved", spec="ranker.yaml") for model in models]
        self.poller = SageMakerPoller("ours", registry, rules, tell=self.messages.append, wait_seconds=0)
        self._begun = time.time()

    def __call__(self, after: float = 0) -> list[Delivery]:
        deliveries = self.poller.poll(self._begun + after)
        self.poller.acknowledge()
        return deliveries


@pytest.fixture
def queue(account: Account) -> Queue:
    return account.queue()


@pytest.fixture
def registry(account: Account, queue: Queue) -> ModelRegistry:
    return account.registry(queue)


@pytest.fixture
def deaf(account: Account) -> Queue:
    """A queue that no event reaches."""
    return account.queue()


@pytest.fixture
def look(deaf: Queue, registry: ModelRegistry) -> Iterator[Looks]:
    looks = Looks(deaf, registry.group)
    yield looks
    looks.poller.close()


def _versions(deliveries: list[Delivery]) -> list[str]:
    return [event.version for delivery in deliveries for event in delivery.events]


def test_package_found_without_event(look: Looks, registry: ModelRegistry, queue: Queue) -> None:
    """A package is found without an event, and told as its event tells it."""
    registry.register("s3://models/waits.tar.gz")
    arn = registry.register()
    registry.approve(arn)
    (listed,) = look()
    heard = Looks(queue)
    (delivery,) = heard()
    heard.poller.close()
    assert listed.id == delivery.id
    assert listed.events[0].content_key == delivery.events[0].content_key
    assert listed.events[0].version == arn
    assert abs(listed.events[0].at - time.time()) < DAY
    assert look.messages == []


def test_list_and_queue_read_at_pace(look: Looks, registry: ModelRegistry, deaf: Queue) -> None:
    """The list is read at the registry's pace, and the queue each time."""
    assert look() == []
    registry.approve(registry.register())
    assert look(POLL_SECONDS - 1) == []
    assert len(look(POLL_SECONDS + 1)) == 1
    deaf.send("hello")
    look(POLL_SECONDS + 2)
    assert deaf.length == 0


def test_write_back_tells_nothing_new(look: Looks, registry: ModelRegistry, deaf: Queue) -> None:
    """What is written back to a package tells nothing new."""
    arn = registry.register()
    registry.approve(arn)
    before = look()
    registry.annotate(arn, **{f"{OWN_TAGS}verdict": "passed"})
    assert look(POLL_SECONDS) == before
    anew = Looks(deaf, registry.group)
    assert [delivery.id for delivery in anew()] == [delivery.id for delivery in before], "another process begins"
    anew.poller.close()


def test_rejected_package_told_no_more(look: Looks, registry: ModelRegistry) -> None:
    """A package that is rejected is told no more."""
    arn = registry.register()
    registry.approve(arn)
    assert _versions(look()) == [arn]
    registry.approve(arn, "Rejected")
    assert look(POLL_SECONDS) == []


def test_newest_old_package_told_alone(look: Looks, registry: ModelRegistry) -> None:
    """Of packages that were registered long ago the newest alone is told."""
    arns = [registry.register(f"s3://models/{number}.tar.gz", status="Approved") for number in range(3)]
    assert _versions(look()) == arns
    assert _versions(look((sagemaker.REGISTERED_DAYS + 1) * DAY)) == arns[-1:]


def test_only_groups_with_patterns_listed(account: Account, deaf: Queue) -> None:
    """Groups that a rule has a pattern for are listed, and others are not."""
    groups = [account.registry(deaf, name) for name in ("left", "right", "other")]
    arns = [group.register(status="Approved") for group in groups]
    deaf.account.sqs.purge_queue(QueueUrl=deaf.url)
    look = Looks(deaf, groups[0].group, f"r*{groups[1].group[1:]}")
    assert sorted(_versions(look())) == sorted(arns[:2])
    look.poller.close()


def test_read_limit_is_told(look: Looks, registry: ModelRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only so many are read, and that is said."""
    monkeypatch.setattr(sagemaker, "_PAGE_SIZE", 2)
    arns = [registry.register(f"s3://models/{number}.tar.gz", status="Approved") for number in range(5)]
    assert _versions(look()) == arns
    monkeypatch.setattr(sagemaker, "_MAX_LISTED", 4)
    assert _versions(look(POLL_SECONDS)) == arns[1:]
    look(2 * POLL_SECONDS)
    assert look.messages == [f"of more than 4 packages of {registry.group} only the newest are read"]


def test_unbuildable_package_told_with_reason(look: Looks, registry: ModelRegistry) -> None:
    """An approved package that cannot be built is told with what is wrong."""
    registry.register("https://models/ranker.tar.gz", status="Approved")
    assert [event.wrong for delivery in look() for event in delivery.events] == ["the artefact is not in S3"]


def test_queue_heard_without_list(queue: Queue, registry: ModelRegistry) -> None:
    """A queue is heard, though the list cannot be read."""
    registry.approve(registry.register())
    look = Looks(queue, registry.group, sagemaker_endpoint_url="http://127.0.0.1:9")
    assert len(look()) == 1
    look(POLL_SECONDS)
    assert len(look.messages) == 1
    assert look.messages[0].startswith(
        "approved packages cannot be listed: the model registry of ours cannot be reached"
    )
    look.poller.close()


def test_other_account_packages_left_out(deaf: Queue, registry: ModelRegistry) -> None:
    """Packages of another account are left out."""
    registry.register(status="Approved")
    look = Looks(deaf, registry.group, account="444455556666")
    assert look() == []
    assert "is left out: its package is of another account" in look.messages[0]
    look.poller.close()
