"""Models under a prefix of S3 are told when they are complete, by a notification or by a listing, each content once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from plansmith.config.service_triggers import Rule, S3Registry
from plansmith.errors import PlansmithError
from plansmith.system.aws.bucket import Bucket
from plansmith.triggers.pollers.s3 import S3Poller
from plansmith.triggers.registries.delivery import Delivery

from ...support.prefect.programs import free_port
from ...support.triggers.aws_account import Account, Queue

pytestmark = pytest.mark.slow

NOW = 1795165608.0
LISTS_EVERY = 300
RULE = Rule(registry="shelf", model="*", when="ready", spec="ranker.yaml")


class Prefix:
    """A prefix of a bucket as a producer fills it, and what looks at it."""

    def __init__(self, account: Account, queue: Queue | None = None, *, prefix: str = "team/models") -> None:
        self.account, self.prefix = account, prefix
        self.bucket = account.bucket()
        self.messages: list[str] = []
        self.now = NOW
        config = S3Registry(
            type="s3",
            prefix=f"s3://{self.bucket}/{prefix}".rstrip("/"),
            queue_url=queue.url if queue else "",
            poll_seconds=LISTS_EVERY,
            endpoint_url=account.address,
            queue_endpoint_url=account.address,
        )
        self.poller = S3Poller("shelf", config, (RULE,), tell=self.messages.append, wait_seconds=0)
        if queue:
            account.s3.put_bucket_notification_configuration(
                Bucket=self.bucket,
                NotificationConfiguration={
                    "QueueConfigurations": [{"QueueArn": queue.arn, "Events": ["s3:ObjectCreated:*"]}]
                },
            )

    def put(self, model: str, *names: str, ready: bool = True, content: bytes = b"weights") -> None:
        """Put objects of a model there, and at last the one that says that it is complete."""
        for name in (*names, *(["_READY"] if ready else [])):
            key = f"{self.prefix}/{model}/{name}".lstrip("/")
            self.account.s3.put_object(Bucket=self.bucket, Key=key, Body=content)

    def look(self, *, keep: bool = True) -> list[Delivery]:
        deliveries = self.poller.poll(self.now)
        if keep:
            self.poller.acknowledge()
        return deliveries

    def models(self) -> list[str]:
        return [event.model for delivery in self.look() for event in delivery.events]


@pytest.fixture
def shelf(account: Account) -> Iterator[Prefix]:
    """A prefix that is listed."""
    prefix = Prefix(account)
    yield prefix
    prefix.poller.close()


@pytest.fixture
def queue(account: Account) -> Queue:
    return account.queue()


@pytest.fixture
def notified_prefix(account: Account, queue: Queue) -> Iterator[Prefix]:
    """A prefix whose bucket notifies a queue, after the first listing."""
    prefix = Prefix(account, queue)
    assert prefix.look() == []
    yield prefix
    prefix.poller.close()


def test_queue_asked_in_own_region(account: Account, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue is asked where it is and not where the bucket is."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", account.address)
    config = S3Registry(
        type="s3", prefix="s3://models/team", queue_url=queue.url, endpoint_url=f"http://127.0.0.1:{free_port()}"
    )
    poller = S3Poller("shelf", config, (RULE,), tell=print, wait_seconds=0)
    poller._next_listing = NOW + LISTS_EVERY
    queue.send("{}")
    assert poller.poll(NOW) == []
    assert poller.has_more, "there was a message"
    poller.close()


def test_listing_tells_complete_models_only(shelf: Prefix) -> None:
    """A listing tells of complete models and of no others."""
    shelf.put("ranker", "model.onnx", "more/weights.bin")
    shelf.put("half", "model.onnx", ready=False)
    shelf.put("deep/er", "model.onnx")
    (delivery,) = shelf.look()
    (event,) = delivery.events
    assert (event.registry, event.model, event.change) == ("shelf", "ranker", "ready")
    assert event.source == f"s3://{shelf.bucket}/team/models/ranker@{event.version}"
    assert len(event.version) == 64
    assert shelf.messages == []


def test_content_decides_id(shelf: Prefix) -> None:
    """Each content has an ID of its own, and the same content the same."""
    shelf.put("ranker", "model.onnx", content=b"one")
    first = shelf.look()
    shelf.put("ranker", "model.onnx", content=b"one")
    assert shelf.look() == first
    shelf.put("ranker", "model.onnx", content=b"two")
    second = shelf.look()
    shelf.put("ranker", "model.onnx", "other.bin", content=b"two")
    third = shelf.look()
    assert len({delivery.id for deliveries in (first, second, third) for delivery in deliveries}) == 3


def test_rewritten_model_waits_for_ready(shelf: Prefix, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is written again waits for its ready object."""
    shelf.put("ranker", "model.onnx")
    list_page = Bucket.list_page

    def one_second_later(bucket: Bucket, *args: Any, **more: Any) -> Any:
        page = list_page(bucket, *args, **more)
        first = page["Contents"][0]["LastModified"]  # both may be of one second, or of two
        for item in page["Contents"]:
            item["LastModified"] = first + timedelta(seconds=item["Key"].endswith(later))
        return page

    monkeypatch.setattr(Bucket, "list_page", one_second_later)
    later = "model.onnx"
    assert shelf.models() == []
    later = "_READY"
    assert shelf.models() == ["ranker"]


