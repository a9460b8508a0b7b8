"""SageMaker Model Registry poller: approved packages, from the EventBridge queue and from the registry's list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from plansmith.config.service_triggers import Rule, SageMakerRegistry, is_match
from plansmith.errors import EnvironmentFault, UsageError
from plansmith.system.aws.service import AwsService
from plansmith.triggers.pollers.poller import FaultNotices, Poller, Tell, is_pattern, rules_for
from plansmith.triggers.pollers.sqs import WAIT_SECONDS, Message, Queue, region_in
from plansmith.triggers.registries.delivery import Delivery, RequestRejected
from plansmith.triggers.registries.sagemaker import read_message, read_package

REGISTERED_DAYS = 14
"""How long a package counts as newly registered; an inbox knows a delivery for longer."""

_DAY = 86_400
_PAGE_SIZE = 100
_MAX_LISTED = 2000

_MOST_POLLS = 1000


class ApprovedPackages:
    """Approved model packages: lists those of the package groups that rules name.

    Args:
        name: of the registry.
        config: of it.
        rules: of the service.
        tell: says what cannot be listed, once.
    """

    def __init__(self, name: str, config: SageMakerRegistry, rules: Sequence[Rule], *, tell: Tell) -> None:
        self._name = name
        self._config = config
        self._patterns = [rule.model for rule in rules_for(rules, name) if rule.when == "approved"]
        self._notices = FaultNotices(tell)
        self._deliveries: dict[str, Delivery] = {}
        self._sagemaker = AwsService(
            "sagemaker",
            f"the model registry of {name}",
            region=config.region or region_in(config.queue_url),
            endpoint_url=config.sagemaker_endpoint_url,
            settings="region and sagemaker_endpoint_url",
            remedy="see what these credentials may: aws sagemaker list-model-packages --model-package-group-name NAME",
        )

    def read(self, now: float) -> list[Delivery]:
        """Return the deliveries of approved packages; none if SageMaker cannot be queried, which is reported.

        Args:
            now: the Unix time.
        """
        try:
            arns = [arn for group in self._groups() for arn in self._arns(group, now - REGISTERED_DAYS * _DAY)]
            described = ((arn, self._deliveries.get(arn) or self._described(arn)) for arn in arns)
            self._deliveries = {arn: delivery for arn, delivery in described if delivery is not None}
        except (EnvironmentFault, UsageError) as error:
            self._notices.wrong("", f"approved packages cannot be listed: {error.message}; {error.remedy}")
            return []
        self._notices.well("")
        return list(self._deliveries.values())

    def close(self) -> None:
        """Close the connections."""
        self._sagemaker.close()

    def _groups(self) -> list[str]:
        groups = {item for item in self._patterns if not is_pattern(item)}
        if any(map(is_pattern, self._patterns)):
            listed = self._newest("list_model_package_groups", "ModelPackageGroupSummaryList", "groups")
            names = [str(item["ModelPackageGroupName"]) for item in listed]
            groups.update(name for name in names if any(is_match(name, pattern) for pattern in self._patterns))
        return sorted(groups)

    def _arns(self, group: str, since: float) -> Iterator[str]:
        """Yield the approved packages of a group registered since a time, and the newest in any case."""
        which = {"ModelPackageGroupName": group, "ModelApprovalStatus": "Approved"}
        try:
            listed = self._newest("list_model_packages", "ModelPackageSummaryList", f"packages of {group}", **which)
            for number, package in enumerate(listed):
                if number and package["CreationTime"].timestamp() < since:
                    break
                yield str(package["ModelPackageArn"])
        except UsageError as error:
            self._notices.wrong(group, f"the packages of {group} cannot be listed: {error.message}")
            return
        self._notices.well(group)

    def _newest(self, operation: str, key: str, noun: str, **which: str) -> Iterator[dict[str, Any]]:
        """Yield SageMaker's list, newest first, limited to the newest entries where it is too long."""
        order = {"SortBy": "CreationTime", "SortOrder": "Descending"}
        listed = self._sagemaker.pages(operation, key, MaxResults=_PAGE_SIZE, **order, **which)
        yield from islice(listed, _MAX_LISTED)
        if next(listed, None) is not None:
            self._notices.wrong(noun, f"of more than {_MAX_LISTED} {noun} only the newest are read")

    def _described(self, arn: str) -> Delivery | None:
        """The delivery of a package; None where it is no longer approved, or incomplete."""
        document = self._sagemaker.call("describe_model_package", ModelPackageName=arn)
        changed = document.get("LastModifiedTime") or document.get("CreationTime")
        try:
            at = changed.timestamp() if changed else 0
            delivery = read_package(self._config, document, registry=self._name, at=at)
        except RequestRejected as refused:
            self._notices.wrong(arn, f"the package {arn} is left out: {refused.reason}")
            return None
        return delivery if isinstance(delivery, Delivery) else None


class SageMakerPoller(Poller):
    """SageMaker poller: receives queue messages. As each comes once, even unmatched ones are stored in the inbox.

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
        """Return the deliveries of received messages, and of the list when it is due, in chronological order.

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
        """Delete the messages of the last poll, including those without events: its deliveries are stored."""
        if self._queue is not None:
            self._queue.delete(self._messages)
        self._messages = []

    def close(self) -> None:
        """Close the connections."""
        if self._queue is not None:
            self._queue.close()
        self._packages.close()

    def _read(self, message: Message) -> Delivery | None:
        try:
            delivery = read_message(self._config, message.body, registry=self._name)
        except RequestRejected as refused:
            self._tell(f"a message of {len(message.body)} bytes is not understood and deleted: {refused.reason}")
            return None
        return delivery if isinstance(delivery, Delivery) else None


def _approval_order(delivery: Delivery) -> tuple[float, int]:
    """Sort key: when a package was approved, then its number within the same second."""
    event = delivery.events[0]
    number = event.version.rpartition("/")[2]
    return event.at, int(number) if number.isdecimal() else 0
