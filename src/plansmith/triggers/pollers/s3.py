"""S3 poller: models under a prefix; `<prefix>/<model>/<ready>` marks a complete model.

A notification only says where to look; a slow listing finds what none told of. Both end in the same look at the
objects of a model, and so in the same delivery. A model's version is its revision, and part of the source: what is
announced is what is built. While one of its objects is younger than the ready object, a producer is at work there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from plansmith.config.service_triggers import Rule, S3Registry
from plansmith.config.source_reference import ARCHIVE_SUFFIXES
from plansmith.records.destination import Location
from plansmith.sources.bucket_objects import revision_of
from plansmith.system.aws.bucket import Bucket, ObjectMetadata
from plansmith.triggers.pollers.poller import FaultNotices, Poller, Tell, is_wanted, polled
from plansmith.triggers.pollers.sqs import WAIT_SECONDS, Message, Queue
from plansmith.triggers.registries.delivery import Delivery, Event, RequestRejected, is_showable
from plansmith.triggers.registries.s3_messages import written_keys

_MOST_POLLS = 1000


class S3Poller(Poller):
    """S3 poller: polls a prefix and, if configured, the queue of its bucket's notifications.

    Args:
        name: of the registry.
        config: of it.
        rules: of the service; what none of them wants is not told.
        tell: says what is not understood, once.
        wait_seconds: how long a look waits for a message of the queue.
        listing_only: the queue is left alone.
    """

    def __init__(
        self,
        name: str,
        config: S3Registry,
        rules: Sequence[Rule],
        *,
        tell: Tell,
        wait_seconds: int = WAIT_SECONDS,
        listing_only: bool = False,
    ) -> None:
        region = config.region
        self._name = name
        self._rules = rules
        self._ready = config.ready
        self._tell = tell
        self._notices = FaultNotices(tell)
        self._bucket = Bucket(Location(to=config.prefix, region=region, endpoint_url=config.endpoint_url), Path())
        self._queue: Queue | None = None
        if config.queue_url and not listing_only:
            self._queue = Queue(
                config.queue_url,
                region=region,
                endpoint_url=config.queue_endpoint_url,
                wait_seconds=wait_seconds,
                endpoint_key="queue_endpoint_url",
            )
        self._messages: list[Message] = []
        self._list_seconds = config.poll_seconds
        self._next_listing = 0.0
        self.pause_seconds = 0 if self._queue is not None else config.poll_seconds
        self.most_polls = 1 if self._queue is None else _MOST_POLLS

    def poll(self, now: float) -> list[Delivery]:
        """Return the complete models: all of them if a listing is due, else those that messages name.

        Raises:
            RepositoryError: the bucket refuses.
            EnvironmentFault: bucket or queue cannot be asked.
        """
        self._messages = []
        if self._queue is None or now >= self._next_listing:
            deliveries = self._complete("")
            self._next_listing = now + self._list_seconds
            self.has_more = self._queue is not None
            return deliveries
        self._messages = self._queue.receive()
        self.has_more = bool(self._messages)
        models = dict.fromkeys(model for message in self._messages for model in self._models(message))
        return [delivery for model in models for delivery in self._complete(f"{model}/")]

    def acknowledge(self) -> None:
        """Delete the messages of the last poll, including those without a match: its deliveries are stored."""
        if self._queue is not None and self._messages:
            self._queue.delete(self._messages)
        self._messages = []

    def close(self) -> None:
        """Close the connections."""
        if self._queue is not None:
            self._queue.close()

    def _models(self, message: Message) -> Iterator[str]:
        """Yield the models whose ready object was written according to a message."""
        try:
            keys = written_keys(message.body, bucket=self._bucket.name)
        except RequestRejected as refused:
            self._tell(f"a message of {len(message.body)} bytes is not understood and deleted: {refused.reason}")
            return
        start = self._bucket.full("x").removesuffix("x")
        for key in keys:
            model, _, rest = key.removeprefix(start).partition("/")
            if key.startswith(start) and model and rest == self._ready:
                yield model

    def _complete(self, below: str) -> list[Delivery]:
        """The deliveries of all complete models whose keys have this prefix."""
        models = groupby(self._bucket.below(below), key=lambda item: item.key.partition("/")[0])
        events = (self._event(model, list(objects)) for model, objects in models)
        return [polled(event) for event in events if event is not None]

    def _event(self, model: str, objects: Sequence[ObjectMetadata]) -> Event | None:
        """The event for a model's objects; None where it is incomplete, unwanted or invalid."""
        ready = [item for item in objects if item.key == f"{model}/{self._ready}"]
        others = [item for item in objects if item not in ready and not item.key.endswith("/")]
        if not ready or any(item.changed > ready[0].changed for item in others):
            return None
        if wrong := _wrong_name(model) if others else "there is nothing beside the ready object":
            self._notices.wrong(model, f"{self._bucket.place}/{model!r} is left out: {wrong}")
            return None
        self._notices.well(model)
        version = revision_of(replace(item, key=item.key.removeprefix(f"{model}/")) for item in objects)
        source = f"{self._bucket.place}/{model}@{version}"
        event = Event(registry=self._name, model=model, version=version, change="ready", source=source)
        return event if is_wanted(self._rules, event) else None


def _wrong_name(model: str) -> str:
    """Why a folder of this name cannot be a model; empty where it can."""
    if not is_showable(model):
        return "its name cannot be shown"
    if model.endswith(ARCHIVE_SUFFIXES):
        return f"its name ends as that of an archive does ({', '.join(ARCHIVE_SUFFIXES)})"
    return ""