def test_paged_listings_are_one(shelf: Prefix, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listings of many pages are one."""
    list_page = Bucket.list_page

    def two_at_a_time(bucket: Bucket, *args: Any, **more: Any) -> Any:
        return list_page(bucket, *args, MaxKeys=2, **more)

    names = [f"m{number}" for number in range(4)]
    for name in names:
        shelf.put(name, "a.bin", "model.onnx")
    whole = shelf.look()
    monkeypatch.setattr(Bucket, "list_page", two_at_a_time)
    assert shelf.look() == whole
    assert [event.model for delivery in whole for event in delivery.events] == names


def test_whole_bucket_looked_at(account: Account) -> None:
    """A whole bucket can be looked at."""
    shelf = Prefix(account, prefix="")
    shelf.put("ranker", "model.onnx")
    (delivery,) = shelf.look()
    assert delivery.events[0].source.startswith(f"s3://{shelf.bucket}/ranker@")


@pytest.mark.parametrize("names", [(), ("folder/",)])
def test_empty_model_told_once(shelf: Prefix, names: tuple[str, ...]) -> None:
    """A model with nothing in it is told once."""
    shelf.put("empty", *names)
    assert shelf.look() == shelf.look() == []
    assert len(shelf.messages) == 1
    assert "there is nothing beside the ready object" in shelf.messages[0]


def test_unprintable_name_left_out(shelf: Prefix) -> None:
    """A name that cannot be shown is left out."""
    shelf.put("li\x07ne", "model.onnx")
    shelf.put("ranker", "model.onnx")
    assert shelf.models() == ["ranker"]
    assert "its name cannot be shown" in shelf.messages[0]


@pytest.mark.parametrize("model", ["ranker", "ran ker+1 %2F", "größe-模型"])
def test_notification_matches_listing(model: str, notified_prefix: Prefix, queue: Queue) -> None:
    """A notification tells the same as a listing."""
    notified_prefix.put(model, "model.onnx")
    by_message = notified_prefix.look()
    assert [event.model for delivery in by_message for event in delivery.events] == [model]
    assert queue.length == 0
    assert notified_prefix.look() == []
    notified_prefix.now += LISTS_EVERY
    assert notified_prefix.look() == by_message
    assert notified_prefix.messages == []


def test_listing_replaces_lost_notification(notified_prefix: Prefix, queue: Queue) -> None:
    """A lost notification is made up for by the next listing."""
    notified_prefix.put("ranker", "model.onnx")
    notified_prefix.account.sqs.purge_queue(QueueUrl=queue.url)
    assert notified_prefix.look() == []
    notified_prefix.now += LISTS_EVERY - 1
    assert notified_prefix.look() == []
    notified_prefix.now += 1
    assert notified_prefix.models() == ["ranker"]


def test_other_notifications_tell_nothing(notified_prefix: Prefix, queue: Queue) -> None:
    """Notifications of other objects tell nothing and go."""
    notified_prefix.put("ranker", "model.onnx", ready=False)
    notified_prefix.account.s3.put_object(Bucket=notified_prefix.bucket, Key="elsewhere/ranker/_READY", Body=b"")
    notified_prefix.account.s3.put_object(Bucket=notified_prefix.bucket, Key="team/models/_READY", Body=b"")
    assert queue.length == 4, "with the one that S3 sends first"
    assert (notified_prefix.look(), notified_prefix.messages) == ([], [])
    assert queue.length == 0


def test_message_deleted_when_kept(notified_prefix: Prefix, queue: Queue) -> None:
    """A message is deleted when it is kept, and comes again until then."""
    notified_prefix.put("ranker", "model.onnx")
    deliveries = notified_prefix.look(keep=False)
    assert len(deliveries) == 1
    assert queue.length == 3, "with the one that S3 sends first"
    assert notified_prefix.look() == deliveries
    assert queue.length == 0


@pytest.mark.parametrize(
    ("poison", "words"),
    [
        ("{", "the body is no JSON"),
        ("{}", "Records is no list"),
        ('{"Records": [{"eventSource": "aws:sns"}]}', "a record is not of S3"),
        ('{"Records": [{"eventSource": "aws:s3", "s3": {"object": {"key": 7}}}]}', "key is no text"),
    ],
)
def test_unknown_message_told_stops_nothing(poison: str, words: str, notified_prefix: Prefix, queue: Queue) -> None:
    """A message that is not understood is said and stops no other."""
    queue.send(poison)
    notified_prefix.put("ranker", "model.onnx")
    assert notified_prefix.models() == ["ranker"]
    assert len(notified_prefix.messages) == 1
    assert words in notified_prefix.messages[0]
    assert queue.length == 0


def test_other_bucket_messages_passed_over(notified_prefix: Prefix, queue: Queue, account: Account) -> None:
    """Messages of other buckets are passed over."""
    second = Prefix(account, queue)
    second.put("ranker", "model.onnx")
    assert (notified_prefix.look(), notified_prefix.messages) == ([], [])
    assert queue.length == 0


def test_queue_sees_everything_eventually(notified_prefix: Prefix) -> None:
    """With a queue, all that is there is seen in some looks."""
    notified_prefix.now += LISTS_EVERY
    looks = [(notified_prefix.models(), notified_prefix.poller.has_more)]
    notified_prefix.put("ranker", "model.onnx")
    looks += [(notified_prefix.models(), notified_prefix.poller.has_more) for _ in range(2)]
    assert looks == [([], True), (["ranker"], True), ([], False)]


def test_missing_bucket_recovers(shelf: Prefix) -> None:
    """A bucket that is gone is one clear error, and works when it is back."""
    shelf.account.s3.delete_bucket(Bucket=shelf.bucket)
    with pytest.raises(PlansmithError, match=shelf.bucket) as caught:
        shelf.look()
    assert caught.value.remedy
    shelf.account.s3.create_bucket(Bucket=shelf.bucket)
    shelf.put("ranker", "model.onnx")
    assert shelf.models() == ["ranker"]


def test_models_told_in_name_order(shelf: Prefix) -> None:
    """Models are told in the order of their names."""
    for name in ("b", "a", "c"):
        shelf.put(name, "model.onnx")
    assert all(first < second for first, second in pairwise(shelf.models()))
