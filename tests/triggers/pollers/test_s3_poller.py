"""Models under a prefix of S3 are told when they are complete, by a notification or by a listing, each content once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from plansmith.config.service.triggers import Rule, S3Registry
from plansmith.errors import PlansmithError
from plansmith.system.aws.s3.bucket import Bucket
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
        self.said: list[str] = []
        self.now = NOW
        config = S3Registry(
            type="s3",
            prefix=f"s3://{self.bucket}/{prefix}".rstrip("/"),
            queue_url=queue.url if queue else "",
            poll_seconds=LISTS_EVERY,
            endpoint_url=account.address,
            queue_endpoint_url=account.address,
        )
        self.poller = S3Poller("shelf", config, (RULE,), tell=self.said.append, wait_seconds=0)
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
        found = self.poller.poll(self.now)
        if keep:
            self.poller.acknowledge()
        return found

    def models(self) -> list[str]:
        return [event.model for delivery in self.look() for event in delivery.events]


@pytest.fixture
def shelf(account: Account) -> Iterator[Prefix]:
    """A prefix that is listed."""
    made = Prefix(account)
    yield made
    made.poller.close()


@pytest.fixture
def queue(account: Account) -> Queue:
    return account.queue()


@pytest.fixture
def told(account: Account, queue: Queue) -> Iterator[Prefix]:
    """A prefix whose bucket notifies a queue, after the first listing."""
    made = Prefix(account, queue)
    assert made.look() == []
    yield made
    made.poller.close()


def test_the_queue_is_asked_where_it_is_and_not_where_the_bucket_is(
    account: Account, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_listing_tells_of_complete_models_and_of_no_others(shelf: Prefix) -> None:
    shelf.put("ranker", "model.onnx", "more/weights.bin")
    shelf.put("half", "model.onnx", ready=False)
    shelf.put("deep/er", "model.onnx")
    (delivery,) = shelf.look()
    (event,) = delivery.events
    assert (event.registry, event.model, event.change) == ("shelf", "ranker", "ready")
    assert event.source == f"s3://{shelf.bucket}/team/models/ranker@{event.version}"
    assert len(event.version) == 64
    assert shelf.said == []


def test_each_content_has_an_id_of_its_own_and_the_same_content_the_same(shelf: Prefix) -> None:
    shelf.put("ranker", "model.onnx", content=b"one")
    first = shelf.look()
    shelf.put("ranker", "model.onnx", content=b"one")
    assert shelf.look() == first
    shelf.put("ranker", "model.onnx", content=b"two")
    second = shelf.look()
    shelf.put("ranker", "model.onnx", "other.bin", content=b"two")
    third = shelf.look()
    assert len({one.id for found in (first, second, third) for one in found}) == 3


def test_a_model_that_is_written_again_waits_for_its_ready_object(
    shelf: Prefix, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.put("ranker", "model.onnx")
    list_page = Bucket.list_page

    def one_second_later(bucket: Bucket, *words: Any, **more: Any) -> Any:
        page = list_page(bucket, *words, **more)
        first = page["Contents"][0]["LastModified"]  # both may be of one second, or of two
        for one in page["Contents"]:
            one["LastModified"] = first + timedelta(seconds=one["Key"].endswith(later))
        return page

    monkeypatch.setattr(Bucket, "list_page", one_second_later)
    later = "model.onnx"
    assert shelf.models() == []
    later = "_READY"
    assert shelf.models() == ["ranker"]


def test_listings_of_many_pages_are_one(shelf: Prefix, monkeypatch: pytest.MonkeyPatch) -> None:
    list_page = Bucket.list_page

    def two_at_a_time(bucket: Bucket, *words: Any, **more: Any) -> Any:
        return list_page(bucket, *words, MaxKeys=2, **more)

    names = [f"m{number}" for number in range(4)]
    for name in names:
        shelf.put(name, "a.bin", "model.onnx")
    whole = shelf.look()
    monkeypatch.setattr(Bucket, "list_page", two_at_a_time)
    assert shelf.look() == whole
    assert [event.model for delivery in whole for event in delivery.events] == names


def test_a_whole_bucket_can_be_looked_at(account: Account) -> None:
    shelf = Prefix(account, prefix="")
    shelf.put("ranker", "model.onnx")
    (delivery,) = shelf.look()
    assert delivery.events[0].source.startswith(f"s3://{shelf.bucket}/ranker@")


@pytest.mark.parametrize("names", [(), ("folder/",)])
def test_a_model_with_nothing_in_it_is_said_once(shelf: Prefix, names: tuple[str, ...]) -> None:
    shelf.put("empty", *names)
    assert shelf.look() == shelf.look() == []
    assert len(shelf.said) == 1
    assert "there is nothing beside the ready object" in shelf.said[0]


def test_a_name_that_cannot_be_shown_is_left_out(shelf: Prefix) -> None:
    shelf.put("li\x07ne", "model.onnx")
    shelf.put("ranker", "model.onnx")
    assert shelf.models() == ["ranker"]
    assert "its name cannot be shown" in shelf.said[0]


@pytest.mark.parametrize("model", ["ranker", "ran ker+1 %2F", "größe-模型"])
def test_a_notification_tells_the_same_as_a_listing(model: str, told: Prefix, queue: Queue) -> None:
    told.put(model, "model.onnx")
    by_message = told.look()
    assert [event.model for delivery in by_message for event in delivery.events] == [model]
    assert queue.length == 0
    assert told.look() == []
    told.now += LISTS_EVERY
    assert told.look() == by_message
    assert told.said == []


def test_a_lost_notification_is_made_up_for_by_the_next_listing(told: Prefix, queue: Queue) -> None:
    told.put("ranker", "model.onnx")
    told.account.sqs.purge_queue(QueueUrl=queue.url)
    assert told.look() == []
    told.now += LISTS_EVERY - 1
    assert told.look() == []
    told.now += 1
    assert told.models() == ["ranker"]


def test_notifications_of_other_objects_tell_nothing_and_go(told: Prefix, queue: Queue) -> None:
    told.put("ranker", "model.onnx", ready=False)
    told.account.s3.put_object(Bucket=told.bucket, Key="elsewhere/ranker/_READY", Body=b"")
    told.account.s3.put_object(Bucket=told.bucket, Key="team/models/_READY", Body=b"")
    assert queue.length == 4, "with the one that S3 sends first"
    assert (told.look(), told.said) == ([], [])
    assert queue.length == 0


def test_a_message_is_deleted_when_it_is_kept_and_comes_again_until_then(told: Prefix, queue: Queue) -> None:
    told.put("ranker", "model.onnx")
    found = told.look(keep=False)
    assert len(found) == 1
    assert queue.length == 3, "with the one that S3 sends first"
    assert told.look() == found
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
def test_a_message_that_is_not_understood_is_said_and_stops_no_other(
    poison: str, words: str, told: Prefix, queue: Queue
) -> None:
    queue.send(poison)
    told.put("ranker", "model.onnx")
    assert told.models() == ["ranker"]
    assert len(told.said) == 1
    assert words in told.said[0]
    assert queue.length == 0


def test_messages_of_other_buckets_are_passed_over(told: Prefix, queue: Queue, account: Account) -> None:
    other = Prefix(account, queue)
    other.put("ranker", "model.onnx")
    assert (told.look(), told.said) == ([], [])
    assert queue.length == 0


def test_with_a_queue_all_that_is_there_is_seen_in_some_looks(told: Prefix) -> None:
    told.now += LISTS_EVERY
    looks = [(told.models(), told.poller.has_more)]
    told.put("ranker", "model.onnx")
    looks += [(told.models(), told.poller.has_more) for _ in range(2)]
    assert looks == [([], True), (["ranker"], True), ([], False)]


def test_a_bucket_that_is_gone_is_one_clear_error_and_works_when_it_is_back(shelf: Prefix) -> None:
    shelf.account.s3.delete_bucket(Bucket=shelf.bucket)
    with pytest.raises(PlansmithError, match=shelf.bucket) as caught:
        shelf.look()
    assert caught.value.remedy
    shelf.account.s3.create_bucket(Bucket=shelf.bucket)
    shelf.put("ranker", "model.onnx")
    assert shelf.models() == ["ranker"]


def test_models_are_told_in_the_order_of_their_names(shelf: Prefix) -> None:
    for name in ("b", "a", "c"):
        shelf.put(name, "model.onnx")
    assert all(first < second for first, second in pairwise(shelf.models()))
