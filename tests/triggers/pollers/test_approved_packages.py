"""An approved package whose event was lost is found in the list of SageMaker, and told as its event would have been."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from plansmith.config.service.triggers import Rule, SageMakerRegistry
from plansmith.triggers.pollers import approved_packages
from plansmith.triggers.pollers.sagemaker import SageMakerPoller
from plansmith.triggers.registries.delivery import Delivery
from plansmith.triggers.registries.event import OWN_TAGS

from ...support.triggers.aws_account import Account, ModelRegistry, Queue

pytestmark = pytest.mark.slow

POLL_SECONDS = 300
DAY = 86_400


class Looks:
    """Looks at a queue and a list, as if some time had passed since it was made."""

    def __init__(self, queue: Queue, *models: str, **more: Any) -> None:
        self.said: list[str] = []
        address = queue.account.address
        config = {"queue_url": queue.url, "endpoint_url": address, "sagemaker_endpoint_url": address, **more}
        registry = SageMakerRegistry.model_validate({"type": "sagemaker", "poll_seconds": POLL_SECONDS, **config})
        rules = [Rule(registry="ours", model=model, when="approved", spec="ranker.yaml") for model in models]
        self.poller = SageMakerPoller("ours", registry, rules, tell=self.said.append, wait_seconds=0)
        self._begun = time.time()

    def __call__(self, after: float = 0) -> list[Delivery]:
        found = self.poller.poll(self._begun + after)
        self.poller.acknowledge()
        return found


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
    made = Looks(deaf, registry.group)
    yield made
    made.poller.close()


def _versions(found: list[Delivery]) -> list[str]:
    return [event.version for delivery in found for event in delivery.events]


def test_a_package_is_found_without_an_event_and_told_as_its_event_tells_it(
    look: Looks, registry: ModelRegistry, queue: Queue
) -> None:
    registry.register("s3://models/waits.tar.gz")
    arn = registry.register()
    registry.approve(arn)
    (listed,) = look()
    heard = Looks(queue)
    (told,) = heard()
    heard.poller.close()
    assert listed.id == told.id
    assert listed.events[0].content_key == told.events[0].content_key
    assert listed.events[0].version == arn
    assert abs(listed.events[0].at - time.time()) < DAY
    assert look.said == []


def test_the_list_is_read_at_the_registrys_pace_and_the_queue_each_time(
    look: Looks, registry: ModelRegistry, deaf: Queue
) -> None:
    assert look() == []
    registry.approve(registry.register())
    assert look(POLL_SECONDS - 1) == []
    assert len(look(POLL_SECONDS + 1)) == 1
    deaf.send("hello")
    look(POLL_SECONDS + 2)
    assert deaf.length == 0


def test_what_is_written_back_to_a_package_tells_nothing_new(look: Looks, registry: ModelRegistry, deaf: Queue) -> None:
    arn = registry.register()
    registry.approve(arn)
    before = look()
    registry.annotate(arn, **{f"{OWN_TAGS}verdict": "passed"})
    assert look(POLL_SECONDS) == before
    anew = Looks(deaf, registry.group)
    assert [one.id for one in anew()] == [one.id for one in before], "another process begins"
    anew.poller.close()


def test_a_package_that_is_rejected_is_told_no_more(look: Looks, registry: ModelRegistry) -> None:
    arn = registry.register()
    registry.approve(arn)
    assert _versions(look()) == [arn]
    registry.approve(arn, "Rejected")
    assert look(POLL_SECONDS) == []


def test_of_packages_that_were_registered_long_ago_the_newest_alone_is_told(
    look: Looks, registry: ModelRegistry
) -> None:
    arns = [registry.register(f"s3://models/{number}.tar.gz", status="Approved") for number in range(3)]
    assert _versions(look()) == arns
    assert _versions(look((approved_packages.REGISTERED_DAYS + 1) * DAY)) == arns[-1:]


def test_groups_that_a_rule_has_a_pattern_for_are_listed_and_others_are_not(account: Account, deaf: Queue) -> None:
    groups = [account.registry(deaf, name) for name in ("left", "right", "other")]
    arns = [group.register(status="Approved") for group in groups]
    deaf.account.sqs.purge_queue(QueueUrl=deaf.url)
    look = Looks(deaf, groups[0].group, f"r*{groups[1].group[1:]}")
    assert sorted(_versions(look())) == sorted(arns[:2])
    look.poller.close()


def test_only_so_many_are_read_and_that_is_said(
    look: Looks, registry: ModelRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approved_packages, "_PER_PAGE", 2)
    arns = [registry.register(f"s3://models/{number}.tar.gz", status="Approved") for number in range(5)]
    assert _versions(look()) == arns
    monkeypatch.setattr(approved_packages, "_MOST_PAGES", 2)
    assert _versions(look(POLL_SECONDS)) == arns[1:]
    look(2 * POLL_SECONDS)
    assert look.said == [f"of more than 4 packages of {registry.group} the newest alone are looked at"]


def test_an_approved_package_that_cannot_be_built_is_told_with_what_is_wrong(
    look: Looks, registry: ModelRegistry
) -> None:
    registry.register("https://models/ranker.tar.gz", status="Approved")
    assert [event.wrong for delivery in look() for event in delivery.events] == ["the artefact is not in S3"]


def test_a_queue_is_heard_though_the_list_cannot_be_read(queue: Queue, registry: ModelRegistry) -> None:
    registry.approve(registry.register())
    look = Looks(queue, registry.group, sagemaker_endpoint_url="http://127.0.0.1:9")
    assert len(look()) == 1
    look(POLL_SECONDS)
    assert len(look.said) == 1
    assert look.said[0].startswith("approved packages cannot be listed: the model registry of ours cannot be reached")
    look.poller.close()


def test_packages_of_another_account_are_left_out(deaf: Queue, registry: ModelRegistry) -> None:
    registry.register(status="Approved")
    look = Looks(deaf, registry.group, account="444455556666")
    assert look() == []
    assert "is left out: its package is of another account" in look.said[0]
    look.poller.close()
