"""Approved packages of the SageMaker Model Registry, as it lists them: what no event told of is made up for.

What a list tells of a package is the same delivery as that of its event. A package that was registered long ago counts
only while none of its group was registered and approved after it: those from before a service was set up are not all
built by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from plansmith.config.service.patterns import is_match
from plansmith.config.service.triggers import Rule, SageMakerRegistry
from plansmith.errors import EnvironmentFault, UsageError
from plansmith.system.aws.service import AwsService
from plansmith.triggers.pollers.poller import FaultNotices, Tell, is_pattern, rules_for
from plansmith.triggers.pollers.sqs import region_in
from plansmith.triggers.registries.delivery import Delivery, RequestRejected
from plansmith.triggers.registries.sagemaker_messages import read_package

REGISTERED_DAYS = 14
"""How long a package counts as newly registered; an inbox knows a delivery for longer."""

_DAY = 86_400
_PAGE_SIZE = 100
_MAX_LISTED = 2000


class ApprovedPackages:
    """Lists the approved packages of the groups that rules name.

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
        self._known: dict[str, Delivery] = {}
        self._sagemaker = AwsService(
            "sagemaker",
            f"the model registry of {name}",
            region=config.region or region_in(config.queue_url),
            endpoint_url=config.sagemaker_endpoint_url,
            settings="region and sagemaker_endpoint_url",
            remedy="see what these credentials may: aws sagemaker list-model-packages --model-package-group-name NAME",
        )

    def read(self, now: float) -> list[Delivery]:
        """The deliveries of approved packages; none where SageMaker cannot be asked, which is said.

        Args:
            now: the Unix time.
        """
        try:
            arns = [arn for group in self._groups() for arn in self._arns(group, now - REGISTERED_DAYS * _DAY)]
            described = ((arn, self._known.get(arn) or self._described(arn)) for arn in arns)
            self._known = {arn: delivery for arn, delivery in described if delivery is not None}
        except (EnvironmentFault, UsageError) as error:
            self._notices.wrong("", f"approved packages cannot be listed: {error.message}; {error.remedy}")
            return []
        self._notices.well("")
        return list(self._known.values())

    def close(self) -> None:
        """Let go of connections."""
        self._sagemaker.close()

    def _groups(self) -> list[str]:
        found = {one for one in self._patterns if not is_pattern(one)}
        if any(map(is_pattern, self._patterns)):
            listed = self._newest("list_model_package_groups", "ModelPackageGroupSummaryList", "groups")
            names = [str(one["ModelPackageGroupName"]) for one in listed]
            found.update(name for name in names if any(is_match(name, pattern) for pattern in self._patterns))
        return sorted(found)

    def _arns(self, group: str, since: float) -> Iterator[str]:
        """The approved packages of a group that were registered since a time, and the newest in any case."""
        which = {"ModelPackageGroupName": group, "ModelApprovalStatus": "Approved"}
        try:
            listed = self._newest("list_model_packages", "ModelPackageSummaryList", f"packages of {group}", **which)
            for number, one in enumerate(listed):
                if number and one["CreationTime"].timestamp() < since:
                    break
                yield str(one["ModelPackageArn"])
        except UsageError as error:
            self._notices.wrong(group, f"the packages of {group} cannot be listed: {error.message}")
            return
        self._notices.well(group)

    def _newest(self, operation: str, key: str, what: str, **which: str) -> Iterator[dict[str, Any]]:
        """What SageMaker lists, newest first; where that is too much, the newest of it."""
        order = {"SortBy": "CreationTime", "SortOrder": "Descending"}
        listed = self._sagemaker.pages(operation, key, MaxResults=_PAGE_SIZE, **order, **which)
        yield from islice(listed, _MAX_LISTED)
        if next(listed, None) is not None:
            self._notices.wrong(what, f"of more than {_MAX_LISTED} {what} only the newest are read")

    def _described(self, arn: str) -> Delivery | None:
        """The delivery of a package; None where it is not approved any more, or not complete."""
        found = self._sagemaker.call("describe_model_package", ModelPackageName=arn)
        changed = found.get("LastModifiedTime") or found.get("CreationTime")
        try:
            at = changed.timestamp() if changed else 0
            delivery = read_package(self._config, found, registry=self._name, at=at)
        except RequestRejected as refused:
            self._notices.wrong(arn, f"the package {arn} is left out: {refused.reason}")
            return None
        return delivery if isinstance(delivery, Delivery) else None
