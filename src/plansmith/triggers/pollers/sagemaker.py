"""Approved packages of the SageMaker Model Registry, out of the queue that EventBridge fills, and as it lists them."""

from __future__ import annotations

from collections.abc import Sequence

from plansmith.config.service.triggers import Rule, SageMakerRegistry
from plansmith.triggers.pollers.approved_packages import ApprovedPackages
from plansmith.triggers.pollers.poller import Poller, Tell
from plansmith.triggers.pollers.sqs import WAIT_SECONDS, Message, Queue
from plansmith.triggers.registries.delivery import Delivery, RequestRejected
from plansmith.triggers.registries.sagemaker_messages import read_message

_MOST_POLLS = 1000


class SageMakerPoller(Poller):
    """Takes messages out of a queue. Each comes once, so that what no rule wants is told, too, and seen in the inbox.

    A slow list of what is approved makes up for events that were lost on their way.

    Args:
        name: of the registry.
        config: of it.
        rules: of the service; groups that none of them names are not listed.
        tell: says which message is not understood, and what cannot be listed.
        wait_seconds: how long a look waits for a message.
        listing_only: the queue is left alone.
    """

    def __init__(
        self,
        name: str,
        config: SageMakerRegistry,
        rules: Sequence[Rule],
        *,
        tell: Tell,
        wait_seconds: int = WAIT_SECONDS,
        listing_only: bool = False,
    ) -> None:
        self.pause_seconds = 0  # the queue itself waits for messages
        if not config.sources:
            self.cautions = ("`sources` allows no place, so that every package will be set aside: name s3://bucket/*",)
        self._name = name
        self._config = config
        self._tell = tell
        self._queue: Queue | None = None
        if not listing_only:
            self._queue = Queue(
                config.queue_url, region=config.region, endpoint_url=config.endpoint_url, wait_seconds=wait_seconds
            )
        self.most_polls = 1 if self._queue is None else _MOST_POLLS
        self._messages: list[Message] = []
        self._packages = ApprovedPackages(name, config, rules, tell=tell)
        self._next_list = 0.0

    def poll(self, now: float) -> list[Delivery]:
        """What some messages tell, and the list when it is due, in the order in which it happened.

        Raises:
            EnvironmentFault: the queue cannot be asked.
        """
        self._messages = []
        is_due = now >= self._next_list
        listed = self._packages.read(now) if is_due else []
        self._messages = self._queue.receive() if self._queue is not None else []
        self.has_more = bool(self._messages)
        if is_due:
            self._next_list = now + self._config.poll_seconds
        sent = [delivery for message in self._messages if (delivery := self._read(message)) is not None]
        return sorted([*sent, *listed], key=_approval_order)  # a queue promises no order

    def acknowledge(self) -> None:
        """What was told is kept, and the messages are deleted, also those that told nothing."""
        if self._queue is not None:
            self._queue.delete(self._messages)
        self._messages = []

    def close(self) -> None:
        """Let go of connections."""
        if self._queue is not None:
            self._queue.close()
        self._packages.close()

    def _read(self, message: Message) -> Delivery | None:
        try:
            found = read_message(self._config, message.body, registry=self._name)
        except RequestRejected as refused:
            self._tell(f"a message of {len(message.body)} bytes is not understood and deleted: {refused.reason}")
            return None
        return found if isinstance(found, Delivery) else None


def _approval_order(delivery: Delivery) -> tuple[float, int]:
    """When a package was approved, and of those of one second its number."""
    event = delivery.events[0]
    number = event.version.rpartition("/")[2]
    return event.at, int(number) if number.isdecimal() else 0
